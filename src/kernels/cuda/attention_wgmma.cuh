// Prefill attention on Hopper: 128 packed query rows a block, two warpgroups of 64 rows; a producer warp gathers the cache's
// blocks by tensor copies into tiles of 128 tokens, three ahead. Scores of the next tile are computed while the last one's
// values are summed (wgmma runs asynchronously). Tiles lie at absolute multiples of 128 positions, so a row's sums do not
// depend on its slice.
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/ops_wgmma.cuh"

namespace takt::cuda {

constexpr int kWgmmaThreads = 384;
constexpr int kWgmmaConsumers = 256;
constexpr int kWgmmaTokens = 128;
constexpr int kWgmmaStages = 3;   // beside decodes, which fill the memory's queues, two make a tile 2.9 us for 2.2
constexpr bool kTakesTurns = true;   // the warpgroups' matrix work in turn, so that one's softmax runs under the other's

template <int kHeadDim>
struct WgmmaShape {
    static constexpr int kChunks = kHeadDim / 64;             // of 64 columns, 128 bytes
    static constexpr int kGroupBytes = kChunks * 1024;        // eight tokens
    static constexpr int kTileBytes = kWgmmaTokens / 8 * kGroupBytes;
    static constexpr int kQueryBytes = kChunks * 64 * 128;    // of one warpgroup: [chunk][64 rows][128 bytes]
    static constexpr int kSharedBytes = 2 * kQueryBytes + 2 * kWgmmaStages * kTileBytes;
};

struct WgmmaBarriers {
    uint64_t key_full[kWgmmaStages], key_empty[kWgmmaStages], value_full[kWgmmaStages], value_empty[kWgmmaStages];
};

/// A place in the ring and the parity of its turn.
struct RingPlace {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
        if (++stage == kWgmmaStages) {
            stage = 0;
            phase ^= 1u;
        }
    }
};

/// The block's item of a round: the direction alternates, so that long and short items even out.
__device__ __forceinline__ int prefill_item(const AttentionArguments& a, int round) {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    return static_cast<int>(a.header->reserved) + round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}
__device__ __forceinline__ int prefill_rounds(const AttentionArguments& a) {
    const int blocks = static_cast<int>(gridDim.x);
    return (a.header->num_work - static_cast<int>(a.header->reserved) + blocks - 1) / blocks;
}
__device__ __forceinline__ int item_tiles(const ItemView& v) {
    return (v.w.kv_end - v.w.kv_begin + kWgmmaTokens - 1) / kWgmmaTokens;
}

/// One warp: keys and values of all tiles of the block's items.
template <int kHeadDim>
__device__ __forceinline__ void wgmma_produce(const AttentionArguments& a, const CUtensorMap& map, uint8_t* keys,
                                              uint8_t* values, WgmmaBarriers& bars) {
    using Shape = WgmmaShape<kHeadDim>;
    const int lane = static_cast<int>(threadIdx.x) % 32, groups = a.block_tokens / 8;
    const int rows_a_block = static_cast<int>(a.block_stride / (kHeadDim * 2)), block_bytes = a.block_tokens * kHeadDim * 2;
    const int value_rows = static_cast<int>(a.kv_stride / (kHeadDim * 2));
    bool waited = false;
    RingPlace place;
    for (int round = 0; round < prefill_rounds(a); ++round) {
        const int item = prefill_item(a, round);
        if (item >= a.header->num_work) continue;
        const ItemView v = view_item(a, item);
        const int32_t* table = a.block_ids + v.s.table_begin;
        const int tiles = item_tiles(v);
        for (int tile = 0; tile < tiles; ++tile, place.next()) {
            const int token = v.w.kv_begin + tile * kWgmmaTokens, tokens = min(kWgmmaTokens, v.w.kv_end - token);
            const int blocks = (tokens + a.block_tokens - 1) / a.block_tokens;
            const bool loads = lane < blocks;
            const int row = loads ? table[token / a.block_tokens + lane] * rows_a_block + v.w.kv_head * a.block_tokens : 0;
            const int at = place.stage * Shape::kTileBytes + lane * groups * Shape::kGroupBytes;
            if (!waited && token + tokens > v.s.position_begin) {   // what earlier steps wrote may come before
                wait_for_predecessors();
                waited = true;
            }
            barrier_wait(&bars.key_empty[place.stage], place.phase ^ 1u);
            if (lane == 0) barrier_expect(&bars.key_full[place.stage], static_cast<uint32_t>(blocks * block_bytes));
            __syncwarp();
            if (loads) tensor_load_4d(keys + at, &map, &bars.key_full[place.stage], 0, 0, 0, row / 8);
            barrier_wait(&bars.value_empty[place.stage], place.phase ^ 1u);
            if (lane == 0) barrier_expect(&bars.value_full[place.stage], static_cast<uint32_t>(blocks * block_bytes));
            __syncwarp();
            if (loads) tensor_load_4d(values + at, &map, &bars.value_full[place.stage], 0, 0, 0, (row + value_rows) / 8);
        }
    }
}

