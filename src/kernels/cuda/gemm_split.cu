// Launches the divided linear layer for a tile's rows and columns.
#include <algorithm>

#include "kernels/cuda/gemm_split_kernel.cuh"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

template <int kGroups, int kColumns>
Status launch_tile(cudaStream_t stream, GemmSplitArguments& a, const GemmSplitLaunch& launch) {
    using Shape = SplitShape<kGroups, kColumns>;
    a.num_stages = std::min(Shape::kStages, (a.k_blocks + launch.splits - 1) / launch.splits);
    const auto bytes = static_cast<size_t>(std::max(a.num_stages * Shape::kStageBytes, Shape::kSumBytes));
    const auto kernel = gemm_split_kernel<kGroups, kColumns>;
    const Status s = allow_shared(kernel, kSplitShared);
    if (!s.ok()) return s;
    const auto columns = static_cast<unsigned>((a.out + kColumns - 1) / kColumns),
               rows = static_cast<unsigned>((a.rows + Shape::kRows - 1) / Shape::kRows), splits = static_cast<unsigned>(launch.splits);
    return launch_clusters(stream, dim3(columns * splits, rows), dim3(Shape::kThreads), dim3(splits), bytes, kernel, *launch.weights,
                           *launch.x, a);
}

template <int kGroups>
Status launch_rows(cudaStream_t stream, GemmSplitArguments& a, const GemmSplitLaunch& launch) {
    switch (launch.columns) {
        case 64: return launch_tile<kGroups, 64>(stream, a, launch);
        case 112: return launch_tile<kGroups, 112>(stream, a, launch);
        case 128: return launch_tile<kGroups, 128>(stream, a, launch);
        case 144: return launch_tile<kGroups, 144>(stream, a, launch);
        case 160: return launch_tile<kGroups, 160>(stream, a, launch);
        case 192: return launch_tile<kGroups, 192>(stream, a, launch);
        case 224: return launch_tile<kGroups, 224>(stream, a, launch);
        case 256: return launch_tile<kGroups, 256>(stream, a, launch);
        default: return {kStatusBadArgument, "CUDA: no such tile of a divided linear layer"};
    }
}

int count_clusters(int splits) {
    const auto kernel = gemm_split_kernel<2, 224>;
    if (!allow_shared(kernel, kSplitShared).ok()) return 0;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(splits));
    config.blockDim = dim3(SplitShape<2, 224>::kThreads);
    config.dynamicSmemBytes = kSplitShared;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    int count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &config) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return count;
}

}   // namespace

int most_split_clusters(int splits) {
    static const int two = count_clusters(2), four = count_clusters(4), eight = count_clusters(8);
    return splits == 2 ? two : splits == 4 ? four : splits == 8 ? eight : 0;
}

Status launch_gemm_split(cudaStream_t stream, GemmSplitArguments& a, const GemmSplitLaunch& launch) {
    return launch.tile_rows == 64 ? launch_rows<1>(stream, a, launch) : launch_rows<2>(stream, a, launch);
}

}   // namespace takt::cuda
