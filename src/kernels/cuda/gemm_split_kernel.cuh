// The kernel of gemm_split.h. Rows of the batch are the 64-row operand of wgmma (one or two warpgroups), rows of the weights its
// columns. The blocks of a cluster have the same tile and each a range of its columns; a producer lane streams 64 columns of both
// operands a stage, the weights of the first stages before the previous kernel has ended. At the end each block lays its part into its
// shared memory and adds all blocks' parts of some rows, in the order of their columns.
#pragma once

#include "kernels/cuda/gemm_split_launch.h"
#include "kernels/cuda/ops_wgmma_wide.cuh"

namespace takt::cuda {

constexpr int kSplitRowBytes = 128;   // 64 columns
constexpr int kSplitMostStages = 8;
constexpr int kMostSplits = 8;
constexpr size_t kSplitShared = 232'448 - 1024;   // what a block may have, less its barriers

template <int kGroups, int kColumns>
struct SplitShape {
    static constexpr int kRows = 64 * kGroups, kConsumers = 128 * kGroups, kThreads = kConsumers + 32;
    static constexpr int kRowsBytes = kRows * kSplitRowBytes;
    static constexpr int kStageBytes = kRowsBytes + kColumns * kSplitRowBytes;
    static constexpr int kMostFit = static_cast<int>(kSplitShared) / kStageBytes;
    static constexpr int kStages = kMostFit < kSplitMostStages ? kMostFit : kSplitMostStages;
    static constexpr int kSumStride = kColumns + 8;   // floats of a row of a part: four rows lie in different banks
    static constexpr int kSumBytes = kRows * kSumStride * 4;
    static_assert(kSumBytes <= static_cast<int>(kSplitShared));
};

struct SplitRing {
    uint8_t* memory;
    uint64_t *full, *empty;
    int num_stages;
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
        if (++stage == num_stages) {
            stage = 0;
            phase ^= 1u;
        }
    }
};

/// What a block does: columns [k_begin, k_end), in 64s, of the tile at (row0, column0).
struct SplitWork {
    int rank, splits, row0, column0, k_begin, k_end, count;   // count: true rows of the tile
    __device__ __forceinline__ SplitWork(const GemmSplitArguments& a, int tile_rows, int columns)
        : rank(static_cast<int>(cluster_rank())), splits(static_cast<int>(cluster_size())) {
        row0 = static_cast<int>(blockIdx.y) * tile_rows;
        column0 = static_cast<int>(blockIdx.x) / splits * columns;
        k_begin = a.k_blocks * rank / splits;
        k_end = a.k_blocks * (rank + 1) / splits;
        count = max(0, min(tile_rows, min(a.rows, a.header->num_rows - a.first_row) - row0));
    }
};

/// One lane: fills the ring, the weights before the wait. `load_weights` (to, full, k): enqueues the tile's weights of stage k; their
/// bytes and those of the rows are expected already.
template <int kGroups, int kColumns, class LoadWeights>
__device__ __forceinline__ void split_fill(const CUtensorMap& x, const SplitWork& w, SplitRing ring, LoadWeights&& load_weights) {
    using Shape = SplitShape<kGroups, kColumns>;
    const auto begin_stage = [&](int stage, int k) {
        barrier_expect(&ring.full[stage], Shape::kStageBytes);
        load_weights(ring.memory + stage * Shape::kStageBytes + Shape::kRowsBytes, &ring.full[stage], k);
    };
    const int early = min(ring.num_stages, w.k_end - w.k_begin);
#pragma unroll 1
    for (int i = 0; i < early; ++i) begin_stage(i, w.k_begin + i);
    wait_for_predecessors();
#pragma unroll 1
    for (int k = w.k_begin; k < w.k_end; ++k, ring.next()) {
        if (k - w.k_begin >= early) {
            barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1u);
            begin_stage(ring.stage, k);
        }
        tensor_load_3d(ring.memory + ring.stage * Shape::kStageBytes, &x, &ring.full[ring.stage], 0, w.row0, k, kEvictLast);
    }
}

template <int kGroups, int kColumns>
__device__ __forceinline__ void split_produce(const CUtensorMap& weights, const CUtensorMap& x, const GemmSplitArguments& a,
                                              const SplitWork& w, SplitRing ring) {
    const uint64_t policy = a.rows <= SplitShape<kGroups, kColumns>::kRows ? kEvictFirst : kEvictLast;
    split_fill<kGroups, kColumns>(x, w, ring, [&](uint8_t* to, uint64_t* full, int k) {
        tensor_load_3d(to, &weights, full, 0, w.column0, k, policy);
    });
}

/// acc = a warpgroup's 64 rows of the tile times the weights over this block's columns.
template <int kGroups, int kColumns>
__device__ __forceinline__ void split_multiply(float (&acc)[kColumns / 8][4], const SplitWork& w, SplitRing& ring) {
    using Shape = SplitShape<kGroups, kColumns>;
    const int lane = static_cast<int>(threadIdx.x) % 32, group = warp_uniform(static_cast<int>(threadIdx.x) / 128);
    int last = 0;
#pragma unroll 1
    for (int k = w.k_begin; k < w.k_end; ++k) {
        barrier_wait(&ring.full[ring.stage], ring.phase);
        const uint8_t* stage = ring.memory + ring.stage * Shape::kStageBytes;
        const uint64_t rows = operand_descriptor(shared_address(stage + group * 64 * kSplitRowBytes), 16, 1024),
                       columns = operand_descriptor(shared_address(stage + Shape::kRowsBytes), 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            wgmma_shared_bf16(acc, advanced(rows, part * 32), advanced(columns, part * 32), k == w.k_begin && part == 0 ? 0 : 1);
        }
        wgmma_commit();
        if (k != w.k_begin) {
            wgmma_wait<1>();
            if (lane == 0) barrier_arrive(&ring.empty[last]);
        }
        last = ring.stage;
        ring.next();
    }
    wgmma_wait<0>();
    pin(acc);
}

