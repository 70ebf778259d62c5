// The attention kernels' launches: prefill items, then decode items beside them. The prefill kernel lets the decode kernel in when
// its own predecessors are done (at once where it has no items); so the decode kernel need not wait at its start, where there
// are prefill items, but one of its blocks does at its end, since the next kernel waits for its direct predecessor alone.
// Instantiated once a KV type (attention_bf16.cu, attention_f16.cu) for each head dimension.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {

constexpr size_t kAloneBytes = 115'200;   // with the static part more than half a multiprocessor's; see gemv.cu

/// Alone on a multiprocessor: little enough shared memory and few enough registers (16,384 of each quarter of a multiprocessor, of
/// which three warps of a linear layer take 9,216) that a block of the next kernel fits beside it.
template <class T, int kHeadDim, int kWarps, bool kAlone>
__global__ void __maxnreg__(kAlone && kHeadDim <= 128 ? 208 : 255) attention_decode_kernel(const AttentionArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ float stats[kWarps][16][2];
    if (!kAlone) dependents_may_launch();
    attend_decode<T, kHeadDim, kWarps, !kAlone && (kDecodeStages<kHeadDim> > 2), kAlone>(a, memory, stats);
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kPrefillThreads, 2) attention_prefill_kernel(const AttentionArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    if (leaves_without_items(a, static_cast<int>(a.header->reserved) + static_cast<int>(blockIdx.x))) return;
    wait_for_predecessors();
    dependents_may_launch();
    attend_prefill<T, kHeadDim>(a, memory);
}

template <class T, int kHeadDim>
Status launch_wgmma(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch) {
    if constexpr (kHeadDim == 64 || kHeadDim == 128) {
        constexpr size_t kBytes = WgmmaShape<kHeadDim>::kSharedBytes;
        const Status s = allow_shared(attention_wgmma_kernel<T, kHeadDim>, kBytes);
        if (!s.ok()) return s;
        return launch_kernel(stream, dim3(static_cast<unsigned>(launch.num_sms)), dim3(kWgmmaThreads), kBytes, Edge::programmatic,
                             attention_wgmma_kernel<T, kHeadDim>, launch.map, a);
    } else {
        return {kStatusUnsupported, "CUDA: warpgroup attention has head dimensions 64 and 128"};
    }
}

template <class T, int kHeadDim, int kWarps, bool kAlone>
Status launch_decode(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch) {
    const size_t bytes = std::max(decode_shared_bytes<kHeadDim, kWarps>(), kAlone ? kAloneBytes : size_t{0});
    const auto kernel = attention_decode_kernel<T, kHeadDim, kWarps, kAlone>;
    const Status s = allow_shared(kernel, bytes);
    if (!s.ok()) return s;
    return launch_kernel(stream, dim3(static_cast<unsigned>(launch.decode_blocks)), dim3(kWarps * 32), bytes, Edge::programmatic, kernel,
                         a);
}

template <class T, int kHeadDim>
Status launch_attention(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch) {
    constexpr size_t kPrefillBytes = prefill_shared_bytes<kHeadDim>();
    Status s;
    if (launch.wgmma) {
        s = launch_wgmma<T, kHeadDim>(stream, a, launch);
    } else if (launch.prefill) {
        s = allow_shared(attention_prefill_kernel<T, kHeadDim>, kPrefillBytes);
        if (!s.ok()) return s;
        s = launch_kernel(stream, dim3(static_cast<unsigned>(2 * launch.num_sms)), dim3(kPrefillThreads), kPrefillBytes,
                          Edge::programmatic, attention_prefill_kernel<T, kHeadDim>, a);
    }
    if (!s.ok() || launch.decode_blocks == 0) return s;
    if (a.alone) return launch_decode<T, kHeadDim, kDecodeWarps, true>(stream, a, launch);
    if constexpr (kHeadDim <= 128) {
        if (launch.full_blocks) return launch_decode<T, kHeadDim, kFullDecodeWarps, false>(stream, a, launch);
    }
    return launch_decode<T, kHeadDim, kDecodeWarps, false>(stream, a, launch);
}

template <class T>
Status launch_attention(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch) {
    switch (launch.head_dim) {
        case 64: return launch_attention<T, 64>(stream, a, launch);
        case 80: return launch_attention<T, 80>(stream, a, launch);
        case 96: return launch_attention<T, 96>(stream, a, launch);
        case 128: return launch_attention<T, 128>(stream, a, launch);
        case 256: return launch_attention<T, 256>(stream, a, launch);
        default: return {kStatusUnsupported, "CUDA: head dimensions are 64, 80, 96, 128 and 256"};
    }
}

}   // namespace takt::cuda
