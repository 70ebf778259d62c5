// The kernel of gemm_stream.h. Weights are the 64-row operand of wgmma and rows of the batch its columns, so that weights pass
// once through a multiprocessor whatever the batch, and a thread that holds a sum of a gate row holds the up row's too. A producer
// lane streams weights and activations, 64 columns a stage, by tensor copies; the weights of the first stages before the previous
// kernel has ended. Two warpgroups take half of a tile's rows each. Gated, a block makes whole tiles; else the columns of all tiles
// are dealt evenly to the blocks, and the parts of a sum meet in L2.
#pragma once

#include "kernels/cuda/gemm_stream.h"
#include "kernels/cuda/gemm_stream_launch.h"
#include "kernels/cuda/ops_wgmma.cuh"

namespace takt::cuda {

constexpr int kStreamConsumers = 256;   // two warpgroups
/// And the producer's warp; where results are added a whole warpgroup, which gives its registers away.
template <StreamOutput kOutput>
constexpr int kStreamThreads = kStreamConsumers + (kOutput == StreamOutput::add ? 128 : 32);
constexpr int kStreamBoxRows = 32;    // of the weights' tensor map (CudaLinear::tile_map)
constexpr int kStreamRowBytes = 128;  // 64 columns
constexpr int kStreamTileBytes = 64 * kStreamRowBytes;
constexpr int kStreamMostStages = 8;
constexpr int kSummedRows = 128;      // of a tile whose sums are added
constexpr int kStreamAtOnce = 32;     // tokens that a warpgroup brings out at a time
constexpr int kSumStride = 68;        // floats of a token there: 64 rows; neighbouring lanes in different banks
constexpr int kSumBytes = kStreamAtOnce * kSumStride * 4;
constexpr int kGatedStride = 104;     // elements of a token there: up to 96 outputs
constexpr int kGatedBytes = kStreamAtOnce * kGatedStride * 2;

/// Shared memory of the results on their way out, of both warpgroups.
template <StreamOutput kOutput>
constexpr int kStreamOutBytes = kOutput == StreamOutput::gated ? 2 * kGatedBytes : 4 * kSumBytes;

struct StreamRing {
    uint8_t* memory;
    uint64_t *full, *empty;
    int num_stages, stage_bytes, weight_bytes;
    int stage = 0;
    uint32_t phase = 0;
    [[nodiscard]] __device__ __forceinline__ uint8_t* weights(int s) const { return memory + s * stage_bytes; }
    [[nodiscard]] __device__ __forceinline__ uint8_t* rows(int s) const { return memory + s * stage_bytes + weight_bytes; }
    __device__ __forceinline__ void next() {
        if (++stage == num_stages) {
            stage = 0;
            phase ^= 1u;
        }
    }
};

/// The parts of tiles that a block does, in order: blocks of 64 columns [begin, end) of `tile`.
template <StreamOutput kOutput>
struct StreamWork {
    int tile = 0, begin = 0, end = 0;
    int unit, last;

