// Decode attention: a block of four or eight warps an item, the warps take 16-token tiles in turn, each with its own ring of
// asynchronous copies and its own softmax, so that nothing synchronises until the item ends. A warp's copies run ahead of
// its arithmetic over the ends of items, and start before the previous kernel has ended where this step writes nothing.
// Query heads of one KV head fill the MMA's rows.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_tile.cuh"

namespace takt::cuda {

constexpr int kDecodeWarps = 4, kFullDecodeWarps = 8;   // the latter where a block has a multiprocessor to itself
template <int kHeadDim>
constexpr int kDecodeStages = kHeadDim > 128 ? 2 : 3;

template <int kHeadDim, int kWarps>
struct DecodeShape {
    static constexpr int kStageBytes = 2 * 16 * TileShape<kHeadDim>::kRowBytes;
    static constexpr int kRingBytes = kWarps * kDecodeStages<kHeadDim> * kStageBytes;
    static constexpr int kPartBytes = kWarps * 8 * kHeadDim * 4;   // eight rows of each warp
    /// Column of a row in the warps' parts: rows of neighbouring lanes in different banks.
    static __device__ __forceinline__ int column(int row, int at) {
        return kHeadDim % 32 == 0 ? at ^ ((row & 3) << 3) : at;
    }
};
template <int kHeadDim, int kWarps>
constexpr size_t decode_shared_bytes() {
    return DecodeShape<kHeadDim, kWarps>::kRingBytes + DecodeShape<kHeadDim, kWarps>::kPartBytes;
}

/// The decode items of this block in order (attention_plan.h): first those of the blocks that start beside prefill items, then all
/// blocks'. kIsSmall: a small step, which has no prefill items.
template <bool kIsSmall>
struct DecodeItems {
    int count, early = 0, blocks = 0;   // all items; those of the early blocks, and how many these are
    __device__ __forceinline__ explicit DecodeItems(const AttentionArguments& a) {
        const int64_t plan = a.header->reserved;
        count = static_cast<int>(plan);
        if constexpr (kIsSmall) return;
        early = static_cast<int>(plan >> kEarlyItemsShift);
        blocks = static_cast<int>(plan >> kBlocksShift) & kBlocksMask;
    }
    [[nodiscard]] __device__ __forceinline__ int first() const {
        const int block = static_cast<int>(blockIdx.x);
        return block < min(early, blocks) ? block : early + block;
    }
    [[nodiscard]] __device__ __forceinline__ int after(int item) const {
        if (kIsSmall || item >= early) return item + static_cast<int>(gridDim.x);
        return item + blocks < early ? item + blocks : early + static_cast<int>(blockIdx.x);
    }
};

/// The tiles of one warp in the order in which it loads them.
template <int kHeadDim, int kWarps, bool kIsSmall>
struct DecodeLoader {
    const AttentionArguments& a;
    const DecodeItems<kIsSmall>& items;
    int item, tile = 0, tiles = 0, ids_begin = 0;
    int kv_begin = 0, kv_end = 0, fresh = 0;   // fresh: first position that this step writes
    const int32_t* table = nullptr;
    const uint8_t* head = nullptr;
    uint32_t places[2] = {0, 0};   // of lane i: where the halves of the warp's i-th tile from ids_begin on lie, in 16 bytes

