// The kernel of gemm_wide.h. Rows of the batch are the 64-row operand of wgmma, rows of the weights its columns. A block's tile is
// 128 rows (64 a warpgroup) by kColumns; a producer lane streams 64 columns of both operands a stage. Blocks work in pairs
// (clusters): the tiles of a pair have the same columns or the same rows, and each block loads half of what they share into
// both, so that L2 delivers it once. A stage is free when the warps of both blocks have left it. Blocks take tile after tile;
// the next one's first stages arrive while results are brought out.
#pragma once

#include "kernels/cuda/gemm_wide_launch.h"
#include "kernels/cuda/ops_wgmma_wide.cuh"

namespace takt::cuda {

constexpr int kWideConsumers = 256;                    // two warpgroups
constexpr int kWideThreads = kWideConsumers + 128;     // and the producer's, which gives its registers away
constexpr int kWideRowBytes = 128;                     // 64 columns
constexpr int kWideRowTileBytes = kWideRows * kWideRowBytes;
constexpr int kWideMostStages = 8;
constexpr size_t kWideShared = 232'448 - 1024;         // what a block may have, less its barriers
constexpr int kWideGroup = 8;   // tiles of a pair along the rows that are done together, so that L2 keeps both operands
constexpr uint64_t kEvictNormal = 0x1000000000000000ull;

template <int kColumns>
struct WideShape {
    /// Bytes of a row on its way out: an odd number of 16-byte pieces, so that eight rows lie in different banks.
    static constexpr int kOutStride = (kColumns / 16 | 1) * 16;
    static constexpr int kOutBytes = kWideConsumers / 32 * 8 * kOutStride;
    static constexpr int kStageBytes = kWideRowTileBytes + kColumns * kWideRowBytes;
    static constexpr int kFit = (static_cast<int>(kWideShared) - kOutBytes) / kStageBytes;
    static constexpr int kStages = kFit < kWideMostStages ? kFit : kWideMostStages;
    static constexpr size_t kSharedBytes = static_cast<size_t>(kStages) * kStageBytes + kOutBytes;
};

template <int kColumns>
struct WideRing {
    using Shape = WideShape<kColumns>;
    uint8_t* memory;
    uint64_t *full, *empty;
    int stage = 0;
    uint32_t phase = 0;
    [[nodiscard]] __device__ __forceinline__ uint8_t* rows(int s) const { return memory + s * Shape::kStageBytes; }
    [[nodiscard]] __device__ __forceinline__ uint8_t* columns(int s) const { return rows(s) + kWideRowTileBytes; }
    __device__ __forceinline__ void next() {
        if (++stage == Shape::kStages) {
            stage = 0;
            phase ^= 1u;
        }
    }
};

/// The tiles of this block in order; the other block of its pair goes through as many.
template <int kColumns>
struct WideWork {
    int row0 = 0, column0 = 0;   // of the tile
    int rows, row_tiles, column_tiles, tile, num_tiles;   // tiles of a pair
    int rank;
    bool shares_rows;

    __device__ __forceinline__ explicit WideWork(const GemmWideArguments& a) {
        rank = static_cast<int>(cluster_rank());
        shares_rows = a.shares_rows;
        rows = min(a.rows, a.header->num_rows - a.first_row);
        const int columns = (a.out + kColumns - 1) / kColumns, tiles = (max(rows, 0) + kWideRows - 1) / kWideRows;
        row_tiles = shares_rows ? tiles : (tiles + 1) / 2;
        column_tiles = shares_rows ? (columns + 1) / 2 : columns;
        num_tiles = row_tiles * column_tiles;
        tile = static_cast<int>(blockIdx.x) / 2;
    }
    __device__ __forceinline__ bool next() {
        if (tile >= num_tiles) return false;
        const int group = tile / (kWideGroup * column_tiles), first = group * kWideGroup, within = tile - first * column_tiles;
        const int height = min(kWideGroup, row_tiles - first), row = first + within % height, column = within / height;
        row0 = (shares_rows ? row : row * 2 + rank) * kWideRows;
        column0 = (shares_rows ? column * 2 + rank : column) * kColumns;
        tile += static_cast<int>(gridDim.x) / 2;
        return true;
    }
};

template <int kColumns>
__device__ __forceinline__ void wide_produce(const CUtensorMap& weights, const CUtensorMap& x, const GemmWideArguments& a,
                                             WideRing<kColumns> ring) {
    using Shape = WideShape<kColumns>;
    const uint64_t policy = a.rows <= 2 * kWideRows ? kEvictFirst : kEvictNormal;   // whether other pairs want the weights too
    const auto load_weights = [&](int s, const WideWork<kColumns>& w, int k) {
        barrier_expect(&ring.full[s], Shape::kStageBytes);
        if (w.shares_rows) {
            tensor_load_3d(ring.columns(s), &weights, &ring.full[s], 0, w.column0, k, policy);
        } else {
            const int half = w.rank * (kColumns / 2);
            tensor_load_3d_to_pair(ring.columns(s) + half * kWideRowBytes, &weights, &ring.full[s], 0, w.column0 + half, k, policy);
        }
    };
    const auto load_rows = [&](int s, const WideWork<kColumns>& w, int k) {
        if (w.shares_rows) {
            const int half = w.rank * (kWideRows / 2);
            tensor_load_3d_to_pair(ring.rows(s) + half * kWideRowBytes, &x, &ring.full[s], 0, w.row0 + half, k, kEvictLast);
        } else {
            tensor_load_3d(ring.rows(s), &x, &ring.full[s], 0, w.row0, k, kEvictLast);
        }
    };
    WideWork<kColumns> work(a);
    bool has_tile = work.next();
    int early = 0;
    for (; has_tile && early < min(Shape::kStages, a.k_blocks); ++early) load_weights(early, work, early);
    wait_for_predecessors();
    for (bool is_first = true; has_tile; is_first = false, has_tile = work.next()) {
        for (int k = 0; k < a.k_blocks; ++k, ring.next()) {
            if (!is_first || k >= early) {
                barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1u);
                load_weights(ring.stage, work, k);
            }
            load_rows(ring.stage, work, k);
        }
    }
    // The other block arrives here until all stages are free; so long this one stays.
    for (int i = 0; i < Shape::kStages; ++i, ring.next()) barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1u);
}

