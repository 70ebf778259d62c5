// Device pieces that decode and prefill attention share: the arguments, query fragments, masked scores, online softmax,
// paged loads of keys and values, and the combination of partial results by the block that finishes last.
#pragma once

#include "kernels/cuda/attention_arguments.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {

constexpr float kMinusInfinity = -1e30f;

/// Rows of keys or values in shared memory. Eight rows of one 16-byte chunk lie in eight different bank groups: by swapping
/// chunks where a row is a multiple of 128 bytes, else by padding.
template <int kHeadDim>
struct TileShape {
    static constexpr int kChunks = kHeadDim / 8;   // of 16 bytes
    static constexpr bool kSwaps = kChunks % 8 == 0;
    static constexpr int kRowBytes = kHeadDim * 2 + (kSwaps ? 0 : 16);
    static __device__ __forceinline__ int offset(int row, int chunk) {
        return row * kRowBytes + (kSwaps ? chunk ^ (row & 7) : chunk) * 16;
    }
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

/// Whether a block of the prefill kernel, whose first item would be `first`, has none and is done. In a step without prefill items
/// all blocks stay until their predecessors are done: decode blocks that stand earlier make attention alone 10 % faster, but whole
/// steps slower.
__device__ __forceinline__ bool leaves_without_items(const AttentionArguments& a, int first) {
    if (first < a.header->num_work) return false;
    if (a.header->num_work == static_cast<int>(a.header->reserved)) {
        dependents_may_launch();
        wait_for_predecessors();
    }
    return true;
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
    constexpr int kSteps = kHeadDim / 16, kAtOnce = kSteps > 8 ? 4 : kSteps;
    const int lane = static_cast<int>(threadIdx.x) % 32, which = lane / 8, row = lane % 8 + (which >> 1) * 8;
    float odd0[4] = {}, odd1[4] = {};   // two chains each: an addition waits for the last one of its chain
#pragma unroll
    for (int k0 = 0; k0 < kSteps; k0 += kAtOnce) {
        uint32_t b[kAtOnce][4];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k)
            load_matrix_x4(b[k], keys + static_cast<uint32_t>(TileShape<kHeadDim>::offset(row, (k0 + k) * 2 + (which & 1))));
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
            mma_16816<T>(k % 2 == 0 ? s0 : odd0, q[k0 + k], b[k][0], b[k][1]);
            mma_16816<T>(k % 2 == 0 ? s1 : odd1, q[k0 + k], b[k][2], b[k][3]);
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        s0[c] += odd0[c];
        s1[c] += odd1[c];
    }
}

/// out += p v for 16 tokens; p as an A fragment.
template <class T, int kHeadDim>
__device__ __forceinline__ void weigh_16(float (&out)[kHeadDim / 8][4], const uint32_t (&p)[4], uint32_t values) {
    constexpr int kSteps = kHeadDim / 16, kAtOnce = kSteps > 8 ? 4 : kSteps;
    const int lane = static_cast<int>(threadIdx.x) % 32, which = lane / 8, row = lane % 8 + (which & 1) * 8;
#pragma unroll
    for (int d0 = 0; d0 < kSteps; d0 += kAtOnce) {
        uint32_t b[kAtOnce][4];
#pragma unroll
        for (int d = 0; d < kAtOnce; ++d) {
            load_matrix_x4_transposed(
                b[d], values + static_cast<uint32_t>(TileShape<kHeadDim>::offset(row, (d0 + d) * 2 + (which >> 1))));
        }
#pragma unroll
        for (int d = 0; d < kAtOnce; ++d) {
            mma_16816<T>(out[(d0 + d) * 2], p, b[d][0], b[d][1]);
            mma_16816<T>(out[(d0 + d) * 2 + 1], p, b[d][2], b[d][3]);
        }
    }
}

/// Online softmax of a thread's two rows (g and g + 8 of a 16-row tile) over kTiles n-tiles of scores at a time.
struct SoftmaxRows {
    float maximum[2] = {kMinusInfinity, kMinusInfinity};   // of raw or capped scores; `to_log2` makes base-2 exponents of them
    float sum[2] = {0, 0};
    float scale[2];          // what the earlier sums shrink by
    float to_log2;
    int first[2], last[2];   // positions that a row sees
    int seen_first, seen_end;   // positions that all rows of the tile see