/// 64 packed rows from m0 on into shared memory as a K-major operand; rows past the item are zero. A thread has one chunk of every
/// eighth row (sixteenth at head dimension 64), all on the way at once; where the next row lies follows from the last without a division.
template <class T, int kHeadDim>
__device__ __forceinline__ void wgmma_load_queries(const AttentionArguments& a, const ItemView& v, int m0, int thread, uint8_t* to) {
    constexpr int kChunks = kHeadDim / 8, kStep = 128 / kChunks, kLoads = 64 / kStep;
    const int chunk = thread % kChunks, first = thread / kChunks;
    int row = v.row(m0 + first), head = (v.w.row_begin + m0 + first) % a.group;
    const int rows_on = kStep / a.group, heads_on = kStep % a.group;
    const __nv_bfloat16* const base = a.q + static_cast<int64_t>(v.w.kv_head) * a.group * kHeadDim + chunk * 8;
    uint4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        x[i] = make_uint4(0, 0, 0, 0);
        if (m0 + first + i * kStep < v.w.num_rows)
            x[i] = __ldcg(reinterpret_cast<const uint4*>(base + (static_cast<int64_t>(row) * a.num_heads + head) * kHeadDim));
        row += rows_on;
        head += heads_on;
        if (head >= a.group) {
            head -= a.group;
            ++row;
        }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        if constexpr (!std::is_same_v<T, __nv_bfloat16>) {
            uint32_t* pairs[4] = {&x[i].x, &x[i].y, &x[i].z, &x[i].w};
#pragma unroll
            for (uint32_t* pair : pairs) {
                const float2 f = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(pair));
                *pair = pack_pair<T>(f.x, f.y);
            }
        }
        const int m = first + i * kStep;
        *reinterpret_cast<uint4*>(to + chunk / 8 * 8192 + m * 128 + ((chunk % 8) ^ (m & 7)) * 16) = x[i];
    }
    shared_proxy_fence();
}

/// scores = q k^T over 128 tokens; starts, does not wait.
template <class T, int kHeadDim>
__device__ __forceinline__ void wgmma_scores(float (&s)[16][4], uint64_t queries, uint32_t tile) {
    const uint64_t keys = operand_descriptor(tile, 16, WgmmaShape<kHeadDim>::kGroupBytes);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
        wgmma_shared<T>(s, advanced(queries, k / 4 * 8192 + k % 4 * 32), advanced(keys, k / 4 * 1024 + k % 4 * 32), k == 0 ? 0 : 1);
    }
    wgmma_commit();
}

/// out += p v over 128 tokens; starts, does not wait.
template <class T, int kHeadDim>
__device__ __forceinline__ void wgmma_weigh(float (&out)[kHeadDim / 8][4], const uint32_t (&p)[8][4], uint32_t tile) {
    using Shape = WgmmaShape<kHeadDim>;
    const uint64_t values = operand_descriptor(tile, 1024, Shape::kGroupBytes);
#pragma unroll
    for (int k = 0; k < 8; ++k) wgmma_registers<T>(out, p[k], advanced(values, k * 2 * Shape::kGroupBytes));
    wgmma_commit();
}

template <class T>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[8][4], const float (&s)[16][4]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        p[k][0] = pack_pair<T>(s[2 * k][0], s[2 * k][1]);
        p[k][1] = pack_pair<T>(s[2 * k][2], s[2 * k][3]);
        p[k][2] = pack_pair<T>(s[2 * k + 1][0], s[2 * k + 1][1]);
        p[k][3] = pack_pair<T>(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
}

/// Values of tokens past the item's end: zero, since whatever memory holds there times a zero weight may be no number.
template <int kHeadDim>
__device__ __forceinline__ void clear_values(uint8_t* tile, int tokens) {
    using Shape = WgmmaShape<kHeadDim>;
    named_barrier(3, kWgmmaConsumers);
    const int thread = static_cast<int>(threadIdx.x) - 128, all = (kWgmmaTokens - tokens) * (kHeadDim / 8);
    for (int i = thread; i < all; i += kWgmmaConsumers) {
        const int t = tokens + i / (kHeadDim / 8), chunk = i % (kHeadDim / 8);
        *reinterpret_cast<uint4*>(tile + t / 8 * Shape::kGroupBytes + chunk / 8 * 1024 + t % 8 * 128 + chunk % 8 * 16) =
            make_uint4(0, 0, 0, 0);
    }
    shared_proxy_fence();
    named_barrier(3, kWgmmaConsumers);
}

