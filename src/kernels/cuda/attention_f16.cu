// Attention over a float16 cache.
#include "kernels/cuda/attention_kernel.cuh"

namespace takt::cuda {

Status launch_attention_f16(cudaStream_t stream, const AttentionArguments& a, int blocks, int head_dim) {
    return launch_attention<__half>(stream, a, blocks, head_dim);
}

}   // namespace takt::cuda
