// Prefill attention over the paged cache: 64 packed query rows a block, 16 a warp, key and value tiles of 64 tokens
// shared by the four warps and loaded one tile ahead. Tiles lie at absolute multiples of 64 positions, so a row's sums
// do not depend on its slice.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace takt::cuda {

constexpr int kPrefillThreads = 128;
constexpr int kPrefillTokens = 64;

template <int kHeadDim>
constexpr int kPrefillStages = kHeadDim > 128 ? 1 : 2;
template <int kHeadDim>
constexpr size_t prefill_shared_bytes() {
    return static_cast<size_t>(kPrefillStages<kHeadDim>) * 2 * kPrefillTokens * TileShape<kHeadDim>::kRowBytes;
}

template <int kHeadDim>
__device__ __forceinline__ void prefill_load(const AttentionArguments& a, const ItemView& v, int token,
                                             uint8_t* stage) {
    using Shape = TileShape<kHeadDim>;
    const int32_t* table = a.block_ids + v.s.table_begin;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kPrefillTokens * Shape::kChunks; i += kPrefillThreads) {
        const int t = i / Shape::kChunks, chunk = i % Shape::kChunks;
        const bool real = token + t < v.w.kv_end;
        const int at = real ? token + t : v.w.kv_end - 1;
        const uint8_t* src = a.kv_layer + table[at / a.block_tokens] * a.block_stride + v.w.kv_head * a.head_stride +
                             static_cast<int64_t>(at % a.block_tokens) * (kHeadDim * 2) + chunk * 16;
        uint8_t* dst = stage + t * Shape::kRowBytes + chunk * 16;
        copy_async_16(dst, src, real ? 16 : 0);
        copy_async_16(dst + kPrefillTokens * Shape::kRowBytes, src + a.kv_stride, real ? 16 : 0);
    }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void prefill_tile(const AttentionArguments& a, const ItemView& v,
                                             const uint32_t (&q)[kHeadDim / 16][4], int token, const int (&position)[2],
                                             bool masks, uint32_t stage, float (&maximum)[2], float (&sum)[2],
                                             float (&out)[kHeadDim / 8][4]) {
    constexpr int kRow = TileShape<kHeadDim>::kRowBytes;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float s[8][4] = {};
#pragma unroll
    for (int n = 0; n < 4; ++n)
        score_16<T, kHeadDim>(s[2 * n], s[2 * n + 1], q, stage + static_cast<uint32_t>(n * 16 * kRow));
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int at = token + n * 8 + lane % 4 * 2 + (c & 1);
            const float scaled = scaled_score(a, s[n][c]);
            s[n][c] = !masks || is_seen(a, at, position[c >> 1], v.w.kv_end) ? scaled : kMinusInfinity;
        }
    }
    softmax_step<8, kHeadDim>(s, maximum, sum, out);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const uint32_t p[4] = {pack_pair<T>(s[2 * n][0], s[2 * n][1]), pack_pair<T>(s[2 * n][2], s[2 * n][3]),
                               pack_pair<T>(s[2 * n + 1][0], s[2 * n + 1][1]),
                               pack_pair<T>(s[2 * n + 1][2], s[2 * n + 1][3])};
        weigh_16<T, kHeadDim>(out, p, stage + static_cast<uint32_t>((kPrefillTokens + n * 16) * kRow));
    }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void prefill_finish(const AttentionArguments& a, const ItemView& v, int m0,
                                               const float (&maximum)[2], float (&sum)[2],
                                               const float (&out)[kHeadDim / 8][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
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
    if (v.w.partial >= 0 && finishes_last(a, v)) combine_partials<kHeadDim, kPrefillThreads>(a, v, kPrefillRows);
}

/// The prefill items of this block.
template <class T, int kHeadDim>
__device__ __forceinline__ void attend_prefill(const AttentionArguments& a, uint8_t* memory) {
    constexpr int kStages = kPrefillStages<kHeadDim>;
    constexpr int kStageBytes = 2 * kPrefillTokens * TileShape<kHeadDim>::kRowBytes;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, m0 = warp * 16;
    const int num_items = a.header->num_work;
    for (int item = static_cast<int>(a.header->reserved) + static_cast<int>(blockIdx.x); item < num_items;
         item += static_cast<int>(gridDim.x)) {
        const ItemView v = view_item(a, item);
        const int tiles = (v.w.kv_end - v.w.kv_begin + kPrefillTokens - 1) / kPrefillTokens;
        prefill_load<kHeadDim>(a, v, v.w.kv_begin, memory);
        copy_async_commit();
        uint32_t q[kHeadDim / 16][4];
        load_queries<T, kHeadDim>(q, a, v, m0);
        const int position[2] = {v.position(m0 + lane / 4), v.position(m0 + lane / 4 + 8)};
        float out[kHeadDim / 8][4] = {}, maximum[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};
        const int first_position = v.position(0), last_position = v.position(v.w.num_rows - 1);
        for (int tile = 0; tile < tiles; ++tile) {
            const int token = v.w.kv_begin + tile * kPrefillTokens;
            copy_async_wait<0>();
            __syncthreads();
            if (kStages == 2 && tile + 1 < tiles) {
                prefill_load<kHeadDim>(a, v, token + kPrefillTokens, memory + (tile + 1) % 2 * kStageBytes);
                copy_async_commit();
            }
            const bool masks = token + kPrefillTokens > min(first_position + 1, v.w.kv_end) ||
                               (a.window > 0 && token <= last_position - a.window);
            prefill_tile<T, kHeadDim>(a, v, q, token, position, masks,
                                      shared_address(memory + tile % kStages * kStageBytes), maximum, sum, out);
            if (kStages == 1) {
                __syncthreads();
                if (tile + 1 < tiles) prefill_load<kHeadDim>(a, v, token + kPrefillTokens, memory);
                copy_async_commit();
            }
        }
        prefill_finish<T, kHeadDim>(a, v, m0, maximum, sum, out);
        __syncthreads();
    }
}

}   // namespace takt::cuda