    /// Rows at m and m + 8; the tile's are [m_begin, m_begin + m_count), clipped to the item.
    __device__ __forceinline__ SoftmaxRows(const AttentionArguments& a, const ItemView& v, int m, int m_begin, int m_count) {
        to_log2 = a.soft_cap > 0 ? 1.0f : a.scale_log2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int position = v.position(m + r * 8);
            last[r] = min(position, v.w.kv_end - 1);
            first[r] = a.window > 0 ? position - a.window + 1 : 0;
        }
        seen_end = min(v.position(m_begin) + 1, v.w.kv_end);
        seen_first = a.window > 0 ? v.position(max(m_begin, min(m_begin + m_count, v.w.num_rows) - 1)) - a.window + 1 : 0;
    }
    [[nodiscard]] __device__ __forceinline__ bool needs_mask(int token, int count) const {
        return token + count > seen_end || token < seen_first;
    }

    template <int kTiles>
    static __device__ __forceinline__ void cap(const AttentionArguments& a, float (&s)[kTiles][4]) {
        if (a.soft_cap <= 0) return;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float e = power_of_two(s[j][c] * a.cap_in);   // tanh from e^2x
                s[j][c] = a.cap_out - a.cap_out * __fdividef(2.0f, e + 1.0f);
            }
        }
    }
    /// What a row does not see.
    template <int kTiles>
    __device__ __forceinline__ void hide(float (&s)[kTiles][4], int token) const {
        const int column = token + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int before = first[r] - column, after = last[r] - column;
#pragma unroll
            for (int j = 0; j < kTiles; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    if (j * 8 + c > after || j * 8 + c < before) s[j][2 * r + c] = -INFINITY;
                }
            }
        }
    }

    /// Scores, capped, become p; `scale` is for the caller to apply to its sums of values.
    template <bool kMasks, int kTiles>
    __device__ __forceinline__ void step(const AttentionArguments& a, float (&s)[kTiles][4], int token) {
        const int column = token + static_cast<int>(threadIdx.x) % 4 * 2;
        constexpr int kChains = kTiles >= 8 ? 4 : 1;   // a maximum and a sum wait for the last one of their chain
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float most = maximum[r], higher[kChains];
#pragma unroll
            for (int i = 0; i < kChains; ++i) higher[i] = most;
#pragma unroll
            for (int j = 0; j < kTiles; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[j][2 * r + c];
                    const int at = column + j * 8 + c;
                    if (kMasks && (at > last[r] || at < first[r])) x = -INFINITY;
                    higher[j % kChains] = fmaxf(higher[j % kChains], x);
                }
            }
#pragma unroll
            for (int i = 0; i < kChains; ++i) most = fmaxf(most, higher[i]);
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            scale[r] = power_of_two((maximum[r] - most) * to_log2);
            maximum[r] = most;
            const float shift = -most * to_log2;
            float total = 0, totals[kChains] = {};
#pragma unroll
            for (int j = 0; j < kTiles; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[j][2 * r + c];
                    x = power_of_two(fmaf(x, to_log2, shift));
                    totals[j % kChains] += x;
                }
            }
#pragma unroll
            for (int i = 0; i < kChains; ++i) total += totals[i];
            sum[r] = sum[r] * scale[r] + total;
        }
    }
    template <int kTiles>
    __device__ __forceinline__ void step(const AttentionArguments& a, float (&s)[kTiles][4], int token) {
        cap(a, s);
        if constexpr (kTiles >= 8) {   // one softmax for all tiles: a second copy is so long that fetching it takes 10 us
            if (needs_mask(token, kTiles * 8)) hide(s, token);
            step<false>(a, s, token);
        } else if (needs_mask(token, kTiles * 8)) {
            step<true>(a, s, token);
        } else {
            step<false>(a, s, token);
        }
    }
    template <int kTiles>
    __device__ __forceinline__ void shrink(float (&out)[kTiles][4]) const {
#pragma unroll
        for (int d = 0; d < kTiles; ++d) {
#pragma unroll
            for (int c = 0; c < 4; ++c) out[d][c] *= scale[c >> 1];
        }
    }
    /// Maxima as base-2 exponents and whole rows' sums, once all tiles are done.
    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] *= to_log2;
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        }
    }
};

