// Device pieces that decode and prefill attention share: the arguments, query fragments, masked scores, online softmax,
// paged loads of keys and values, and the combination of partial results by the block that finishes last.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {

struct AttentionArguments {
    StepHeader* header;
    const SegmentInput* segments;
    AttentionWork* work;
    const int32_t* block_ids;
    const __nv_bfloat16* q;
    const uint8_t* kv_layer;
    float* partials;   // [rows][head_dim + 4]: weighted values, then maximum and sum
    __nv_bfloat16* out;
    int64_t block_stride, kv_stride, head_stride;
    float scale_log2, scale, soft_cap;
    int32_t num_heads, group, block_tokens, window;
};

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kMinusInfinity = -1e30f;

template <int kHeadDim>
struct TileShape {
    static constexpr int kRowBytes =
        kHeadDim * 2 + 16;                         // a padded row: eight rows lie in eight different banks groups
    static constexpr int kChunks = kHeadDim / 8;   // of 16 bytes
    static constexpr int kSteps = kHeadDim / 16;   // of the K axis of q.k
};

/// One item, its segment and the packed row's place.
struct ItemView {
    AttentionWork w;
    SegmentInput s;
    int32_t group;
    __device__ __forceinline__ int32_t row(int m) const { return s.row_begin + (w.row_begin + m) / group; }
    __device__ __forceinline__ int32_t head(int m) const { return w.kv_head * group + (w.row_begin + m) % group; }
    __device__ __forceinline__ int32_t position(int m) const { return s.position_begin + (w.row_begin + m) / group; }
};

__device__ __forceinline__ ItemView view_item(const AttentionArguments& a, int index) {
    ItemView v;
    v.w = a.work[index];
    v.w.segment &= 0xffff;
    v.s = a.segments[v.w.segment];
    v.group = a.group;
    return v;
}

/// Two neighbouring query values as a fragment register of type T.
template <class T>
__device__ __forceinline__ uint32_t query_pair(const __nv_bfloat16* at) {
    const uint32_t raw = __ldcg(reinterpret_cast<const unsigned int*>(at));
    if constexpr (sizeof(T) == 2 && !std::is_same_v<T, __nv_bfloat16>) {
        const float2 f = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw));
        return pack_pair<T>(f.x, f.y);
    } else {
        return raw;
    }
}

/// The 16 packed rows from `m0` on as A fragments; rows past the item are zero.
template <class T, int kHeadDim>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kHeadDim / 16][4], const AttentionArguments& a,
                                             const ItemView& v, int m0) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int m = m0 + lane / 4 + half * 8;
        const bool real = m < v.w.num_rows;
        const __nv_bfloat16* row =
            real ? a.q + (static_cast<int64_t>(v.row(m)) * a.num_heads + v.head(m)) * kHeadDim : a.q;
#pragma unroll
        for (int k = 0; k < kHeadDim / 16; ++k) {
            q[k][half] = real ? query_pair<T>(row + k * 16 + lane % 4 * 2) : 0u;
            q[k][half + 2] = real ? query_pair<T>(row + k * 16 + lane % 4 * 2 + 8) : 0u;
        }
    }
}

/// scores[n] += q k^T for 16 tokens (two n-tiles) whose rows start at shared address `keys`.
template <class T, int kHeadDim>
__device__ __forceinline__ void score_16(float (&s0)[4], float (&s1)[4], const uint32_t (&q)[kHeadDim / 16][4],
                                         uint32_t keys) {
    const int lane = static_cast<int>(threadIdx.x) % 32, which = lane / 8;
    const uint32_t at =
        keys + static_cast<uint32_t>((lane % 8 + (which >> 1) * 8) * TileShape<kHeadDim>::kRowBytes + (which & 1) * 16);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
        uint32_t b[4];
        load_matrix_x4(b, at + static_cast<uint32_t>(k * 32));
        mma_16816<T>(s0, q[k], b[0], b[1]);
        mma_16816<T>(s1, q[k], b[2], b[3]);
    }
}

/// out += p v for 16 tokens; p as an A fragment.
template <class T, int kHeadDim>
__device__ __forceinline__ void weigh_16(float (&out)[kHeadDim / 8][4], const uint32_t (&p)[4], uint32_t values) {
    const int lane = static_cast<int>(threadIdx.x) % 32, which = lane / 8;
    const uint32_t at = values + static_cast<uint32_t>((lane % 8 + (which & 1) * 8) * TileShape<kHeadDim>::kRowBytes +
                                                       (which >> 1) * 16);
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, at + static_cast<uint32_t>(d * 32));
        mma_16816<T>(out[d * 2], p, b[0], b[1]);
        mma_16816<T>(out[d * 2 + 1], p, b[2], b[3]);
    }
}

