// Decode attention: a block of four warps an item, the warps take 16-token tiles in turn, each with its own ring of
// asynchronous copies and its own softmax, so that nothing synchronises until the item ends. Query heads of one KV head
// fill the MMA's rows.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace takt::cuda {

constexpr int kDecodeWarps = 4;
constexpr int kDecodeThreads = kDecodeWarps * 32;
constexpr int kDecodeStages = 3;

template <int kHeadDim>
constexpr size_t decode_shared_bytes() {
    return static_cast<size_t>(kDecodeWarps) * kDecodeStages * 2 * 16 * TileShape<kHeadDim>::kRowBytes +
           16 * kHeadDim * 4;
}

/// Starts the copies of the 16 keys and values from `token` on; tokens past the item's end become zeros.
template <int kHeadDim>
__device__ __forceinline__ void decode_load(const AttentionArguments& a, const ItemView& v, int token, uint8_t* stage) {
    using Shape = TileShape<kHeadDim>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int32_t* table = a.block_ids + v.s.table_begin;
    const uint8_t* from[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = min(token + half * 8, v.w.kv_end - 1);
        from[half] = a.kv_layer + table[at / a.block_tokens] * a.block_stride + v.w.kv_head * a.head_stride +
                     static_cast<int64_t>((token + half * 8) % a.block_tokens) * (kHeadDim * 2);
    }
#pragma unroll
    for (int i = lane; i < 16 * Shape::kChunks; i += 32) {
        const int t = i / Shape::kChunks, chunk = i % Shape::kChunks;
        const uint8_t* src = (t < 8 ? from[0] : from[1]) + (t % 8) * (kHeadDim * 2) + chunk * 16;
        const int bytes = token + t < v.w.kv_end ? 16 : 0;
        uint8_t* dst = stage + t * Shape::kRowBytes + chunk * 16;
        copy_async_16(dst, src, bytes);
        copy_async_16(dst + 16 * Shape::kRowBytes, src + a.kv_stride, bytes);
    }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void decode_tile(const AttentionArguments& a, const ItemView& v,
                                            const uint32_t (&q)[kHeadDim / 16][4], int token, const int (&position)[2],
                                            uint32_t stage, float (&maximum)[2], float (&sum)[2],
                                            float (&out)[kHeadDim / 8][4]) {
    float s[2][4] = {};
    score_16<T, kHeadDim>(s[0], s[1], q, stage);
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int at = token + n * 8 + lane % 4 * 2 + (c & 1);
            s[n][c] = is_seen(a, at, position[c >> 1], v.w.kv_end) ? scaled_score(a, s[n][c]) : kMinusInfinity;
        }
    }
    softmax_step<2, kHeadDim>(s, maximum, sum, out);
    const uint32_t p[4] = {pack_pair<T>(s[0][0], s[0][1]), pack_pair<T>(s[0][2], s[0][3]),
                           pack_pair<T>(s[1][0], s[1][1]), pack_pair<T>(s[1][2], s[1][3])};
    weigh_16<T, kHeadDim>(out, p, stage + 16 * TileShape<kHeadDim>::kRowBytes);
}

/// Sums the four warps' results into `total` [16][kHeadDim]; returns each row's maximum and sum through `stats`.
template <int kHeadDim>
__device__ __forceinline__ void merge_warps(float* total, float (*stats)[16][2], const float (&maximum)[2],
                                            float (&sum)[2], const float (&out)[kHeadDim / 8][4]) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (lane % 4 == 0) {
            stats[warp][lane / 4 + r * 8][0] = maximum[r];
            stats[warp][lane / 4 + r * 8][1] = sum[r];
        }
    }
    __syncthreads();
    float scale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most = kMinusInfinity;
        for (int w = 0; w < kDecodeWarps; ++w) most = fmaxf(most, stats[w][lane / 4 + r * 8][0]);
        scale[r] = exp2f(maximum[r] - most);
    }
    for (int w = 0; w < kDecodeWarps; ++w) {
        if (warp == w) {
#pragma unroll
            for (int d = 0; d < kHeadDim / 8; ++d) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    auto* at = reinterpret_cast<float2*>(total + (lane / 4 + r * 8) * kHeadDim + d * 8 + lane % 4 * 2);
                    float2 x = w == 0 ? make_float2(0, 0) : *at;
                    x.x += out[d][2 * r] * scale[r];
                    x.y += out[d][2 * r + 1] * scale[r];
                    *at = x;
                }
            }
        }
        __syncthreads();
    }
}

