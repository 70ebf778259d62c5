// Launches the attention input's product for a tile's rows and columns.
#include <algorithm>

#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/qkv_split_kernel.cuh"

namespace takt::cuda {
namespace {

constexpr int kStaticBytes = 2048;   // barriers, bias and slots
constexpr int kRoom = 232'448 - kStaticBytes;

template <int kGroups, int kColumns>
Status launch_tile(cudaStream_t stream, GemmSplitArguments& a, QkvEnd& e, const GemmSplitLaunch& launch) {
    using Shape = SplitShape<kGroups, kColumns>;
    const int share = (Shape::kRows + launch.splits - 1) / launch.splits, turns = share * QkvItem<kColumns>::kFours * 8 * 4;
    a.num_stages = std::min({kSplitMostStages, (kRoom - turns) / Shape::kStageBytes, (a.k_blocks + launch.splits - 1) / launch.splits});
    e.turns_at = std::max(a.num_stages * Shape::kStageBytes, Shape::kSumBytes);
    const int bytes = e.turns_at + turns;
    if (a.num_stages < 1 || bytes > kRoom) return {kStatusUnsupported, "CUDA: a tile of the attention input is too large"};
    const auto kernel = qkv_split_kernel<kGroups, kColumns>;
    const Status s = allow_shared(kernel, kRoom);
    if (!s.ok()) return s;
    const auto columns = static_cast<unsigned>((a.out + kColumns - 1) / kColumns),
               rows = static_cast<unsigned>((a.rows + Shape::kRows - 1) / Shape::kRows), splits = static_cast<unsigned>(launch.splits);
    return launch_clusters(stream, dim3(columns * splits, rows), dim3(Shape::kThreads), dim3(splits), static_cast<size_t>(bytes), kernel,
                           *launch.weights, *launch.x, a, e);
}

template <int kGroups>
Status launch_rows(cudaStream_t stream, GemmSplitArguments& a, QkvEnd& e, const GemmSplitLaunch& launch) {
    switch (launch.columns) {
        case 96: return launch_tile<kGroups, 96>(stream, a, e, launch);
        case 128: return launch_tile<kGroups, 128>(stream, a, e, launch);
        case 160: return launch_tile<kGroups, 160>(stream, a, e, launch);
        case 192: return launch_tile<kGroups, 192>(stream, a, e, launch);
        case 256: return launch_tile<kGroups, 256>(stream, a, e, launch);
        default: return {kStatusBadArgument, "CUDA: no such tile of the attention input"};
    }
}

}   // namespace

Status launch_qkv_split(cudaStream_t stream, GemmSplitArguments& a, QkvEnd& e, const GemmSplitLaunch& launch) {
    if (launch.splits != 2 && launch.splits != 4) return {kStatusBadArgument, "CUDA: clusters of the attention input have 2 or 4 blocks"};
    return launch.tile_rows == 64 ? launch_rows<1>(stream, a, e, launch) : launch_rows<2>(stream, a, e, launch);
}

}   // namespace takt::cuda
