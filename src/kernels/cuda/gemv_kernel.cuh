// The kernel of gemv.h. A block owns a run of 16-row weight groups and one slice of K. A producer lane streams 16 x 128
// boxes of weights (4 KB, two swizzled 16 x 64 chunks) through a ring, starting before the previous kernel has ended;
// eight consumer warps take one chunk each, multiply it with the activations kept in shared memory (weights are the
// 16-row operand, rows of the batch the 8 columns), and sum over the warps at the end of a group.
#pragma once

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {

constexpr int kGemvConsumers = 8;
constexpr int kGemvThreads = (kGemvConsumers + 1) * 32;
constexpr int kGemvStageBytes = 16384;   // eight chunks
constexpr int kGemvPieceBytes = 4096;
constexpr int kGemvTurns = 16;   // groups that a ring's stages can belong to, and some
constexpr int kGemvReduceBytes = 2 * kGemvConsumers * 128 * 4;

struct GemvArguments {
    const StepHeader* header;
    const SampleInput* samples;
    const __nv_bfloat16* x;
    const float* hidden;
    const float* norm_weight;
    const float* bias;
    void* y;
    int64_t y_stride;
    float epsilon, soft_cap;
    int32_t rows, in, out;
    int32_t num_slices, blocks_per_slice;
    int32_t num_stages, x_stride;   // of the ring; elements of a row of x in shared memory
    int32_t rest_begin;             // groups from here on are taken by whichever block is free, counted by `taken`
    int32_t* taken;
    bool one_plus, rows_are_samples, is_gelu;
};

/// What one block does: groups [group_begin, group_end) over pieces [piece_begin, piece_end) of 128 columns.
struct GemvShare {
    int group_begin, group_end, piece_begin, piece_end;
};

__device__ __forceinline__ GemvShare gemv_share(const GemvArguments& a) {
    const int slice = static_cast<int>(blockIdx.x) / a.blocks_per_slice;
    const int block = static_cast<int>(blockIdx.x) % a.blocks_per_slice;
    const int64_t pieces = (a.in + 127) / 128, groups = a.rest_begin;
    GemvShare s = {0, 0, 0, 0};
    if (slice >= a.num_slices) return s;   // a block without work: it only holds its place
    s.group_begin = static_cast<int>(groups * block / a.blocks_per_slice);
    s.group_end = static_cast<int>(groups * (block + 1) / a.blocks_per_slice);
    s.piece_begin = static_cast<int>(pieces * slice / a.num_slices);
    s.piece_end = static_cast<int>(pieces * (slice + 1) / a.num_slices);
    return s;
}

/// Groups in the order in which a block does them. Where sums are whole, one of each round of all blocks, which so walk through the
/// matrix side by side, then what is left of the common rest; else a run.
struct GemvGroups {
    int next, step, own_end, rest_begin, end;
    int32_t* taken;   // of the rest, by all blocks; null: there is none

    __device__ __forceinline__ GemvGroups(const GemvArguments& a, const GemvShare& s)
        : next(a.taken != nullptr ? static_cast<int>(blockIdx.x) : s.group_begin), step(a.taken != nullptr ? a.blocks_per_slice : 1),
          own_end(a.taken != nullptr ? a.rest_begin : s.group_end), rest_begin(a.rest_begin), end((a.out + 15) / 16), taken(a.taken) {}
    /// -1: no more. Each block asks in vain once; the last to do so sets the count back to zero.
    __device__ __forceinline__ int take() {
        int group = next;
        next += step;
        if (group < own_end) return group;
        if (taken == nullptr) return -1;
        group = rest_begin + atomicAdd(taken, 1);
        if (group < end) return group;
        if (group == end + static_cast<int>(gridDim.x) - 1) *taken = 0;
        return -1;
    }
};

/// One lane: streams the groups' weights; which group a turn is for lies in `turns`, -1 after the last.
__device__ __forceinline__ void gemv_produce(const CUtensorMap& map, const GemvArguments& a, const GemvShare& s,
                                             uint8_t* ring, uint64_t* full, uint64_t* empty, int* turns) {
    int stage = 0, turn = 0;
    uint32_t phase = 0;
    const auto advance = [&] {
        if (++stage == a.num_stages) {
            stage = 0;
            phase ^= 1u;
        }
    };
    GemvGroups groups(a, s);
    for (int group = groups.take();; group = groups.take(), ++turn) {
        if (group < 0) {
            barrier_wait(&empty[stage], phase ^ 1u);
            turns[turn % kGemvTurns] = -1;
            barrier_arrive(&full[stage]);
            return;
        }
        for (int piece = s.piece_begin; piece < s.piece_end; piece += 4, advance()) {
            const int n = min(4, s.piece_end - piece);
            barrier_wait(&empty[stage], phase ^ 1u);
            if (piece == s.piece_begin) turns[turn % kGemvTurns] = group;
            barrier_expect(&full[stage], static_cast<uint32_t>(n * kGemvPieceBytes));
            uint8_t* to = ring + stage * kGemvStageBytes;
#pragma unroll 1
            for (int i = 0; i < n; ++i)
                tensor_load_3d(to + i * kGemvPieceBytes, &map, &full[stage], 0, group * 16, (piece + i) * 2, kEvictFirst);
        }
    }
}

__device__ __forceinline__ int64_t gemv_input_row(const GemvArguments& a, int row, int true_rows) {
    if (row >= true_rows) return -1;
    return a.rows_are_samples ? a.samples[row].row : row;
}

/// bf16 x into shared memory, zero past `in`.
__device__ __forceinline__ void gemv_load_plain(const GemvArguments& a, const GemvShare& s, int true_rows,
                                                __nv_bfloat16* to) {
    constexpr int kAtOnce = 8, kStep = kGemvConsumers * 32;
    const int begin = s.piece_begin * 128, vectors = (s.piece_end - s.piece_begin) * 16, all = a.rows * vectors;
    for (int i0 = static_cast<int>(threadIdx.x); i0 < all; i0 += kAtOnce * kStep) {
        uint4 v[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            const int i = i0 + j * kStep, row = i / vectors, column = begin + i % vectors * 8;
            const int64_t from = i < all ? gemv_input_row(a, row, true_rows) : -1;
            v[j] = make_uint4(0, 0, 0, 0);
            if (from >= 0 && column < a.in) v[j] = __ldcg(reinterpret_cast<const uint4*>(a.x + from * a.in + column));
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            const int i = i0 + j * kStep;
            if (i < all) *reinterpret_cast<uint4*>(to + i / vectors * a.x_stride + i % vectors * 8) = v[j];
        }
    }
}

/// hidden x norm weight of up to kRows rows into shared memory as bf16, and the rows' sums of squares into `partial`. The
/// rows' loads are in flight together.
template <int kRows>
__device__ __forceinline__ void gemv_load_rows(const GemvArguments& a, const GemvShare& s, int true_rows, __nv_bfloat16* to,
                                               float* partial) {
    constexpr int kStep = kGemvConsumers * 128, kAtOnce = 8 / kRows;
    const int begin = s.piece_begin * 128, end = s.piece_end * 128;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int from[kRows];
    float sum[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) from[r] = static_cast<int>(gemv_input_row(a, r, true_rows));
    for (int c0 = static_cast<int>(threadIdx.x) * 4; c0 < max(a.in, end); c0 += kAtOnce * kStep) {
        float4 v[kAtOnce][kRows], w[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            const int c = c0 + j * kStep;
            w[j] = c < a.in ? __ldg(reinterpret_cast<const float4*>(a.norm_weight + c)) : make_float4(0, 0, 0, 0);
            if (a.one_plus) w[j] = make_float4(1 + w[j].x, 1 + w[j].y, 1 + w[j].z, 1 + w[j].w);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                v[j][r] = make_float4(0, 0, 0, 0);
                if (from[r] >= 0 && c < a.in)
                    v[j][r] = __ldcg(reinterpret_cast<const float4*>(a.hidden + int64_t{from[r]} * a.in + c));
            }
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            const int c = c0 + j * kStep;
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float4 x = v[j][r];
                sum[r] += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
                if (c < begin || c >= end || r >= a.rows) continue;
                *reinterpret_cast<uint2*>(to + r * a.x_stride + (c - begin)) =
                    make_uint2(pack_pair<__nv_bfloat16>(x.x * w[j].x, x.y * w[j].y),
                               pack_pair<__nv_bfloat16>(x.z * w[j].z, x.w * w[j].w));
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        sum[r] = warp_sum(sum[r]);
        if (lane == 0) partial[r * kGemvConsumers + warp] = sum[r];
    }
}

/// The same for any row count; the root mean square is applied to the sums (`scales`).
__device__ __forceinline__ void gemv_load_normed(const GemvArguments& a, const GemvShare& s, int true_rows,
                                                 __nv_bfloat16* to, float* partial, float* scales) {
    if (a.rows == 1) {
        gemv_load_rows<1>(a, s, true_rows, to, partial);
    } else if (a.rows <= 4) {
        gemv_load_rows<4>(a, s, true_rows, to, partial);
    } else {
        gemv_load_rows<8>(a, s, true_rows, to, partial);
    }
    named_barrier(1, kGemvConsumers * 32);
    if (static_cast<int>(threadIdx.x) < a.rows) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kGemvConsumers; ++w) sum += partial[threadIdx.x * kGemvConsumers + w];
        scales[threadIdx.x] = rsqrtf(sum / static_cast<float>(a.in) + a.epsilon);
    }
}