    __device__ __forceinline__ explicit StreamWork(const GemmStreamArguments& a) {
        if constexpr (kOutput == StreamOutput::add) {
            const int64_t all = int64_t{a.num_tiles} * a.k_blocks;
            unit = static_cast<int>(all * blockIdx.x / gridDim.x);
            last = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
        } else {
            unit = static_cast<int>(blockIdx.x);
            last = a.num_tiles;
        }
    }
    __device__ __forceinline__ bool next(const GemmStreamArguments& a) {
        if (unit >= last) return false;
        if constexpr (kOutput == StreamOutput::add) {
            tile = unit / a.k_blocks;
            begin = unit % a.k_blocks;
            end = min(a.k_blocks, begin + last - unit);
            unit += end - begin;
        } else {
            tile = unit;
            end = a.k_blocks;
            unit += static_cast<int>(gridDim.x);
        }
        return true;
    }
};

template <StreamOutput kOutput, int kTokens>
__device__ __forceinline__ void stream_produce(const CUtensorMap& weights, const CUtensorMap& x, const GemmStreamArguments& a,
                                               StreamRing ring) {
    const auto load_weights = [&](int stage, int tile, int k) {
        barrier_expect(&ring.full[stage], static_cast<uint32_t>((a.tile_rows + kTokens) * kStreamRowBytes));
#pragma unroll 1   // straight code runs once a kernel and comes from L2 first
        for (int r = 0; r < a.tile_rows; r += kStreamBoxRows) {
            tensor_load_3d(ring.weights(stage) + r * kStreamRowBytes, &weights, &ring.full[stage], 0, tile * a.tile_rows + r, k,
                           kEvictFirst);
        }
    };
    int early = 0;
    for (StreamWork<kOutput> w(a); early < ring.num_stages && w.next(a);) {
#pragma unroll 1
        for (int k = w.begin; k < w.end && early < ring.num_stages; ++k, ++early) load_weights(early, w.tile, k);
    }
    wait_for_predecessors();
    int index = 0;
    for (StreamWork<kOutput> w(a); w.next(a);) {
#pragma unroll 1
        for (int k = w.begin; k < w.end; ++k, ++index, ring.next()) {
            if (index >= early) {
                barrier_wait(&ring.empty[ring.stage], ring.phase ^ 1u);
                load_weights(ring.stage, w.tile, k);
            }
            tensor_load_3d(ring.rows(ring.stage), &x, &ring.full[ring.stage], 0, 0, k, kEvictLast);
        }
    }
}

/// acc = one warpgroup's kTiles x 64 rows, the first of them `first` of the tile's, times all tokens over blocks of 64 columns.
template <int kTokens, int kTiles>
__device__ __forceinline__ void stream_multiply(float (&acc)[kTiles][kTokens / 8][4], StreamRing& ring, int first, int k_blocks) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int last = 0;
#pragma unroll 1
    for (int k = 0; k < k_blocks; ++k) {
        barrier_wait(&ring.full[ring.stage], ring.phase);
        const uint64_t weights = operand_descriptor(shared_address(ring.weights(ring.stage) + first * kStreamTileBytes), 16, 1024),
                       rows = operand_descriptor(shared_address(ring.rows(ring.stage)), 16, 1024);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < 4; ++part) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                wgmma_shared_bf16(acc[i], advanced(weights, i * kStreamTileBytes + part * 32), advanced(rows, part * 32),
                                  k == 0 && part == 0 ? 0 : 1);
            }
        }
        wgmma_commit();
        if (k != 0) {
            wgmma_wait<1>();
            if (lane == 0) barrier_arrive(&ring.empty[last]);
        }
        last = ring.stage;
        ring.next();
    }
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(&ring.empty[last]);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) pin(acc[i]);
}

__device__ __forceinline__ float stream_gate(float gate, float up, bool is_gelu) {
    const float exponent = is_gelu ? -1.5957691216f * (gate + 0.044715f * gate * gate * gate) : -gate;
    return __fdividef(gate, 1.0f + __expf(exponent)) * up;
}

/// activation(gate) * up of a warpgroup's kTiles x 64 rows from `row0` on, as bf16.
template <int kTokens, int kTiles>
__device__ __forceinline__ void stream_write_gated(const GemmStreamArguments& a, const float (&acc)[kTiles][kTokens / 8][4], int row0,
                                                   int row_end, int true_rows, int group, __nv_bfloat16* staging) {
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    const int column = thread / 32 * 8 + lane / 4;
    auto* y = static_cast<__nv_bfloat16*>(a.y);
#pragma unroll
    for (int t0 = 0; t0 < kTokens; t0 += kStreamAtOnce) {
        if (t0 >= true_rows) break;
        named_barrier(1 + group, 128);   // the last ones have been read
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
            for (int j = 0; j < kStreamAtOnce / 8; ++j) {
                const float(&v)[4] = acc[i][t0 / 8 + j];
                __nv_bfloat16* to = staging + (j * 8 + lane % 4 * 2) * kGatedStride + i * 32 + column;
                to[0] = __float2bfloat16_rn(stream_gate(v[0], v[2], a.is_gelu));
                to[kGatedStride] = __float2bfloat16_rn(stream_gate(v[1], v[3], a.is_gelu));
            }
        }
        named_barrier(1 + group, 128);
        constexpr int kVectors = kTiles * 4;
#pragma unroll 1
        for (int i = thread; i < kStreamAtOnce * kVectors; i += 128) {
            const int token = i / kVectors, first = i % kVectors * 8, at = row0 / 2 + first;
            if (t0 + token >= true_rows || at >= row_end / 2) continue;
            *reinterpret_cast<uint4*>(y + (t0 + token) * a.y_stride + at) =
                *reinterpret_cast<const uint4*>(staging + token * kGatedStride + first);
        }
    }
}

