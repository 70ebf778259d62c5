// The kernel of qkv_split.h that also norms: the float32 residual itself comes into shared memory, the consumers square and sum its rows on
// the way, multiply them by the norm's weight and feed them to wgmma as bf16 from registers. A row's scale multiplies its sums at the end.
// Weights and rows have rings of their own, so that many weights are on their way before the predecessor has ended.
#pragma once

#include "kernels/cuda/qkv_split_kernel.cuh"

namespace takt::cuda {

constexpr int kNormMostStages = 8;

template <int kGroups, int kColumns>
struct QkvNormShape {
    static constexpr int kRows = 64 * kGroups, kConsumers = 128 * kGroups;
    static constexpr int kHalfBytes = kRows * kSplitRowBytes;   // 32 float32 columns of all rows
    static constexpr int kRowsBytes = 2 * kHalfBytes, kWeightBytes = kColumns * kSplitRowBytes;
    static constexpr int kSumStride = kColumns + 4;   // a row's sums and its sum of squares; rows two apart lie in different banks
    static constexpr int kSumBytes = kRows * kSumStride * 4;
};

/// Barriers of a ring's stages, with the place of one side in it.
struct QkvRing {
    uint8_t* memory;
    uint64_t *full, *empty;
    int num_stages, stage_bytes;
    int stage = 0;
    uint32_t phase = 0;
    [[nodiscard]] __device__ __forceinline__ uint8_t* at() const { return memory + stage * stage_bytes; }
    __device__ __forceinline__ void next() {
        if (++stage == num_stages) {
            stage = 0;
            phase ^= 1u;
        }
    }
};

template <int kGroups, int kColumns>
__device__ __forceinline__ void norm_produce(const CUtensorMap& weights, const CUtensorMap& hidden, const GemmSplitArguments& a,
                                             const QkvEnd& e, const SplitWork& w, QkvRing ring, QkvRing rows) {
    using Shape = QkvNormShape<kGroups, kColumns>;
    const QkvWeights<kColumns> tile(weights, e, w, a.rows <= Shape::kRows);
    const int count = w.k_end - w.k_begin;
    int loaded = 0;   // of the weights' stages
    const auto load_weights = [&] {
        if (loaded >= ring.num_stages) barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1u);
        barrier_expect(&ring.full[ring.stage], Shape::kWeightBytes);
        tile.load(ring.at(), &ring.full[ring.stage], w.k_begin + loaded++);
        ring.next();
    };
    while (loaded < min(ring.num_stages, count)) load_weights();
    wait_for_predecessors();
    for (int i = 0; i < count; ++i, rows.next()) {
        if (i >= rows.num_stages) barrier_wait(&rows.empty[rows.stage], rows.phase ^ 1u);
        barrier_expect(&rows.full[rows.stage], Shape::kRowsBytes);
        tensor_load_3d(rows.at(), &hidden, &rows.full[rows.stage], 0, w.row0, (w.k_begin + i) * 2, kEvictLast);
        // The stage before the one whose rows have just been taken is about to be multiplied: its weights' place falls free next.
        if (loaded < min(count, i - rows.num_stages + ring.num_stages)) load_weights();
    }
    while (loaded < count) load_weights();
}

/// A row of eight that lane / 4 stands for: those of four neighbours lie in different banks under the swizzle.
__device__ __forceinline__ int norm_row(int lane) { return lane / 4 % 4 * 2 + lane / 16; }

/// Where a thread's columns lie in the box of a warp's sixteen rows; [j]: columns 8 j and 8 j + 1 from its first.
struct NormPlace {
    uint32_t at[4];
    __device__ __forceinline__ explicit NormPlace(int warp, int lane) {
        const int row = norm_row(lane), pair = lane % 4;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            at[j] = static_cast<uint32_t>((warp * 16 + row) * kSplitRowBytes + ((j * 2 + pair / 2) ^ row) * 16 + pair % 2 * 8);
    }
};

