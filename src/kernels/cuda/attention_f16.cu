// Attention over an f16 cache.
#include "kernels/cuda/attention_kernel.cuh"

namespace takt::cuda {

Status launch_attention_f16(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch) {
    return launch_attention<__half>(stream, a, launch);
}

}   // namespace takt::cuda