/// The sums of a warpgroup's 64 rows from `row0` on, added. `turn` alternates the halves of `staging`.
template <int kTokens>
__device__ __forceinline__ void stream_add_sums(const GemmStreamArguments& a, const float (&acc)[kTokens / 8][4], int row0, bool has_bias,
                                                int true_rows, int group, float* staging, int& turn) {
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    const auto bias_of = [&](int r) { return has_bias && row0 + r < a.out ? a.bias[row0 + r] : 0.0f; };
    const float bias[2] = {bias_of(row), bias_of(row + 8)};
    const int count = min(64, a.out - row0);
    constexpr int kAtOnce = kTokens < kStreamAtOnce ? kTokens : kStreamAtOnce;
#pragma unroll
    for (int t0 = 0; t0 < kTokens; t0 += kAtOnce) {
        if (t0 >= true_rows) break;
        float* half = staging + (turn & 1) * (kSumBytes / 4);
        ++turn;
        if (thread < 32) bulk_wait_read<1>();   // the copies of two turns ago
        named_barrier(1 + group, 128);
#pragma unroll
        for (int j = 0; j < kAtOnce / 8; ++j) {
#pragma unroll
            for (int c = 0; c < 4; ++c)
                half[(j * 8 + lane % 4 * 2 + (c & 1)) * kSumStride + row + (c >> 1) * 8] = acc[t0 / 8 + j][c] + bias[c >> 1];
        }
        shared_proxy_fence();
        named_barrier(1 + group, 128);
        if (thread >= 32) continue;
        if (thread < kAtOnce && t0 + thread < true_rows && count > 0) {
            bulk_add(static_cast<float*>(a.y) + (t0 + thread) * a.y_stride + row0, half + thread * kSumStride,
                     static_cast<uint32_t>(count * 4));
        }
        bulk_commit();
    }
}

/// One warpgroup's kTiles x 64 rows of the block's tiles, the first of them `first` of each.
template <StreamOutput kOutput, int kTokens, int kTiles>
__device__ __forceinline__ void stream_consume(const GemmStreamArguments& a, StreamRing ring, int first, int true_rows,
                                               uint8_t* staging) {
    const int group = static_cast<int>(threadIdx.x) / 128;
    int turn = 0;
    for (StreamWork<kOutput> w(a); w.next(a);) {
        float acc[kTiles][kTokens / 8][4];
        stream_multiply<kTokens, kTiles>(acc, ring, first, w.end - w.begin);
        const int row0 = w.tile * a.tile_rows + first * 64;
        if constexpr (kOutput == StreamOutput::gated) {
            stream_write_gated<kTokens, kTiles>(a, acc, row0, min(a.out, (w.tile + 1) * a.tile_rows), true_rows, group,
                                                reinterpret_cast<__nv_bfloat16*>(staging + group * kGatedBytes));
        } else {
            stream_add_sums<kTokens>(a, acc[0], row0, a.bias != nullptr && w.begin == 0, true_rows, group,
                                     reinterpret_cast<float*>(staging + group * 2 * kSumBytes), turn);
        }
    }
    if (kOutput == StreamOutput::add && static_cast<int>(threadIdx.x) % 128 < 32) bulk_wait_all();
}

template <StreamOutput kOutput, int kTokens, int kTiles>
__global__ void __launch_bounds__(kStreamThreads<kOutput>, 1)
    gemm_stream_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap x, const GemmStreamArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t full[kStreamMostStages], empty[kStreamMostStages];
    const int tiles = (a.tile_rows + 63) / 64;
    StreamRing ring = {memory, full, empty, a.num_stages, tiles * kStreamTileBytes + kTokens * kStreamRowBytes, tiles * kStreamTileBytes};
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.num_stages; ++i) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], kStreamConsumers / 32);
        }
        barrier_fence_init();
    }
    __syncthreads();
    dependents_may_launch();
    if (threadIdx.x >= kStreamConsumers) {
        if constexpr (kOutput == StreamOutput::add) give_registers<24>();
        if (threadIdx.x == kStreamConsumers) stream_produce<kOutput, kTokens>(weights, x, a, ring);
    } else {
        if constexpr (kOutput == StreamOutput::add) take_registers<240>();
        const int true_rows = a.header->num_rows;   // here, and not where the results wait for it
        wait_for_predecessors();
        uint8_t* staging = memory + a.num_stages * ring.stage_bytes;
        const int first = warp_uniform(threadIdx.x < 128 ? 0 : kTiles);
        if (first == 0 || tiles == 2 * kTiles) {
            stream_consume<kOutput, kTokens, kTiles>(a, ring, first, true_rows, staging);
        } else if constexpr (kTiles > 1) {
            stream_consume<kOutput, kTokens, kTiles - 1>(a, ring, kTiles, true_rows, staging);
        }
    }
}

}   // namespace takt::cuda