    __device__ __forceinline__ DecodeLoader(const AttentionArguments& arguments, const DecodeItems<kIsSmall>& of_block)
        : a(arguments), items(of_block), item(of_block.first()) {
        enter();
    }
    [[nodiscard]] __device__ __forceinline__ bool done() const { return item >= items.count; }
    [[nodiscard]] __device__ __forceinline__ bool next_is_old() const { return kv_begin + tile * 16 + 16 <= fresh; }
    /// Goes to the next item that has a tile for this warp, from `item` on.
    __device__ __forceinline__ void enter() {
        for (; item < items.count; item = items.after(item)) {
            const ItemView v = view_item(a, item);
            kv_begin = v.w.kv_begin;
            kv_end = v.w.kv_end;
            fresh = v.s.position_begin;
            table = a.block_ids + v.s.table_begin;
            head = a.kv_layer + v.w.kv_head * a.head_stride;
            tiles = (kv_end - kv_begin + 15) / 16;
            tile = static_cast<int>(threadIdx.x) / 32;
            if (tile >= tiles) continue;
            take_ids();
            return;
        }
    }
    __device__ __forceinline__ void take_ids() {
        ids_begin = tile;
        const int lane = static_cast<int>(threadIdx.x) % 32, from = kv_begin + (tile + lane * kWarps) * 16;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int at = min(from + half * 8, kv_end - 1), block = at / a.block_tokens;
            places[half] = static_cast<uint32_t>((table[block] * a.block_stride +
                                                  (from + half * 8 - block * a.block_tokens) * int64_t{kHeadDim * 2}) / 16);
        }
    }
    template <bool kEnds>
    __device__ __forceinline__ void copy(uint8_t* stage, const uint8_t* const (&from)[2], int left) const {
        using Shape = TileShape<kHeadDim>;
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int i = lane; i < 16 * Shape::kChunks; i += 32) {
            const int t = i / Shape::kChunks, chunk = i % Shape::kChunks;
            const uint8_t* src = (t < 8 ? from[0] : from[1]) + (t % 8) * (kHeadDim * 2) + chunk * 16;
            const int bytes = !kEnds || t < left ? 16 : 0;
            uint8_t* dst = stage + Shape::offset(t, chunk);
            copy_async_16(dst, src, bytes);
            copy_async_16(dst + 16 * Shape::kRowBytes, src + a.kv_stride, bytes);
        }
    }
    /// Starts the copies of the next tile's keys and values; tokens past the item's end become zeros.
    __device__ __forceinline__ void load(uint8_t* stage) {
        if (tile - ids_begin >= 32 * kWarps) take_ids();
        const int which = (tile - ids_begin) / kWarps, left = kv_end - kv_begin - tile * 16;
        const uint8_t* from[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            from[half] = head + static_cast<uint64_t>(__shfl_sync(0xffffffffu, places[half], which)) * 16;
        if (left >= 16) {
            copy<false>(stage, from, left);
        } else {
            copy<true>(stage, from, left);
        }
        tile += kWarps;
        if (tile >= tiles) {
            item = items.after(item);
            enter();
        }
    }
};

using DecodeScores = float[2][4];   // of 16 tokens

template <class T, int kHeadDim>
__device__ __forceinline__ void decode_scores(const uint32_t (&q)[kHeadDim / 16][4], uint32_t stage, DecodeScores& s) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[n][c] = 0;
    }
    score_16<T, kHeadDim>(s[0], s[1], q, stage);
}

/// Softmax of a tile's scores and its values' share of the sums.
template <class T, int kHeadDim>
__device__ __forceinline__ void decode_values(const AttentionArguments& a, DecodeScores& s, int token, uint32_t stage, SoftmaxRows& rows,
                                              float (&out)[kHeadDim / 8][4]) {
    rows.step(a, s, token);
    if (__any_sync(0xffffffffu, rows.scale[0] != 1.0f || rows.scale[1] != 1.0f)) rows.shrink(out);
    const uint32_t p[4] = {pack_pair<T>(s[0][0], s[0][1]), pack_pair<T>(s[0][2], s[0][3]),
                           pack_pair<T>(s[1][0], s[1][1]), pack_pair<T>(s[1][2], s[1][3])};
    weigh_16<T, kHeadDim>(out, p, stage + 16 * TileShape<kHeadDim>::kRowBytes);
}

