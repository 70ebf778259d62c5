// The kernel of qkv_split.h: gemm_split_kernel.cuh's product with another order of columns and another end. A tile is made of units of 32
// columns: 16 of a head's first half and the 16 of its second half that rotate with them. Angles, bias and places in the cache are made
// while the first weights are on their way, before the predecessor has ended.
#pragma once

#include "kernels/cuda/gemm_split_kernel.cuh"
#include "kernels/cuda/qkv_split_launch.h"
#include "kernels/cuda/rope_turn.cuh"

namespace takt::cuda {

constexpr int kUnitPairs = 16, kUnitColumns = 2 * kUnitPairs;

/// Where a unit lies: a head and the first of its pairs there. Units past the last head lie in heads past it.
struct QkvUnit {
    int head, pair;
    __device__ __forceinline__ QkvUnit(const QkvEnd& e, int unit) {
        const int of_head = e.head_dim / kUnitColumns;
        head = unit / of_head;
        pair = unit % of_head * kUnitPairs;
    }
};

/// Four pairs of a row of the tile: item i of a block's share of the rows.
template <int kColumns>
struct QkvItem {
    static constexpr int kFours = kColumns / 8;   // of a row
    int row, column, head, pair;                  // row and first column of the tile; the pairs' y lie kUnitPairs columns on
    __device__ __forceinline__ QkvItem(const QkvEnd& e, const SplitWork& w, int first, int i) {
        const int four = i % kFours, unit = four / (kUnitPairs / 4), within = four % (kUnitPairs / 4) * 4;
        const QkvUnit place(e, w.column0 / kUnitColumns + unit);
        row = first + i / kFours;
        column = unit * kUnitColumns + within;
        head = place.head;
        pair = place.pair + within;
    }
    [[nodiscard]] __device__ __forceinline__ bool is_real(const QkvEnd& e) const { return head < e.num_heads + 2 * e.num_kv_heads; }
    [[nodiscard]] __device__ __forceinline__ bool turns(const QkvEnd& e) const { return e.has_rope && head < e.num_heads + e.num_kv_heads; }
};

/// The rows that a block finishes.
struct QkvShare {
    int first, count;
    __device__ __forceinline__ explicit QkvShare(const SplitWork& w)
        : first(w.count * w.rank / w.splits), count(w.count * (w.rank + 1) / w.splits - first) {}
};

template <int kGroups, int kColumns>
__device__ __forceinline__ void qkv_produce(const CUtensorMap& weights, const CUtensorMap& x, const GemmSplitArguments& a, const QkvEnd& e,
                                            const SplitWork& w, SplitRing ring) {
    constexpr int kUnits = kColumns / kUnitColumns;
    const uint64_t policy = a.rows <= SplitShape<kGroups, kColumns>::kRows ? kEvictFirst : kEvictLast;
    int heads[kUnits], pairs[kUnits];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
        const QkvUnit place(e, w.column0 / kUnitColumns + u);
        heads[u] = place.head;
        pairs[u] = place.pair;
    }
    split_fill<kGroups, kColumns>(x, w, ring, [&](uint8_t* to, uint64_t* full, int k) {
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
            tensor_load_5d(to + u * kUnitColumns * kSplitRowBytes, &weights, full, 0, pairs[u], 0, heads[u], k, policy);
    });
}

/// Sines and cosines of this thread's items, into its own places: nobody else reads them.
template <int kGroups, int kColumns>
__device__ __forceinline__ void qkv_turns(const GemmSplitArguments& a, const QkvEnd& e, const SplitWork& w, float* turns) {
    const QkvShare share(w);
    const int all = share.count * QkvItem<kColumns>::kFours;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < all; i += SplitShape<kGroups, kColumns>::kConsumers) {
        const QkvItem<kColumns> item(e, w, share.first, i);
        if (!item.turns(e)) continue;
        const auto position = static_cast<float>(e.rows[a.first_row + w.row0 + item.row].position);
        const float4 frequency = __ldg(reinterpret_cast<const float4*>(e.inverse_frequencies + item.pair));
        const float2 t0 = sine_and_cosine(position, frequency.x), t1 = sine_and_cosine(position, frequency.y),
                     t2 = sine_and_cosine(position, frequency.z), t3 = sine_and_cosine(position, frequency.w);
        *reinterpret_cast<float4*>(turns + i * 8) = make_float4(t0.x, t1.x, t2.x, t3.x);
        *reinterpret_cast<float4*>(turns + i * 8 + 4) = make_float4(t0.y, t1.y, t2.y, t3.y);
    }
}

