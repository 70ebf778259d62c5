// The attention kernels' launches: decode items, then prefill items. Instantiated once a KV type (attention_bf16.cu,
// attention_f16.cu) for each head dimension.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/attention_wgmma.cuh"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {

constexpr size_t kAloneBytes = 115'200;   // with the static part more than half a multiprocessor's; see gemv.cu

/// Little enough shared memory and few enough registers (16,384 of each quarter of a multiprocessor, of which three warps of a
/// linear layer take 9,216) that a block of the next kernel fits beside it.
template <class T, int kHeadDim>
__global__ void __maxnreg__(kHeadDim > 128 ? 255 : 208) attention_decode_kernel(const AttentionArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ float stats[kDecodeWarps][16][2];
    if (!a.alone) dependents_may_launch();
    attend_decode<T, kHeadDim>(a, memory, stats);
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kPrefillThreads, 2) attention_prefill_kernel(const AttentionArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    dependents_may_launch();
    wait_for_predecessors();
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

template <class T, int kHeadDim>
Status launch_attention(cudaStream_t stream, const AttentionArguments& a, const AttentionLaunch& launch) {
    constexpr size_t kPrefillBytes = prefill_shared_bytes<kHeadDim>();
    const size_t decode_bytes = std::max(decode_shared_bytes<kHeadDim>(), a.alone ? kAloneBytes : size_t{0});
    Status s = allow_shared(attention_decode_kernel<T, kHeadDim>, decode_bytes);
    if (s.ok() && launch.decode_blocks > 0) {
        s = launch_kernel(stream, dim3(static_cast<unsigned>(launch.decode_blocks)), dim3(kDecodeThreads), decode_bytes,
                          Edge::programmatic, attention_decode_kernel<T, kHeadDim>, a);
    }
    if (!s.ok() || !launch.prefill) return s;
    if (launch.wgmma) return launch_wgmma<T, kHeadDim>(stream, a, launch);
    s = allow_shared(attention_prefill_kernel<T, kHeadDim>, kPrefillBytes);
    if (!s.ok()) return s;
    return launch_kernel(stream, dim3(static_cast<unsigned>(2 * launch.num_sms)), dim3(kPrefillThreads), kPrefillBytes,
                         Edge::programmatic, attention_prefill_kernel<T, kHeadDim>, a);
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
