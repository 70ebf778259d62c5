// cap * tanh(x / cap) in place, for the sampled rows only.
#include "kernels/cuda/logits.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {
namespace {

__global__ void __launch_bounds__(256)
    soft_cap_kernel(const StepHeader* header, float* logits, int64_t stride, int32_t vocab, float cap) {
    dependents_may_launch();
    wait_for_predecessors();
    const int i = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
    if (static_cast<int>(blockIdx.y) >= header->num_samples || i >= vocab) return;
    float* at = logits + blockIdx.y * stride + i;
    *at = cap * tanhf(__ldcg(at) / cap);
}

}   // namespace

Status run_soft_cap(cudaStream_t stream, const LogitsParams& p, int32_t vocab) {
    const dim3 grid(static_cast<unsigned>((vocab + 255) / 256), static_cast<unsigned>(p.samples));
    return launch_kernel(stream, grid, dim3(256), 0, Edge::programmatic, soft_cap_kernel,
                         static_cast<const StepHeader*>(p.in.header), p.logits, p.vocab_stride, vocab, p.soft_cap);
}

}   // namespace takt::cuda