__device__ __forceinline__ uint2 qkv_pack(float4 v, bool is_f16) {
    return is_f16 ? make_uint2(pack_pair<__half>(v.x, v.y), pack_pair<__half>(v.z, v.w))
                  : make_uint2(pack_pair<__nv_bfloat16>(v.x, v.y), pack_pair<__nv_bfloat16>(v.z, v.w));
}

/// Where a head of a row lies: in q, or in the cache block of the row's slot.
__device__ __forceinline__ uint16_t* qkv_place(const QkvEnd& e, int64_t row, int head, int slot) {
    if (head < e.num_heads) return reinterpret_cast<uint16_t*>(e.q + (row * e.num_heads + head) * e.head_dim);
    const bool is_v = head >= e.num_heads + e.num_kv_heads;
    return reinterpret_cast<uint16_t*>(e.kv_layer + slot / e.block_tokens * e.block_stride + (is_v ? e.kv_stride : 0) +
                                       (head - e.num_heads - (is_v ? e.num_kv_heads : 0)) * e.head_stride +
                                       static_cast<int64_t>(slot % e.block_tokens) * e.head_dim * 2);
}

/// All blocks' parts of four columns.
__device__ __forceinline__ float4 qkv_sum(const float* sums, int at, int splits) {
    const uint32_t from = shared_address(sums + at);
    float4 part[4], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        if (s < splits) part[s] = load_from_block(from, static_cast<uint32_t>(s));
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        if (s < splits) sum = make_float4(sum.x + part[s].x, sum.y + part[s].y, sum.z + part[s].z, sum.w + part[s].w);
    }
    return sum;
}

/// Lays this block's part down, adds all blocks' parts of its share of the rows and finishes these. All consumers of all blocks of the
/// cluster.
template <int kGroups, int kColumns>
__device__ __forceinline__ void qkv_finish(const GemmSplitArguments& a, const QkvEnd& e, const float (&acc)[kColumns / 8][4],
                                           const SplitWork& w, float* sums, const float* turns, const float* bias, const int* slots) {
    using Shape = SplitShape<kGroups, kColumns>;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    named_barrier(1, Shape::kConsumers);   // all products are done with the ring; bias and slots are there
    float* row = sums + (thread / 32 * 16 + lane / 4) * Shape::kSumStride + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
        *reinterpret_cast<float2*>(row + j * 8) = make_float2(acc[j][0], acc[j][1]);
        *reinterpret_cast<float2*>(row + 8 * Shape::kSumStride + j * 8) = make_float2(acc[j][2], acc[j][3]);
    }
    cluster_release();
    cluster_acquire();
    const QkvShare share(w);
    const int all = share.count * QkvItem<kColumns>::kFours;