/// The warps' sums of rows [8 r, 8 r + 8), each already scaled, to the output or to the item's partial result.
template <int kHeadDim, int kWarps>
__device__ __forceinline__ void store_rows(const AttentionArguments& a, const ItemView& v, int r, const float* parts,
                                           const float (*stats)[16][2]) {
    const int count = min(8, v.w.num_rows - r * 8);
    for (int i = static_cast<int>(threadIdx.x); i < count * (kHeadDim / 4); i += kWarps * 32) {
        const int row = i / (kHeadDim / 4), column = i % (kHeadDim / 4) * 4, m = r * 8 + row;
        float most = kMinusInfinity, sum = 0;
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) most = fmaxf(most, stats[w][m][0]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            sum += stats[w][m][1] * power_of_two(stats[w][m][0] - most);
            const float4 y = *reinterpret_cast<const float4*>(parts + (w * 8 + row) * kHeadDim +
                                                              DecodeShape<kHeadDim, kWarps>::column(row, column));
            x = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        }
        if (v.w.partial < 0) {
            const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
            write_output(a, v, m, kHeadDim, column, make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse));
        } else {
            float* to = a.partials + (int64_t{v.w.partial} + m) * (kHeadDim + kPartialExtra);
            __stcg(reinterpret_cast<float4*>(to + column), x);
            if (column == 0) __stcg(reinterpret_cast<float2*>(to + kHeadDim), make_float2(most, sum));
        }
    }
}

/// Merges the warps' results of an item; the block that finishes a split result last combines its parts.
template <int kHeadDim, int kWarps>
__device__ __forceinline__ void decode_finish(const AttentionArguments& a, const ItemView& v, float* parts,
                                              float (*stats)[16][2], SoftmaxRows& rows,
                                              const float (&out)[kHeadDim / 8][4]) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const auto sync = [] { __syncthreads(); };
    rows.finish();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (lane % 4 == 0) {
            stats[warp][lane / 4 + r * 8][0] = rows.maximum[r];
            stats[warp][lane / 4 + r * 8][1] = rows.sum[r];
        }
    }
    sync();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (r == 1 && v.w.num_rows <= 8) break;
        if (r == 1) sync();
        float most = kMinusInfinity;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) most = fmaxf(most, stats[w][lane / 4 + r * 8][0]);
        const float scale = power_of_two(rows.maximum[r] - most);
        float* row = parts + (warp * 8 + lane / 4) * kHeadDim;
#pragma unroll
        for (int d = 0; d < kHeadDim / 8; ++d) {
            *reinterpret_cast<float2*>(row + DecodeShape<kHeadDim, kWarps>::column(lane / 4, d * 8 + lane % 4 * 2)) =
                make_float2(out[d][2 * r] * scale, out[d][2 * r + 1] * scale);
        }
        sync();
        store_rows<kHeadDim, kWarps>(a, v, r, parts, stats);
    }
    if (v.w.partial >= 0 && finishes_last(a, v, threadIdx.x == 0, sync))
        combine_partials<kHeadDim, kWarps * 32>(a, v, static_cast<int>(threadIdx.x), kDecodeRows, 0, v.w.num_rows, parts, sync);
    sync();
}

