// Gate and up of a medium step, with the activation.
#include "kernels/cuda/gemm_stream_launch.cuh"

namespace takt::cuda {

Status launch_gemm_stream_gated(cudaStream_t stream, GemmStreamArguments& a, const GemmStreamLaunch& launch) {
    switch (launch.tokens) {
        case 16: return launch_gated<16>(stream, a, launch);
        case 32: return launch_gated<32>(stream, a, launch);
        case 64: return launch_gated<64>(stream, a, launch);
        default: return {kStatusBadArgument, "CUDA: rows of a medium linear layer"};
    }
}

}   // namespace takt::cuda