/// acc = a warpgroup's 64 rows of a tile times the weights.
template <int kColumns>
__device__ __forceinline__ void wide_multiply(float (&acc)[kColumns / 8][4], WideRing<kColumns>& ring, int k_blocks) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int group = warp_uniform(static_cast<int>(threadIdx.x) / 128);
    int last = 0;
    const auto leave = [&](int s) {
        if (lane < 2) barrier_arrive_at(&ring.empty[s], static_cast<uint32_t>(lane));
    };
    for (int k = 0; k < k_blocks; ++k) {
        barrier_wait(&ring.full[ring.stage], ring.phase);
        const uint64_t rows = operand_descriptor(shared_address(ring.rows(ring.stage) + group * 64 * kWideRowBytes), 16, 1024),
                       columns = operand_descriptor(shared_address(ring.columns(ring.stage)), 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            wgmma_shared_bf16(acc, advanced(rows, part * 32), advanced(columns, part * 32),
                              k == 0 && part == 0 ? 0 : 1);
        }
        wgmma_commit();
        if (k != 0) {
            wgmma_wait<1>();
            leave(last);
        }
        last = ring.stage;
        ring.next();
    }
    wgmma_wait<0>();
    leave(last);
    pin(acc);
}

template <bool kIsGelu>
__device__ __forceinline__ float wide_gate(float gate, float up) {
    const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
    return gate * up * __fdividef(1.0f, 1.0f + __expf(kIsGelu ? -2.0f * inner : -gate));
}

/// activation(gate) * up of a warp's 16 rows from `row` on as bf16, eight at a time through its own shared memory, so that whole
/// pieces of rows go out.
template <bool kIsGelu, int kColumns>
__device__ __forceinline__ void wide_write(const GemmWideArguments& a, const float (&acc)[kColumns / 8][4], int row, int rows,
                                                 int column0, uint8_t* staging) {
    using Shape = WideShape<kColumns>;
    constexpr int kPieces = kColumns / 16;
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        __syncwarp();   // the last ones have been read
        uint8_t* to = staging + lane / 4 * Shape::kOutStride + lane % 4 * 4;
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
            const float(&gate)[4] = acc[2 * j], (&up)[4] = acc[2 * j + 1];
            *reinterpret_cast<uint32_t*>(to + j * 16) = pack_pair<__nv_bfloat16>(
                wide_gate<kIsGelu>(gate[2 * r], up[2 * r]), wide_gate<kIsGelu>(gate[2 * r + 1], up[2 * r + 1]));
        }
        __syncwarp();
        for (int i = lane; i < 8 * kPieces; i += 32) {
            const int m = i / kPieces, piece = i % kPieces, at = row + r * 8 + m, column = column0 / 2 + piece * 8;
            if (at >= rows || column >= a.out / 2) continue;
            *reinterpret_cast<uint4*>(a.y + at * a.y_stride + column) =
                *reinterpret_cast<const uint4*>(staging + m * Shape::kOutStride + piece * 16);
        }
    }
}

template <int kColumns>
__device__ __forceinline__ void wide_consume(const GemmWideArguments& a, WideRing<kColumns> ring) {
    using Shape = WideShape<kColumns>;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    uint8_t* const staging = ring.memory + Shape::kStages * Shape::kStageBytes + warp * 8 * Shape::kOutStride;
    for (WideWork<kColumns> w(a); w.next();) {
        const int row = w.row0 + warp * 16;
        float acc[kColumns / 8][4];
        wide_multiply<kColumns>(acc, ring, a.k_blocks);
        if (a.is_gelu) {
            wide_write<true, kColumns>(a, acc, row, w.rows, w.column0, staging);
        } else {
            wide_write<false, kColumns>(a, acc, row, w.rows, w.column0, staging);
        }
    }
}

template <int kColumns>
__global__ void TAKT_CLUSTER(2) __launch_bounds__(kWideThreads, 1)
    gemm_wide_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x, const GemmWideArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t full[kWideMostStages], empty[kWideMostStages];
    if (threadIdx.x == 0) {
        for (int i = 0; i < WideShape<kColumns>::kStages; ++i) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], 2 * kWideConsumers / 32);
        }
        barrier_fence_init();
    }
    cluster_meet();
    dependents_may_launch();
    WideRing<kColumns> ring = {memory, full, empty};
    if (threadIdx.x >= kWideConsumers) {
        give_registers<40>();
        if (threadIdx.x == kWideConsumers) wide_produce(weights, x, a, ring);
    } else {
        take_registers<232>();
        wait_for_predecessors();
        wide_consume(a, ring);
    }
}

}   // namespace takt::cuda