/// One warpgroup's 64 rows of an item: all tiles.
template <class T, int kHeadDim>
__device__ __forceinline__ void wgmma_item(const AttentionArguments& a, const ItemView& v, int m0, uint64_t queries, uint8_t* keys,
                                           uint8_t* values, WgmmaBarriers& bars, RingPlace& place) {
    using Shape = WgmmaShape<kHeadDim>;
    const int lane = static_cast<int>(threadIdx.x) % 32, mine = m0 + static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const int tiles = item_tiles(v), group = m0 / 64;
    SoftmaxRows rows(a, v, mine + lane / 4, m0, 64);
    const auto token_of = [&](int tile) { return v.w.kv_begin + tile * kWgmmaTokens; };
    const auto key_tile = [&](const RingPlace& p) { return shared_address(keys + p.stage * Shape::kTileBytes); };
    float out[kHeadDim / 8][4] = {}, s[16][4] = {};
    uint32_t p[8][4];
    barrier_wait(&bars.key_full[place.stage], place.phase);
    wgmma_fence();
    wgmma_scores<T, kHeadDim>(s, queries, key_tile(place));
    wgmma_wait<0>();
    pin(s);
    if (lane == 0) barrier_arrive(&bars.key_empty[place.stage]);
    rows.step(a, s, token_of(0));
    pack_weights<T>(p, s);
    for (int tile = 1; tile < tiles; ++tile) {
        const RingPlace before = place;
        place.next();
        barrier_wait(&bars.key_full[place.stage], place.phase);
        pin(s);
        if (kTakesTurns) named_barrier(4 + group, kWgmmaConsumers);
        wgmma_fence();
        wgmma_scores<T, kHeadDim>(s, queries, key_tile(place));
        barrier_wait(&bars.value_full[before.stage], before.phase);
        pin(out);
        wgmma_fence();
        wgmma_weigh<T, kHeadDim>(out, p, shared_address(values + before.stage * Shape::kTileBytes));
        if (kTakesTurns) named_barrier_arrive(4 + (group ^ 1), kWgmmaConsumers);
        wgmma_wait<1>();
        pin(s);
        if (lane == 0) barrier_arrive(&bars.key_empty[place.stage]);
        rows.step(a, s, token_of(tile));
        wgmma_wait<0>();
        pin(out);
        if (lane == 0) barrier_arrive(&bars.value_empty[before.stage]);
        rows.shrink(out);
        pack_weights<T>(p, s);
    }
    barrier_wait(&bars.value_full[place.stage], place.phase);
    const int tokens = v.w.kv_end - v.w.kv_begin - (tiles - 1) * kWgmmaTokens;
    if (tokens < kWgmmaTokens) clear_values<kHeadDim>(values + place.stage * Shape::kTileBytes, tokens);
    pin(out);
    wgmma_fence();
    wgmma_weigh<T, kHeadDim>(out, p, shared_address(values + place.stage * Shape::kTileBytes));
    wgmma_wait<0>();
    pin(out);
    if (lane == 0) barrier_arrive(&bars.value_empty[place.stage]);
    place.next();
    store_prefill<kHeadDim>(a, v, mine, rows, out);
}