/// The group of a turn, -1 after the last. Read by the lane that arrives at `empty`: that orders the read before the producer writes
/// the place again, kGemvTurns turns later, whatever the compiler makes of the warp's own order.
__device__ __forceinline__ int gemv_group(const int* turns, int turn) {
    int group = 0;
    if (threadIdx.x % 32 == 0) group = turns[turn % kGemvTurns];
    return warp_uniform(group);
}

/// One 16 x 64 chunk times the rows.
__device__ __forceinline__ void gemv_multiply(float (&acc)[4], uint32_t chunk, uint32_t x) {
    const int lane = static_cast<int>(threadIdx.x) % 32, which = lane / 8;
    const int row = lane % 8 + (which & 1) * 8;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t b[4];
        load_matrix_x4(b, x + static_cast<uint32_t>(half * 64));
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int sixteenth = (half * 2 + k) * 2 + (which >> 1);
            uint32_t w[4];
            load_matrix_x4(w, chunk + static_cast<uint32_t>(row * 128 + ((sixteenth ^ (row & 7)) * 16)));
            mma_16816<__nv_bfloat16>(acc, w, b[k * 2], b[k * 2 + 1]);
        }
    }
}

template <GemvOutput kOutput>
__device__ __forceinline__ void gemv_write(const GemvArguments& a, int group, int true_rows, bool first_slice,
                                           const float* reduce, const float* scales) {
    const int e = static_cast<int>(threadIdx.x);
    if (e >= 128) return;
    const int row = (e / 4 % 4) * 2 + (e & 1);
    if (row >= true_rows) return;
    const auto total = [&](int i) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kGemvConsumers; ++w) sum += reduce[w * 128 + i];
        return a.hidden != nullptr ? sum * scales[row] : sum;
    };
    if constexpr (kOutput == GemvOutput::gated) {
        if ((e & 2) != 0) return;
        const float gate = total(e), up = total(e + 2);
        const int i = group * 8 + e / 16;
        const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
        const float on = a.is_gelu ? gate / (1.0f + __expf(-2.0f * inner)) : gate / (1.0f + __expf(-gate));
        if (i < a.out / 2) static_cast<__nv_bfloat16*>(a.y)[row * a.y_stride + i] = __float2bfloat16_rn(on * up);
    } else {
        const int n = group * 16 + e / 16 + ((e & 2) != 0 ? 8 : 0);
        if (n >= a.out) return;
        float v = total(e);
        float* y = static_cast<float*>(a.y) + row * a.y_stride + n;
        if constexpr (kOutput == GemvOutput::add) {
            if (first_slice && a.bias != nullptr) v += a.bias[n];
            add_global(y, v);
        } else {
            *y = a.soft_cap > 0 ? a.soft_cap * tanhf(v / a.soft_cap) : v;
        }
    }
}

