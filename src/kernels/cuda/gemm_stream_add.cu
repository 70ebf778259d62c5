// Medium linear layers whose results are added to the residual.
#include "kernels/cuda/gemm_stream_launch.cuh"

namespace takt::cuda {

Status launch_gemm_stream_add(cudaStream_t stream, GemmStreamArguments& a, const GemmStreamLaunch& launch) {
    switch (launch.tokens) {
        case 16: return launch_add<16>(stream, a, launch);
        case 32: return launch_add<32>(stream, a, launch);
        case 64: return launch_add<64>(stream, a, launch);
        default: return {kStatusBadArgument, "CUDA: rows of a medium linear layer"};
    }
}

}   // namespace takt::cuda