/// The blocks of a split result wait for each other and combine a share of its rows each, from copies in shared memory and by short
/// loops: it runs once, and straight code waits for itself. Only where every block has one item at most: then all of them run or
/// will run whatever the others do (blocks of later kernels start after all of this one's), and `memory` is free.
template <int kHeadDim, class Sync>
__device__ __forceinline__ void combine_together(const AttentionArguments& a, const ItemView& v, int item, int thread, uint8_t* memory,
                                                 Sync sync) {
    constexpr int kStride = kHeadDim + kPartialExtra, kColumns = kHeadDim / 4;
    const int splits = static_cast<int>(static_cast<uint32_t>(v.w.group) >> kSplitShift),
              first = v.w.group & ((1 << kSplitShift) - 1), part = item - first;
    const int begin = v.w.num_rows * part / splits, rows = v.w.num_rows * (part + 1) / splits - begin, floats = rows * kStride;
    int32_t* count = &a.work[first].segment;   // in its upper half: blocks that have stored, then also those that are done
    const float* from = a.partials + (int64_t{v.w.partial} - part * kPrefillRows + begin) * kStride;   // parts lie side by side
    auto* const parts = reinterpret_cast<float*>(memory);   // [part][row], then weights [row][part]
    float* const weights = parts + splits * floats;
    sync();
    if (thread == 0) {
        __threadfence();
        atomicAdd(count, 1 << 16);
        while ((*static_cast<volatile int32_t*>(count) >> 16) < splits) {}
        __threadfence();
    }
    sync();
#pragma unroll 1
    for (int s = 0; s < splits; ++s) {
#pragma unroll 2
        for (int i = thread * 4; i < floats; i += kWgmmaConsumers * 4)
            copy_async_16(parts + s * floats + i, from + s * (kPrefillRows * kStride) + i, 16);
    }
    copy_async_commit();
    copy_async_wait<0>();
    sync();
    if (thread < rows) {
        const float* const stats = parts + thread * kStride + kHeadDim;
        float* const mine = weights + thread * splits;
        float most = kMinusInfinity, total = 0;
#pragma unroll 1
        for (int s = 0; s < splits; ++s) most = fmaxf(most, stats[s * floats]);
#pragma unroll 1
        for (int s = 0; s < splits; ++s) {
            mine[s] = power_of_two(stats[s * floats] - most);
            total += mine[s] * stats[s * floats + 1];
        }
        const float inverse = total > 0 ? __fdividef(1.0f, total) : 0.0f;
#pragma unroll 1
        for (int s = 0; s < splits; ++s) mine[s] *= inverse;
    }
    sync();
#pragma unroll 1
    for (int i = thread; i < rows * kColumns; i += kWgmmaConsumers) {
        const int row = i / kColumns, column = i % kColumns * 4;
        float4 sum = {};
#pragma unroll 1
        for (int s = 0; s < splits; ++s) {
            const float4 x = *reinterpret_cast<const float4*>(parts + s * floats + row * kStride + column);
            const float w = weights[row * splits + s];
            sum = make_float4(sum.x + w * x.x, sum.y + w * x.y, sum.z + w * x.z, sum.w + w * x.w);
        }
        write_output(a, v, begin + row, kHeadDim, column, sum);
    }
    if (thread == 0 && atomicAdd(count, 1 << 16) >> 16 == 2 * splits - 1) atomicAnd(count, 0xffff);
}

template <class T, int kHeadDim>
__device__ __forceinline__ void wgmma_consume(const AttentionArguments& a, uint8_t* memory, uint8_t* keys, uint8_t* values,
                                              WgmmaBarriers& bars) {
    using Shape = WgmmaShape<kHeadDim>;
    const int thread = static_cast<int>(threadIdx.x) - 128, group = warp_uniform(thread / 128);
    uint8_t* queries = memory + group * Shape::kQueryBytes;
    const auto sync = [] { named_barrier(3, kWgmmaConsumers); };
    RingPlace place;
    const int rounds = prefill_rounds(a);
    if (kTakesTurns && group == 1) named_barrier_arrive(4, kWgmmaConsumers);   // the first turn is group 0's
    for (int round = 0; round < rounds; ++round) {
        const int item = prefill_item(a, round);
        if (item >= a.header->num_work) continue;
        const ItemView v = view_item(a, item);
        if (round == 0) {   // the step's input is read before the wait, queries after it
            wait_for_predecessors();
            dependents_may_launch();
        }
        named_barrier(1 + group, 128);   // the last item's queries have been read
        wgmma_load_queries<T, kHeadDim>(a, v, group * 64, thread % 128, queries);
        named_barrier(1 + group, 128);
        wgmma_item<T, kHeadDim>(a, v, group * 64, operand_descriptor(shared_address(queries), 16, 1024), keys, values, bars, place);
        if (v.w.partial >= 0 && rounds == 1) {
            combine_together<kHeadDim>(a, v, item, thread, memory, sync);
        } else if (v.w.partial >= 0 && finishes_last(a, v, thread == 0, sync)) {
            combine_partials<kHeadDim, kWgmmaConsumers>(a, v, thread, kPrefillRows, 0, v.w.num_rows,
                                                        reinterpret_cast<float*>(memory), sync);
        }
        if (v.w.partial >= 0) sync();   // the weights of the combination lie where queries do
    }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    attention_wgmma_kernel(const __grid_constant__ CUtensorMap map, const AttentionArguments a) {
    using Shape = WgmmaShape<kHeadDim>;
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ WgmmaBarriers bars;
    if (leaves_without_items(a, prefill_item(a, 0))) return;
    uint8_t *keys = memory + 2 * Shape::kQueryBytes, *values = keys + kWgmmaStages * Shape::kTileBytes;
    if (threadIdx.x == 0) {
        for (int i = 0; i < kWgmmaStages; ++i) {
            barrier_init(&bars.key_full[i], 1);
            barrier_init(&bars.value_full[i], 1);
            barrier_init(&bars.key_empty[i], kWgmmaConsumers / 32);
            barrier_init(&bars.value_empty[i], kWgmmaConsumers / 32);
        }
        barrier_fence_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x < 32) wgmma_produce<kHeadDim>(a, map, keys, values, bars);
    } else {
        take_registers<232>();
        wgmma_consume<T, kHeadDim>(a, memory, keys, values, bars);
    }
}

}   // namespace takt::cuda