/// Few enough registers that blocks of two such kernels, or of one and attention, leave room for the small kernel between them.
template <GemvOutput kOutput>
__global__ void __maxnreg__(88)
    gemv_kernel(const __grid_constant__ CUtensorMap map, const GemvArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t full[8], empty[8];
    __shared__ int turns[kGemvTurns];
    __shared__ float partial[kGemvRows * kGemvConsumers], scales[kGemvRows];
    uint8_t* ring = memory;
    auto* reduce = reinterpret_cast<float*>(memory + a.num_stages * kGemvStageBytes);
    auto* x = reinterpret_cast<__nv_bfloat16*>(memory + a.num_stages * kGemvStageBytes + kGemvReduceBytes);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const GemvShare share = gemv_share(a);
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.num_stages; ++i) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], kGemvConsumers);
        }
        barrier_fence_init();
    }
    __syncthreads();
    dependents_may_launch();
    if (warp == kGemvConsumers) {
        if (lane == 0) gemv_produce(map, a, share, ring, full, empty, turns);
        return;
    }
    if (a.hidden != nullptr) {
        for (int c = static_cast<int>(threadIdx.x) * 32; c < a.in; c += kGemvConsumers * 1024) prefetch_global(a.norm_weight + c);
    }
    const int true_rows = min(a.rows, a.rows_are_samples ? a.header->num_samples : a.header->num_rows);
    wait_for_predecessors();
    if (share.group_begin == share.group_end) return linger(3000);
    if (a.hidden != nullptr) {
        gemv_load_normed(a, share, true_rows, x, partial, scales);
    } else {
        gemv_load_plain(a, share, true_rows, x);
    }
    named_barrier(1, kGemvConsumers * 32);
    const uint32_t x_lane = shared_address(x + min(lane % 8, a.rows - 1) * a.x_stride + lane / 8 * 8);
    int stage = 0;
    uint32_t phase = 0;
    for (int turn = 0;; ++turn) {
        barrier_wait(&full[stage], phase);
        const int group = gemv_group(turns, turn);
        if (group < 0) break;
        float acc[4] = {0, 0, 0, 0};
        for (int piece = share.piece_begin; piece < share.piece_end; piece += 4) {
            barrier_wait(&full[stage], phase);
            if (warp < 2 * (share.piece_end - piece)) {
                const int column = (piece - share.piece_begin) * 128 + warp * 64;
                gemv_multiply(acc, shared_address(ring + stage * kGemvStageBytes + warp * 2048),
                              x_lane + static_cast<uint32_t>(column * 2));
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(&empty[stage]);
            if (++stage == a.num_stages) {
                stage = 0;
                phase ^= 1u;
            }
        }
        float* mine = reduce + turn % 2 * kGemvConsumers * 128;
        *reinterpret_cast<float4*>(mine + warp * 128 + lane * 4) = make_float4(acc[0], acc[1], acc[2], acc[3]);
        named_barrier(1, kGemvConsumers * 32);
        gemv_write<kOutput>(a, group, true_rows, share.piece_begin == 0, mine, scales);
    }
}

}   // namespace takt::cuda