/// Four operands of 16 columns: bf16 of a thread's values times the norm's weight. Adds their squares to those of its two rows.
template <int kHalfBytes>
__device__ __forceinline__ void norm_fragments(uint32_t (&f)[4][4], float (&squares)[2], const uint8_t* box, const NormPlace& place,
                                               const float* weights) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const uint8_t* half = box + part / 2 * kHalfBytes;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float2 w = *reinterpret_cast<const float2*>(weights + part * 16 + j * 8);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float2 v = *reinterpret_cast<const float2*>(half + place.at[part % 2 * 2 + j] + r * 8 * kSplitRowBytes);
                squares[r] += v.x * v.x + v.y * v.y;
                f[part][j * 2 + r] = pack_pair<__nv_bfloat16>(v.x * w.x, v.y * w.y);
            }
        }
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {   // made before the product's fence
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(f[part][i])::"memory");
    }
}

/// acc = a warpgroup's 64 rows of the tile, times the norm's weight, times the weights over this block's columns.
template <int kGroups, int kColumns>
__device__ __forceinline__ void norm_multiply(float (&acc)[kColumns / 8][4], float (&squares)[2], const SplitWork& w, QkvRing ring,
                                              QkvRing rows, const float* weights) {
    using Shape = QkvNormShape<kGroups, kColumns>;
    const int lane = static_cast<int>(threadIdx.x) % 32, count = w.k_end - w.k_begin;
    const NormPlace place(static_cast<int>(threadIdx.x) / 32, lane);
    const auto load = [&](uint32_t (&f)[4][4], int i) {
        barrier_wait(&rows.full[rows.stage], rows.phase);
        norm_fragments<Shape::kHalfBytes>(f, squares, rows.at(), place, weights + i * 64 + lane % 4 * 2);
        __syncwarp();
        if (lane == 0) barrier_arrive(&rows.empty[rows.stage]);
        rows.next();
    };
    int last = 0;
    // One stage's operands are made while the other's product runs.
    const auto step = [&](uint32_t (&f)[4][4], uint32_t (&following)[4][4], int i) {
        barrier_wait(&ring.full[ring.stage], ring.phase);
        const uint64_t columns = operand_descriptor(shared_address(ring.at()), 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < 4; ++part)
            wgmma_rows_bf16(acc, f[part], advanced(columns, part * 32), i == 0 && part == 0 ? 0 : 1);
        wgmma_commit();
        if (i > 0) {
            wgmma_wait<1>();
            if (lane == 0) barrier_arrive(&ring.empty[last]);
        }
        last = ring.stage;
        ring.next();
        if (i + 1 < count) load(following, i + 1);
    };
    uint32_t even[4][4], odd[4][4];
    load(even, 0);
    for (int i = 0; i < count; i += 2) {
        step(even, odd, i);
        if (i + 1 < count) step(odd, even, i + 1);
    }
    wgmma_wait<0>();
    pin(acc);
}

/// The norm's weight over this block's columns, as earlier kernels do not write it.
template <int kConsumers>
__device__ __forceinline__ void norm_weights(const QkvNorm& n, const SplitWork& w, float* weights) {
    const float shift = n.one_plus ? 1.0f : 0.0f;
    for (int c = static_cast<int>(threadIdx.x) * 4; c < (w.k_end - w.k_begin) * 64; c += kConsumers * 4) {
        const float4 v = __ldg(reinterpret_cast<const float4*>(n.weight + w.k_begin * 64 + c));
        *reinterpret_cast<float4*>(weights + c) = make_float4(v.x + shift, v.y + shift, v.z + shift, v.w + shift);
    }
}

/// Lays this block's sums of squares beside the places of its parts: column kColumns of each row.
template <int kColumns, int kStride>
__device__ __forceinline__ void norm_squares(float (&squares)[2], float* sums) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 1);
        squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 2);
        if (lane % 4 == 0) sums[(thread / 32 * 16 + norm_row(lane) + r * 8) * kStride + kColumns] = squares[r];
    }
}