/// Writes a float4 of a packed row's result: normalised bf16 output.
__device__ __forceinline__ void write_output(const AttentionArguments& a, const ItemView& v, int m, int head_dim,
                                             int column, float4 x) {
    __nv_bfloat16* to = a.out + (static_cast<int64_t>(v.row(m)) * a.num_heads + v.head(m)) * head_dim + column;
    *reinterpret_cast<uint2*>(to) = make_uint2(pack_pair<__nv_bfloat16>(x.x, x.y), pack_pair<__nv_bfloat16>(x.z, x.w));
}

/// Two rows of a thread's prefill result (g and g + 8 of the 16-row tile at m0): to the output, or as a partial result.
template <int kHeadDim>
__device__ __forceinline__ void store_prefill(const AttentionArguments& a, const ItemView& v, int m0, SoftmaxRows& rows,
                                              const float (&out)[kHeadDim / 8][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    rows.finish();
    const float(&maximum)[2] = rows.maximum, (&sum)[2] = rows.sum;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int m = m0 + lane / 4 + r * 8;
        if (m >= v.w.num_rows) continue;
        if (v.w.partial < 0) {
            const float inverse = sum[r] > 0 ? 1.0f / sum[r] : 0.0f;
            __nv_bfloat16* to =
                a.out + (static_cast<int64_t>(v.row(m)) * a.num_heads + v.head(m)) * kHeadDim + lane % 4 * 2;
#pragma unroll
            for (int d = 0; d < kHeadDim / 8; ++d) {
                *reinterpret_cast<uint32_t*>(to + d * 8) =
                    pack_pair<__nv_bfloat16>(out[d][2 * r] * inverse, out[d][2 * r + 1] * inverse);
            }
        } else {
            float* row = a.partials + (int64_t{v.w.partial} + m) * (kHeadDim + kPartialExtra);
            float* to = row + lane % 4 * 2;
#pragma unroll
            for (int d = 0; d < kHeadDim / 8; ++d) {
                __stcg(reinterpret_cast<float2*>(to + d * 8), make_float2(out[d][2 * r], out[d][2 * r + 1]));
            }
            if (lane % 4 == 0) __stcg(reinterpret_cast<float2*>(row + kHeadDim), make_float2(maximum[r], sum[r]));
        }
    }
}

/// Counts this item as finished; true in all threads of the block that finished last. `sync` joins the threads that take part.
template <class Sync>
__device__ __forceinline__ bool finishes_last(const AttentionArguments& a, const ItemView& v, bool is_first_thread, Sync sync) {
    __shared__ int last;
    const int splits = static_cast<int>(static_cast<uint32_t>(v.w.group) >> kSplitShift),
              first = v.w.group & ((1 << kSplitShift) - 1);
    __threadfence();
    sync();
    if (is_first_thread) {
        const int before = atomicAdd(&a.work[first].segment, 1 << 16) >> 16;
        last = before == splits - 1 ? 1 : 0;
        if (last != 0) atomicAnd(&a.work[first].segment, 0xffff);
    }
    sync();
    const bool is_last = last != 0;
    if (is_last) __threadfence();
    return is_last;
}

