// Launches the attention input's product that norms its rows itself, for a tile's rows and columns.
#include <algorithm>

#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/qkv_norm_kernel.cuh"

namespace takt::cuda {
namespace {

constexpr int kStaticBytes = 2048;   // barriers, bias and slots
constexpr int kRoom = 232'448 - kStaticBytes;
constexpr int kMostRowBytes = 96 * 1024;   // of the rows' ring: they come from L2, a stage is there in a microsecond

template <int kGroups, int kColumns>
Status launch_tile(cudaStream_t stream, GemmSplitArguments& a, QkvEnd& e, QkvNorm& n, const GemmSplitLaunch& launch) {
    using Shape = QkvNormShape<kGroups, kColumns>;
    const int share = (Shape::kRows + launch.splits - 1) / launch.splits, turns = share * QkvItem<kColumns>::kFours * 8 * 4;
    const int k_blocks = (a.k_blocks + launch.splits - 1) / launch.splits, end = turns + k_blocks * 64 * 4;
    n.row_stages = std::min({4, kMostRowBytes / Shape::kRowsBytes, k_blocks});
    if (kRoom - end - n.row_stages * Shape::kRowsBytes < 4 * Shape::kWeightBytes) n.row_stages = std::min(2, k_blocks);
    const int rows = n.row_stages * Shape::kRowsBytes;
    a.num_stages = std::min({kNormMostStages, (kRoom - end - rows) / Shape::kWeightBytes, k_blocks});
    e.turns_at = std::max(a.num_stages * Shape::kWeightBytes + rows, Shape::kSumBytes);
    n.weights_at = e.turns_at + turns;
    const int bytes = e.turns_at + end;
    if (a.num_stages < std::min(2, k_blocks) || bytes > kRoom)
        return {kStatusUnsupported, "CUDA: a tile of the normed attention input is too large"};
    const auto kernel = qkv_norm_kernel<kGroups, kColumns>;
    const Status s = allow_shared(kernel, kRoom);
    if (!s.ok()) return s;
    const auto columns = static_cast<unsigned>((a.out + kColumns - 1) / kColumns),
               tiles = static_cast<unsigned>((a.rows + Shape::kRows - 1) / Shape::kRows), splits = static_cast<unsigned>(launch.splits);
    return launch_clusters(stream, dim3(columns * splits, tiles), dim3(Shape::kConsumers + kQkvOthers), dim3(splits), static_cast<size_t>(bytes), kernel,
                           *launch.weights, *launch.x, a, e, n);
}

template <int kGroups>
Status launch_rows(cudaStream_t stream, GemmSplitArguments& a, QkvEnd& e, QkvNorm& n, const GemmSplitLaunch& launch) {
    switch (launch.columns) {
        case 96: return launch_tile<kGroups, 96>(stream, a, e, n, launch);
        case 128: return launch_tile<kGroups, 128>(stream, a, e, n, launch);
        case 160: return launch_tile<kGroups, 160>(stream, a, e, n, launch);
        default: break;
    }
    if constexpr (kGroups == 1) {   // two warpgroups have no registers for them
        if (launch.columns == 192) return launch_tile<1, 192>(stream, a, e, n, launch);
        if (launch.columns == 256) return launch_tile<1, 256>(stream, a, e, n, launch);
    }
    return {kStatusBadArgument, "CUDA: no such tile of the normed attention input"};
}

}   // namespace

Status launch_qkv_norm(cudaStream_t stream, GemmSplitArguments& a, QkvEnd& e, QkvNorm& n, const GemmSplitLaunch& launch) {
    if (launch.splits != 2 && launch.splits != 4) return {kStatusBadArgument, "CUDA: clusters of the attention input have 2 or 4 blocks"};
    return launch.tile_rows == 64 ? launch_rows<1>(stream, a, e, n, launch) : launch_rows<2>(stream, a, e, n, launch);
}

}   // namespace takt::cuda