template <int kGroups, int kColumns>
__device__ __forceinline__ void norm_consume(const GemmSplitArguments& a, const QkvEnd& e, const QkvNorm& n, const SplitWork& work,
                                             QkvRing ring, QkvRing rows, uint8_t* memory, float* bias, int* slots) {
    using Shape = QkvNormShape<kGroups, kColumns>;
    auto *sums = reinterpret_cast<float*>(memory), *turns = reinterpret_cast<float*>(memory + e.turns_at),
         *weights = reinterpret_cast<float*>(memory + n.weights_at);
    norm_weights<Shape::kConsumers>(n, work, weights);
    named_barrier(2, Shape::kConsumers);   // the norm's weight is there
    wait_for_predecessors();
    float acc[kColumns / 8][4], squares[2] = {};
    norm_multiply<kGroups, kColumns>(acc, squares, work, ring, rows, weights);
    named_barrier(1, Shape::kConsumers + kQkvAides);   // all products are done with the rings; what the aides make is there
    norm_squares<kColumns, Shape::kSumStride>(squares, sums);
    const auto scale_of = [&](int row) {
        const uint32_t from = shared_address(sums + row * Shape::kSumStride + kColumns);
        float part[4], sum = 0;
#pragma unroll
        for (int s = 0; s < 4; ++s) part[s] = s < work.splits ? load_float_from_block(from, static_cast<uint32_t>(s)) : 0.0f;
#pragma unroll
        for (int s = 0; s < 4; ++s) sum += part[s];
        return rsqrtf(sum / static_cast<float>(a.k_blocks * 64) + n.epsilon);
    };
    qkv_finish<Shape::kConsumers, kColumns, Shape::kSumStride>(a, e, acc, work, sums, turns, bias, slots,
                                                               norm_row(static_cast<int>(threadIdx.x) % 32), scale_of);
}

template <int kGroups, int kColumns>
__global__ void __launch_bounds__(QkvNormShape<kGroups, kColumns>::kConsumers + kQkvOthers, 1)
    qkv_norm_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap hidden, const GemmSplitArguments a,
                    const QkvEnd e, const QkvNorm n) {
    using Shape = QkvNormShape<kGroups, kColumns>;
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t full[kNormMostStages], empty[kNormMostStages], rows_full[kNormMostStages], rows_empty[kNormMostStages];
    __shared__ __align__(16) float bias[kColumns];
    __shared__ int slots[Shape::kRows];
    if (threadIdx.x == 0) {
        for (int i = 0; i < kNormMostStages; ++i) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], Shape::kConsumers / 32);
            barrier_init(&rows_full[i], 1);
            barrier_init(&rows_empty[i], Shape::kConsumers / 32);
        }
        barrier_fence_init();
    }
    __syncthreads();
    dependents_may_launch();
    const SplitWork work(a, Shape::kRows, kColumns);
    const QkvRing ring = {memory, full, empty, a.num_stages, Shape::kWeightBytes},
                  rows = {memory + a.num_stages * Shape::kWeightBytes, rows_full, rows_empty, n.row_stages, Shape::kRowsBytes};
    // Not of the first rows, where there are some: weights need not wait for the header.
    if (blockIdx.y > 0 && work.count == 0) return wait_for_predecessors();   // so do all blocks of the cluster
    if (threadIdx.x >= Shape::kConsumers) {
        if (threadIdx.x == Shape::kConsumers) norm_produce<kGroups, kColumns>(weights, hidden, a, e, work, ring, rows);
        if (threadIdx.x >= Shape::kConsumers + 32)
            qkv_prepare<Shape::kConsumers, kColumns>(a, e, work, reinterpret_cast<float*>(memory + e.turns_at), bias, slots);
        __syncwarp();
        cluster_release();
        cluster_acquire();
    } else {
        norm_consume<kGroups, kColumns>(a, e, n, work, ring, rows, memory, bias, slots);
    }
    cluster_meet();   // until the others have read what lies here
}

}   // namespace takt::cuda
