// Launches gate and up of large steps for a tile's columns.
#include "kernels/cuda/gemm_wide_kernel.cuh"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

template <int kColumns>
Status launch_columns(cudaStream_t stream, const GemmWideArguments& a, const GemmWideLaunch& launch) {
    constexpr size_t kBytes = WideShape<kColumns>::kSharedBytes;
    const auto kernel = gemm_wide_kernel<kColumns>;
    const Status s = allow_shared(kernel, kBytes);
    if (!s.ok()) return s;
    return launch_kernel(stream, dim3(static_cast<unsigned>(launch.num_sms / 2 * 2)), dim3(kWideThreads), kBytes, Edge::programmatic,
                         kernel, *launch.weights, *launch.x, a);
}

}   // namespace

Status launch_gemm_wide(cudaStream_t stream, const GemmWideArguments& a, const GemmWideLaunch& launch) {
    switch (launch.columns) {
        case 112: return launch_columns<112>(stream, a, launch);
        case 128: return launch_columns<128>(stream, a, launch);
        case 144: return launch_columns<144>(stream, a, launch);
        case 160: return launch_columns<160>(stream, a, launch);
        case 176: return launch_columns<176>(stream, a, launch);
        case 192: return launch_columns<192>(stream, a, launch);
        case 224: return launch_columns<224>(stream, a, launch);
        case 256: return launch_columns<256>(stream, a, launch);
        default: return {kStatusBadArgument, "CUDA: no such tile of gate and up"};
    }
}

}   // namespace takt::cuda