/// A warp's tiles of an item. kAhead: the next tile's scores are on their way while this one's softmax waits for itself; takes more
/// registers.
template <class T, int kHeadDim, int kWarps, bool kAhead, bool kIsSmall>
__device__ __forceinline__ void decode_tiles(const AttentionArguments& a, const ItemView& v, const uint32_t (&q)[kHeadDim / 16][4],
                                             DecodeLoader<kHeadDim, kWarps, kIsSmall>& loader, uint8_t* ring, int& stage, SoftmaxRows& rows,
                                             float (&out)[kHeadDim / 8][4]) {
    constexpr int kStages = kDecodeStages<kHeadDim>, kStageBytes = DecodeShape<kHeadDim, kWarps>::kStageBytes;
    const int warp = static_cast<int>(threadIdx.x) / 32, tiles = (v.w.kv_end - v.w.kv_begin + 15) / 16;
    DecodeScores scores, next_scores;
    const auto ready = [&](auto pending) {
        copy_async_wait<decltype(pending)::value>();
        __syncwarp();
    };
    if (kAhead && warp < tiles) {
        ready(std::integral_constant<int, kStages - 1>{});
        decode_scores<T, kHeadDim>(q, shared_address(ring + stage * kStageBytes), scores);
    }
    for (int tile = warp; tile < tiles; tile += kWarps) {
        const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
        if constexpr (kAhead) {
            if (tile + kWarps < tiles) {
                ready(std::integral_constant<int, kStages - 2>{});
                decode_scores<T, kHeadDim>(q, shared_address(ring + next_stage * kStageBytes), next_scores);
            }
        } else {
            ready(std::integral_constant<int, kStages - 1>{});
            decode_scores<T, kHeadDim>(q, shared_address(ring + stage * kStageBytes), scores);
        }
        decode_values<T, kHeadDim>(a, scores, v.w.kv_begin + tile * 16, shared_address(ring + stage * kStageBytes), rows, out);
        __syncwarp();
        if (!loader.done()) loader.load(ring + stage * kStageBytes);
        copy_async_commit();
        stage = next_stage;
        if constexpr (kAhead) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
                for (int c = 0; c < 4; ++c) scores[n][c] = next_scores[n][c];
            }
        }
    }
}

/// The decode items of this block.
template <class T, int kHeadDim, int kWarps, bool kAhead, bool kIsSmall>
__device__ __forceinline__ void attend_decode(const AttentionArguments& a, uint8_t* memory, float (*stats)[16][2]) {
    constexpr int kStages = kDecodeStages<kHeadDim>, kStageBytes = DecodeShape<kHeadDim, kWarps>::kStageBytes;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    uint8_t* ring = memory + warp * kStages * kStageBytes;
    auto* parts = reinterpret_cast<float*>(memory + DecodeShape<kHeadDim, kWarps>::kRingBytes);
    const DecodeItems<kIsSmall> items(a);
    const int first = items.first();
    // Beside prefill items this kernel was started when all that they wait for was done; see attention_kernel.cuh.
    const bool beside_prefill = a.header->num_work > items.count;
    DecodeLoader<kHeadDim, kWarps, kIsSmall> loader(a, items);
    if (!loader.done()) prefetch_global(&a.work[a.work[first].group & ((1 << kSplitShift) - 1)].segment);   // its count
    bool waits = !beside_prefill;
    const auto wait = [&] {
        if (waits) wait_for_predecessors();
        waits = false;
    };
#pragma unroll 1
    for (int ahead = 0; ahead < kStages; ++ahead) {
        if (!loader.done()) {
            if (!loader.next_is_old()) wait();
            loader.load(ring + ahead * kStageBytes);
        }
        copy_async_commit();
    }
    wait();
    if (a.alone && first >= items.count) {
        dependents_may_launch();
        return linger(6000);
    }
    int stage = 0;
    for (int item = first; item < items.count;) {
        const ItemView v = view_item(a, item);
        uint32_t q[kHeadDim / 16][4];
        load_queries<T, kHeadDim>(q, a, v, 0);
        SoftmaxRows rows(a, v, lane / 4, 0, 16);
        float out[kHeadDim / 8][4] = {};
        decode_tiles<T, kHeadDim, kWarps, kAhead>(a, v, q, loader, ring, stage, rows, out);
        // Only now: the next kernel's stream of weights would hold up the few reads that this one waits for.
        item = items.after(item);
        if (a.alone && item >= items.count) dependents_may_launch();
        decode_finish<kHeadDim, kWarps>(a, v, parts, stats, rows, out);
    }
    // Who waits for this kernel waits for the prefill items too.
    if (beside_prefill && blockIdx.x == 0) wait_for_predecessors();
}

}   // namespace takt::cuda
