// Prefill attention over the paged cache by mma.sync, for head dimensions and cards that attention_wgmma.cuh does not take:
// 64 packed query rows at a time, 16 a warp, key and value tiles of 64 tokens shared by the four warps and loaded one tile
// ahead. Tiles lie at absolute multiples of 64 positions, so a row's sums do not depend on its slice.
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
        uint8_t* dst = stage + Shape::offset(t, chunk);
        copy_async_16(dst, src, real ? 16 : 0);
        copy_async_16(dst + kPrefillTokens * Shape::kRowBytes, src + a.kv_stride, real ? 16 : 0);
    }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void prefill_tile(const AttentionArguments& a, const uint32_t (&q)[kHeadDim / 16][4], int token,
                                             uint32_t stage, SoftmaxRows& rows, float (&out)[kHeadDim / 8][4]) {
    constexpr int kRow = TileShape<kHeadDim>::kRowBytes;
    float s[8][4] = {};
#pragma unroll
    for (int n = 0; n < 4; ++n)
        score_16<T, kHeadDim>(s[2 * n], s[2 * n + 1], q, stage + static_cast<uint32_t>(n * 16 * kRow));
    rows.step(a, s, token);
    rows.shrink(out);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const uint32_t p[4] = {pack_pair<T>(s[2 * n][0], s[2 * n][1]), pack_pair<T>(s[2 * n][2], s[2 * n][3]),
                               pack_pair<T>(s[2 * n + 1][0], s[2 * n + 1][1]),
                               pack_pair<T>(s[2 * n + 1][2], s[2 * n + 1][3])};
        weigh_16<T, kHeadDim>(out, p, stage + static_cast<uint32_t>((kPrefillTokens + n * 16) * kRow));
    }
}

/// 64 packed rows of an item, from `m_begin` on.
template <class T, int kHeadDim>
__device__ __forceinline__ void prefill_rows(const AttentionArguments& a, const ItemView& v, int m_begin, uint8_t* memory) {
    constexpr int kStages = kPrefillStages<kHeadDim>;
    constexpr int kStageBytes = 2 * kPrefillTokens * TileShape<kHeadDim>::kRowBytes;
    const int lane = static_cast<int>(threadIdx.x) % 32, m0 = m_begin + static_cast<int>(threadIdx.x) / 32 * 16;
    const int last_position = v.position(min(m_begin + 64, v.w.num_rows) - 1);
    const int tiles = max(0, min(v.w.kv_end, last_position + 1) - v.w.kv_begin + kPrefillTokens - 1) / kPrefillTokens;
    if (tiles > 0) prefill_load<kHeadDim>(a, v, v.w.kv_begin, memory);
    copy_async_commit();
    uint32_t q[kHeadDim / 16][4];
    load_queries<T, kHeadDim>(q, a, v, m0);
    SoftmaxRows rows(a, v, m0 + lane / 4, m_begin, 64);
    float out[kHeadDim / 8][4] = {};
    for (int tile = 0; tile < tiles; ++tile) {
        const int token = v.w.kv_begin + tile * kPrefillTokens;
        copy_async_wait<0>();
        __syncthreads();
        if (kStages == 2 && tile + 1 < tiles) {
            prefill_load<kHeadDim>(a, v, token + kPrefillTokens, memory + (tile + 1) % 2 * kStageBytes);
            copy_async_commit();
        }
        prefill_tile<T, kHeadDim>(a, q, token, shared_address(memory + tile % kStages * kStageBytes), rows, out);
        if (kStages == 1) {
            __syncthreads();
            if (tile + 1 < tiles) prefill_load<kHeadDim>(a, v, token + kPrefillTokens, memory);
            copy_async_commit();
        }
    }
    store_prefill<kHeadDim>(a, v, m0, rows, out);
    __syncthreads();
}

/// The prefill items of this block.
template <class T, int kHeadDim>
__device__ __forceinline__ void attend_prefill(const AttentionArguments& a, uint8_t* memory) {
    const auto sync = [] { __syncthreads(); };
    const int num_items = a.header->num_work, thread = static_cast<int>(threadIdx.x);
    for (int item = static_cast<int>(a.header->reserved) + static_cast<int>(blockIdx.x); item < num_items;
         item += static_cast<int>(gridDim.x)) {
        const ItemView v = view_item(a, item);
        for (int m = 0; m < v.w.num_rows; m += 64) prefill_rows<T, kHeadDim>(a, v, m, memory);
        if (v.w.partial >= 0 && finishes_last(a, v, thread == 0, sync)) {
            combine_partials<kHeadDim, kPrefillThreads>(a, v, thread, kPrefillRows, 0, v.w.num_rows,
                                                        reinterpret_cast<float*>(memory), sync);
        }
        sync();
    }
}

}   // namespace takt::cuda
