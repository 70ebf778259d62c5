// One launch for decode and prefill rows: a block does its decode items, then its prefill items, each with its own tile
// shape. Two blocks fit on a multiprocessor. Instantiated once a KV type (attention_bf16.cu, attention_f16.cu) for each
// head dimension.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kDecodeThreads, 2) attention_kernel(const AttentionArguments a) {
    static_assert(kDecodeThreads == kPrefillThreads);
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ float stats[kDecodeWarps][16][2];
    dependents_may_launch();
    wait_for_predecessors();
    attend_decode<T, kHeadDim>(a, memory, stats);
    attend_prefill<T, kHeadDim>(a, memory);
}

template <class T, int kHeadDim>
Status launch_attention(cudaStream_t stream, const AttentionArguments& a, int blocks) {
    const size_t bytes = std::max(decode_shared_bytes<kHeadDim>(), prefill_shared_bytes<kHeadDim>());
    const Status s = allow_shared(attention_kernel<T, kHeadDim>, bytes);
    if (!s.ok()) return s;
    return launch_kernel(stream, dim3(static_cast<unsigned>(blocks)), dim3(kDecodeThreads), bytes, Edge::programmatic,
                         attention_kernel<T, kHeadDim>, a);
}

template <class T>
Status launch_attention(cudaStream_t stream, const AttentionArguments& a, int blocks, int head_dim) {
    switch (head_dim) {
        case 64: return launch_attention<T, 64>(stream, a, blocks);
        case 80: return launch_attention<T, 80>(stream, a, blocks);
        case 96: return launch_attention<T, 96>(stream, a, blocks);
        case 128: return launch_attention<T, 128>(stream, a, blocks);
        case 256: return launch_attention<T, 256>(stream, a, blocks);
        default: return {kStatusUnsupported, "CUDA: head dimensions are 64, 80, 96, 128 and 256"};
    }
}

Status launch_attention_bf16(cudaStream_t stream, const AttentionArguments& a, int blocks, int head_dim);
Status launch_attention_f16(cudaStream_t stream, const AttentionArguments& a, int blocks, int head_dim);

}   // namespace takt::cuda