/// Scores to base-2 exponents with cap; masked ones to minus infinity. `position` of the query row, `token` of the key.
__device__ __forceinline__ float scaled_score(const AttentionArguments& a, float s) {
    if (a.soft_cap > 0) {
        const float x = s * a.scale / a.soft_cap;
        return a.soft_cap * (1.0f - 2.0f / (__expf(2.0f * x) + 1.0f)) * kLog2e;
    }
    return s * a.scale_log2;
}
__device__ __forceinline__ bool is_seen(const AttentionArguments& a, int token, int position, int kv_end) {
    return token <= position && token < kv_end && (a.window <= 0 || token > position - a.window);
}

/// Maximum, sum and rescaling of two rows (g and g + 8 of a 16-row tile) over kTiles n-tiles of scores; s becomes p.
template <int kTiles, int kHeadDim>
__device__ __forceinline__ void softmax_step(float (&s)[kTiles][4], float (&maximum)[2], float (&sum)[2],
                                             float (&out)[kHeadDim / 8][4]) {
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most = maximum[r];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        scale[r] = exp2f(maximum[r] - most);
        maximum[r] = most;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
            s[n][2 * r] = s[n][2 * r] <= kMinusInfinity ? 0.0f : exp2f(s[n][2 * r] - most);
            s[n][2 * r + 1] = s[n][2 * r + 1] <= kMinusInfinity ? 0.0f : exp2f(s[n][2 * r + 1] - most);
            total += s[n][2 * r] + s[n][2 * r + 1];
        }
        sum[r] = sum[r] * scale[r] + total;
    }
    if (__any_sync(0xffffffffu, scale[0] != 1.0f || scale[1] != 1.0f)) {
#pragma unroll
        for (int d = 0; d < kHeadDim / 8; ++d) {
            out[d][0] *= scale[0];
            out[d][1] *= scale[0];
            out[d][2] *= scale[1];
            out[d][3] *= scale[1];
        }
    }
}

/// Writes a float4 of a packed row's result: normalised bf16 output.
__device__ __forceinline__ void write_output(const AttentionArguments& a, const ItemView& v, int m, int head_dim,
                                             int column, float4 x) {
    __nv_bfloat16* to = a.out + (static_cast<int64_t>(v.row(m)) * a.num_heads + v.head(m)) * head_dim + column;
    *reinterpret_cast<uint2*>(to) = make_uint2(pack_pair<__nv_bfloat16>(x.x, x.y), pack_pair<__nv_bfloat16>(x.z, x.w));
}

/// Counts this item as finished; true in all threads of the block that finished last.
__device__ __forceinline__ bool finishes_last(const AttentionArguments& a, const ItemView& v) {
    __shared__ int last;
    const int splits = static_cast<int>(static_cast<uint32_t>(v.w.group) >> kSplitShift),
              first = v.w.group & ((1 << kSplitShift) - 1);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const int before = atomicAdd(&a.work[first].segment, 1 << 16) >> 16;
        last = before == splits - 1 ? 1 : 0;
        if (last != 0) atomicAnd(&a.work[first].segment, 0xffff);
    }
    __syncthreads();
    const bool is_last = last != 0;
    if (is_last) __threadfence();
    return is_last;
}

/// Combines the group's partial results in the order of their positions.
template <int kHeadDim, int kThreads>
__device__ void combine_partials(const AttentionArguments& a, const ItemView& v, int rows_a_partial) {
    const int splits = static_cast<int>(static_cast<uint32_t>(v.w.group) >> kSplitShift),
              first = v.w.group & ((1 << kSplitShift) - 1);
    const int64_t base = __ldcg(&a.work[first].partial);
    constexpr int kStride = kHeadDim + kPartialExtra;
    for (int i = static_cast<int>(threadIdx.x); i < v.w.num_rows * (kHeadDim / 4); i += kThreads) {
        const int m = i / (kHeadDim / 4), column = i % (kHeadDim / 4) * 4;
        float most = kMinusInfinity;
#pragma unroll 4
        for (int s = 0; s < splits; ++s)
            most = fmaxf(most, __ldcg(a.partials + (base + int64_t{s} * rows_a_partial + m) * kStride + kHeadDim));
        float4 sum = make_float4(0, 0, 0, 0);
        float total = 0;
#pragma unroll 4
        for (int s = 0; s < splits; ++s) {
            const float* row = a.partials + (base + int64_t{s} * rows_a_partial + m) * kStride;
            const float2 stat = __ldcg(reinterpret_cast<const float2*>(row + kHeadDim));
            const float4 x = __ldcg(reinterpret_cast<const float4*>(row + column));
            const float weight = exp2f(stat.x - most);
            total += weight * stat.y;
            sum.x += weight * x.x;
            sum.y += weight * x.y;
            sum.z += weight * x.z;
            sum.w += weight * x.w;
        }
        const float inverse = total > 0 ? 1.0f / total : 0.0f;
        write_output(a, v, m, kHeadDim, column,
                     make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse));
    }
}

}   // namespace takt::cuda