/// Each partial result's share of each row's total, from the rows' maxima and sums: weights[row * splits + split] of `count`
/// rows whose first partial result's is `base`. Four threads a row.
template <int kHeadDim, int kThreads>
__device__ __forceinline__ void weigh_partials(const AttentionArguments& a, int thread, int64_t base, int count,
                                               int splits, int rows_a_partial, float* weights) {
    constexpr int kStride = kHeadDim + kPartialExtra, kAtOnce = 8;
    const int part = thread % 4;
    for (int m0 = 0; m0 < count; m0 += kThreads / 4) {
        const bool real = m0 + thread / 4 < count;
        const int m = real ? m0 + thread / 4 : 0;
        const float* stats = a.partials + (base + m) * kStride + kHeadDim;
        float most = kMinusInfinity, total = 0;
        for (int s0 = part; s0 < splits; s0 += 4 * kAtOnce) {
            float2 stat[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int s = min(s0 + i * 4, splits - 1);
                stat[i] = __ldcg(reinterpret_cast<const float2*>(stats + int64_t{s} * rows_a_partial * kStride));
            }
            float higher = most;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) higher = fmaxf(higher, stat[i].x);
            total *= power_of_two(most - higher);
            most = higher;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (s0 + i * 4 >= splits) continue;
                total += power_of_two(stat[i].x - most) * stat[i].y;
                if (real) weights[m * splits + s0 + i * 4] = stat[i].x;
            }
        }
        const float mine = most;
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        total *= power_of_two(mine - most);
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const float inverse = total > 0 ? 1.0f / total : 0.0f;
        for (int s = part; real && s < splits; s += 4) {
            float& w = weights[m * splits + s];
            w = power_of_two(w - most) * inverse;
        }
    }
}

/// Two pieces of four columns of a result, kCombineAtOnce parts of it at a time.
constexpr int kCombineAtOnce = 8;
template <int kHeadDim>
__device__ __forceinline__ void load_partials(const AttentionArguments& a, int64_t base, int splits, int rows_a_partial,
                                              const int (&at)[2], int from, float4 (&x)[2][kCombineAtOnce]) {
    constexpr int kStride = kHeadDim + kPartialExtra, kColumns = kHeadDim / 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const float* row = a.partials + (base + at[j] / kColumns) * kStride + at[j] % kColumns * 4;
#pragma unroll
        for (int k = 0; k < kCombineAtOnce; ++k) {
            const int s = min(from + k, splits - 1);
            x[j][k] = __ldcg(reinterpret_cast<const float4*>(row + int64_t{s} * rows_a_partial * kStride));
        }
    }
}

/// Combines rows [m_begin, m_end) of the group's partial results in the order of their positions. `weights`: shared memory for
/// so many rows times the number of parts.
template <int kHeadDim, int kThreads, class Sync>
__device__ void combine_partials(const AttentionArguments& a, const ItemView& v, int thread, int rows_a_partial, int m_begin,
                                 int m_end, float* weights, Sync sync) {
    if (m_begin == m_end) return;
    constexpr int kColumns = kHeadDim / 4;
    const int splits = static_cast<int>(static_cast<uint32_t>(v.w.group) >> kSplitShift),
              first = v.w.group & ((1 << kSplitShift) - 1), all = (m_end - m_begin) * kColumns;
    const int64_t base = __ldcg(&a.work[first].partial) + m_begin;
    float4 x[2][kCombineAtOnce];
    const auto places = [&](int i, int (&at)[2]) {
        at[0] = min(i, all - 1);
        at[1] = min(i + kThreads, all - 1);
    };
    int at[2];
    places(thread, at);
    load_partials<kHeadDim>(a, base, splits, rows_a_partial, at, 0, x);   // on the way while the weights are made
    weigh_partials<kHeadDim, kThreads>(a, thread, base, m_end - m_begin, splits, rows_a_partial, weights);
    sync();
    for (int i = thread; i < all; i += 2 * kThreads) {
        float4 sum[2] = {};
        for (int from = 0; from < splits; from += kCombineAtOnce) {
            places(i, at);
            if (i != thread || from != 0) load_partials<kHeadDim>(a, base, splits, rows_a_partial, at, from, x);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float* weight = weights + at[j] / kColumns * splits;
#pragma unroll
                for (int k = 0; k < kCombineAtOnce; ++k) {
                    const float w = from + k < splits ? weight[min(from + k, splits - 1)] : 0.0f;
                    sum[j].x += w * x[j][k].x;
                    sum[j].y += w * x[j][k].y;
                    sum[j].z += w * x[j][k].z;
                    sum[j].w += w * x[j][k].w;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            if (i + j * kThreads < all) write_output(a, v, m_begin + at[j] / kColumns, kHeadDim, at[j] % kColumns * 4, sum[j]);
        }
    }
}

}   // namespace takt::cuda