template <class T, int kHeadDim>
__device__ __forceinline__ void decode_finish(const AttentionArguments& a, const ItemView& v, const float* total,
                                              float (*stats)[16][2]) {
    for (int i = static_cast<int>(threadIdx.x); i < v.w.num_rows * (kHeadDim / 4); i += kDecodeThreads) {
        const int m = i / (kHeadDim / 4), column = i % (kHeadDim / 4) * 4;
        float most = kMinusInfinity, sum = 0;
        for (int w = 0; w < kDecodeWarps; ++w) most = fmaxf(most, stats[w][m][0]);
        for (int w = 0; w < kDecodeWarps; ++w) sum += stats[w][m][1] * exp2f(stats[w][m][0] - most);
        float4 x = *reinterpret_cast<const float4*>(total + m * kHeadDim + column);
        if (v.w.partial < 0) {
            const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
            write_output(a, v, m, kHeadDim, column,
                         make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse));
        } else {
            float* row = a.partials + (int64_t{v.w.partial} + m) * (kHeadDim + kPartialExtra);
            __stcg(reinterpret_cast<float4*>(row + column), x);
            if (column == 0) __stcg(reinterpret_cast<float2*>(row + kHeadDim), make_float2(most, sum));
        }
    }
    if (v.w.partial >= 0 && finishes_last(a, v)) combine_partials<kHeadDim, kDecodeThreads>(a, v, kDecodeRows);
}

/// The decode items of this block.
template <class T, int kHeadDim>
__device__ __forceinline__ void attend_decode(const AttentionArguments& a, uint8_t* memory, float (*stats)[16][2]) {
    constexpr int kStageBytes = 2 * 16 * TileShape<kHeadDim>::kRowBytes;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    uint8_t* ring = memory + warp * kDecodeStages * kStageBytes;
    auto* total = reinterpret_cast<float*>(memory + kDecodeWarps * kDecodeStages * kStageBytes);
    const int num_items = static_cast<int>(a.header->reserved);
    for (int item = static_cast<int>(blockIdx.x); item < num_items; item += static_cast<int>(gridDim.x)) {
        const ItemView v = view_item(a, item);
        const int tiles = (v.w.kv_end - v.w.kv_begin + 15) / 16;
        for (int i = 0; i < kDecodeStages - 1; ++i) {
            const int tile = warp + i * kDecodeWarps;
            if (tile < tiles) decode_load<kHeadDim>(a, v, v.w.kv_begin + tile * 16, ring + i * kStageBytes);
            copy_async_commit();
        }
        uint32_t q[kHeadDim / 16][4];
        load_queries<T, kHeadDim>(q, a, v, 0);
        const int position[2] = {v.position(lane / 4), v.position(lane / 4 + 8)};
        float out[kHeadDim / 8][4] = {}, maximum[2] = {kMinusInfinity, kMinusInfinity}, sum[2] = {0, 0};
        int stage = 0, load_stage = kDecodeStages - 1;
        for (int tile = warp; tile < tiles; tile += kDecodeWarps) {
            const int next = tile + (kDecodeStages - 1) * kDecodeWarps;
            copy_async_wait<kDecodeStages - 2>();
            __syncwarp();
            if (next < tiles) decode_load<kHeadDim>(a, v, v.w.kv_begin + next * 16, ring + load_stage * kStageBytes);
            copy_async_commit();
            decode_tile<T, kHeadDim>(a, v, q, v.w.kv_begin + tile * 16, position,
                                     shared_address(ring + stage * kStageBytes), maximum, sum, out);
            stage = stage + 1 == kDecodeStages ? 0 : stage + 1;
            load_stage = load_stage + 1 == kDecodeStages ? 0 : load_stage + 1;
        }
        copy_async_wait<0>();
        merge_warps<kHeadDim>(total, stats, maximum, sum, out);
        decode_finish<T, kHeadDim>(a, v, total, stats);
        __syncthreads();
    }
}

}   // namespace takt::cuda