/// Four columns of a row of the tile, summed, to where they belong.
__device__ __forceinline__ void split_write(const GemmSplitArguments& a, int64_t row, int column, float4 old, float4 sum) {
    if (a.adds) {
        *reinterpret_cast<float4*>(static_cast<float*>(a.y) + row * a.y_stride + column) =
            make_float4(old.x + sum.x, old.y + sum.y, old.z + sum.z, old.w + sum.w);
    } else {
        *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(a.y) + row * a.y_stride + column) =
            make_uint2(pack_pair<__nv_bfloat16>(sum.x, sum.y), pack_pair<__nv_bfloat16>(sum.z, sum.w));
    }
}

/// The old values and the bias of four columns of a row, where sums are added.
__device__ __forceinline__ float4 split_base(const GemmSplitArguments& a, int64_t row, int column) {
    if (!a.adds || column >= a.out) return make_float4(0, 0, 0, 0);
    float4 v = __ldcg(reinterpret_cast<const float4*>(static_cast<const float*>(a.y) + row * a.y_stride + column));
    if (a.bias != nullptr) {
        const float4 b = __ldg(reinterpret_cast<const float4*>(a.bias + column));
        v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
    }
    return v;
}

/// Lays this block's part down and adds all blocks' parts of its share of the rows. All consumers of all blocks of the cluster.
template <int kGroups, int kColumns>
__device__ __forceinline__ void split_finish(const GemmSplitArguments& a, const float (&acc)[kColumns / 8][4], const SplitWork& w,
                                             float* sums) {
    using Shape = SplitShape<kGroups, kColumns>;
    constexpr int kFours = kColumns / 4, kKept = 4;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    named_barrier(1, Shape::kConsumers);   // all products are done with the ring
    float* row = sums + (thread / 32 * 16 + lane / 4) * Shape::kSumStride + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
        *reinterpret_cast<float2*>(row + j * 8) = make_float2(acc[j][0], acc[j][1]);
        *reinterpret_cast<float2*>(row + 8 * Shape::kSumStride + j * 8) = make_float2(acc[j][2], acc[j][3]);
    }
    const int first = w.count * w.rank / w.splits, all = (w.count * (w.rank + 1) / w.splits - first) * kFours;
    const auto base_of = [&](int i) {
        return i < all ? split_base(a, w.row0 + first + i / kFours, w.column0 + i % kFours * 4) : make_float4(0, 0, 0, 0);
    };
    float4 kept[kKept];   // of the first few: on their way while the blocks meet
#pragma unroll
    for (int t = 0; t < kKept; ++t) kept[t] = base_of(thread + t * Shape::kConsumers);
    cluster_release();
    cluster_acquire();
    const auto add = [&](int i, float4 base) {
        const int at = first + i / kFours, column = i % kFours * 4;
        const uint32_t from = shared_address(sums + at * Shape::kSumStride + column);
        float4 part[kMostSplits], sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int s = 0; s < kMostSplits; ++s) {
            if (s < w.splits) part[s] = load_from_block(from, static_cast<uint32_t>(s));
        }
#pragma unroll
        for (int s = 0; s < kMostSplits; ++s) {
            if (s >= w.splits) continue;
            sum = make_float4(sum.x + part[s].x, sum.y + part[s].y, sum.z + part[s].z, sum.w + part[s].w);
        }
        if (w.column0 + column < a.out) split_write(a, w.row0 + at, w.column0 + column, base, sum);
    };
#pragma unroll
    for (int t = 0; t < kKept; ++t) {
        const int i = thread + t * Shape::kConsumers;
        if (i < all) add(i, kept[t]);
    }
#pragma unroll 1
    for (int i = thread + kKept * Shape::kConsumers; i < all; i += Shape::kConsumers) add(i, base_of(i));
}

template <int kGroups, int kColumns>
__global__ void __launch_bounds__(SplitShape<kGroups, kColumns>::kThreads, 1)
    gemm_split_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x, const GemmSplitArguments a) {
    using Shape = SplitShape<kGroups, kColumns>;
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t full[kSplitMostStages], empty[kSplitMostStages];
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
        if (threadIdx.x == Shape::kConsumers) split_produce<kGroups, kColumns>(weights, x, a, work, ring);
        __syncwarp();
        cluster_release();
        cluster_acquire();
    } else {
        wait_for_predecessors();
        float acc[kColumns / 8][4];
        split_multiply<kGroups, kColumns>(acc, work, ring);
        split_finish<kGroups, kColumns>(a, acc, work, reinterpret_cast<float*>(memory));
    }
    cluster_meet();   // until the others have read what lies here
}

}   // namespace takt::cuda