#pragma unroll 1
    for (int i = thread; i < all; i += Shape::kConsumers) {
        const QkvItem<kColumns> item(e, w, share.first, i);
        if (!item.is_real(e)) continue;
        const int at = item.row * Shape::kSumStride + item.column;
        float4 x = qkv_sum(sums, at, w.splits), y = qkv_sum(sums, at + kUnitPairs, w.splits);
        const float4 bx = *reinterpret_cast<const float4*>(bias + item.column),
                     by = *reinterpret_cast<const float4*>(bias + item.column + kUnitPairs);
        x = make_float4(x.x + bx.x, x.y + bx.y, x.z + bx.z, x.w + bx.w);
        y = make_float4(y.x + by.x, y.y + by.y, y.z + by.z, y.w + by.w);
        if (item.turns(e)) {
            const float4 s = *reinterpret_cast<const float4*>(turns + i * 8), c = *reinterpret_cast<const float4*>(turns + i * 8 + 4);
            const float m = e.magnitude;
            const float4 u = make_float4((x.x * c.x - y.x * s.x) * m, (x.y * c.y - y.y * s.y) * m, (x.z * c.z - y.z * s.z) * m,
                                         (x.w * c.w - y.w * s.w) * m);
            y = make_float4((y.x * c.x + x.x * s.x) * m, (y.y * c.y + x.y * s.y) * m, (y.z * c.z + x.z * s.z) * m,
                            (y.w * c.w + x.w * s.w) * m);
            x = u;
        }
        const bool is_f16 = e.is_f16 && item.head >= e.num_heads;
        uint16_t* to = qkv_place(e, a.first_row + w.row0 + item.row, item.head, slots[item.row]) + item.pair;
        *reinterpret_cast<uint2*>(to) = qkv_pack(x, is_f16);
        *reinterpret_cast<uint2*>(to + e.head_dim / 2) = qkv_pack(y, is_f16);
    }
}

/// What the end needs and no earlier kernel of the step writes: the bias of the tile's columns, the places of its rows in the cache.
template <int kGroups, int kColumns>
__device__ __forceinline__ void qkv_prepare(const GemmSplitArguments& a, const QkvEnd& e, const SplitWork& w, float* bias, int* slots) {
    constexpr int kConsumers = SplitShape<kGroups, kColumns>::kConsumers;
    for (int c = static_cast<int>(threadIdx.x); c < kColumns; c += kConsumers) {
        const QkvUnit place(e, (w.column0 + c) / kUnitColumns);
        const int within = c % kUnitColumns, second = within / kUnitPairs;
        const int column = place.head * e.head_dim + second * (e.head_dim / 2) + place.pair + within % kUnitPairs;
        bias[c] = e.bias != nullptr && column < a.out ? __ldg(e.bias + column) : 0.0f;
    }
#pragma unroll 1
    for (int r = static_cast<int>(threadIdx.x); r < w.count; r += kConsumers) slots[r] = e.rows[a.first_row + w.row0 + r].kv_slot;
}

template <int kGroups, int kColumns>
__global__ void __launch_bounds__(SplitShape<kGroups, kColumns>::kThreads, 1)
    qkv_split_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x, const GemmSplitArguments a,
                     const QkvEnd e) {
    using Shape = SplitShape<kGroups, kColumns>;
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t full[kSplitMostStages], empty[kSplitMostStages];
    __shared__ __align__(16) float bias[kColumns];
    __shared__ int slots[Shape::kRows];
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.num_stages; ++i) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], Shape::kConsumers / 32);
        }
        barrier_fence_init();
    }
    __syncthreads();
    dependents_may_launch();
    const SplitWork work(a, Shape::kRows, kColumns);
    SplitRing ring = {memory, full, empty, a.num_stages};
    if (work.count == 0) return wait_for_predecessors();   // so do all blocks of the cluster
    if (threadIdx.x >= Shape::kConsumers) {
        if (threadIdx.x == Shape::kConsumers) qkv_produce<kGroups, kColumns>(weights, x, a, e, work, ring);
        __syncwarp();
        cluster_release();
        cluster_acquire();
    } else {
        auto* turns = reinterpret_cast<float*>(memory + e.turns_at);
        qkv_prepare<kGroups, kColumns>(a, e, work, bias, slots);
        qkv_turns<kGroups, kColumns>(a, e, work, turns);
        wait_for_predecessors();
        float acc[kColumns / 8][4];
        split_multiply<kGroups, kColumns>(acc, work, ring);
        qkv_finish<kGroups, kColumns>(a, e, acc, work, reinterpret_cast<float*>(memory), turns, bias, slots);
    }
    cluster_meet();   // until the others have read what lies here
}

}   // namespace takt::cuda
