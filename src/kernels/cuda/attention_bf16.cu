// Attention over a bf16 cache.
#include "kernels/cuda/attention_kernel.cuh"

namespace takt::cuda {

Status launch_attention_bf16(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch) {
    return launch_attention<__nv_bfloat16>(stream, a, launch);
}

}   // namespace takt::cuda
