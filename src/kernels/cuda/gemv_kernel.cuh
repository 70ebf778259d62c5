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
    bool one_plus, rows_are_samples, is_gelu;
};

/// What one block does: groups [group_begin, group_end) over pieces [piece_begin, piece_end) of 128 columns.
struct GemvShare {
    int group_begin, group_end, piece_begin, piece_end;
};

__device__ __forceinline__ GemvShare gemv_share(const GemvArguments& a) {
    const int slice = static_cast<int>(blockIdx.x) / a.blocks_per_slice;
    const int block = static_cast<int>(blockIdx.x) % a.blocks_per_slice;
    const int64_t pieces = (a.in + 127) / 128, groups = (a.out + 15) / 16;
    GemvShare s;
    s.group_begin = static_cast<int>(groups * block / a.blocks_per_slice);
    s.group_end = static_cast<int>(groups * (block + 1) / a.blocks_per_slice);
    s.piece_begin = static_cast<int>(pieces * slice / a.num_slices);
    s.piece_end = static_cast<int>(pieces * (slice + 1) / a.num_slices);
    return s;
}

__device__ __forceinline__ void gemv_produce(const CUtensorMap& map, const GemvArguments& a, const GemvShare& s,
                                             uint8_t* ring, uint64_t* full, uint64_t* empty) {
    int stage = 0;
    uint32_t phase = 0;
    for (int group = s.group_begin; group < s.group_end; ++group) {
        for (int piece = s.piece_begin; piece < s.piece_end; piece += 4) {
            const int n = min(4, s.piece_end - piece);
            barrier_wait(&empty[stage], phase ^ 1u);
            barrier_expect(&full[stage], static_cast<uint32_t>(n * kGemvPieceBytes));
            uint8_t* to = ring + stage * kGemvStageBytes;
            for (int i = 0; i < n; ++i) {
                tensor_load_3d(to + i * kGemvPieceBytes, &map, &full[stage], 0, group * 16, (piece + i) * 2,
                               kEvictFirst);
            }
            if (++stage == a.num_stages) {
                stage = 0;
                phase ^= 1u;
            }
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
    const int begin = s.piece_begin * 128, vectors = (s.piece_end - s.piece_begin) * 16;
    for (int i = static_cast<int>(threadIdx.x); i < a.rows * vectors; i += kGemvConsumers * 32) {
        const int row = i / vectors, column = begin + i % vectors * 8;
        const int64_t from = gemv_input_row(a, row, true_rows);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (from >= 0 && column < a.in) v = __ldcg(reinterpret_cast<const uint4*>(a.x + from * a.in + column));
        *reinterpret_cast<uint4*>(to + row * a.x_stride + (column - begin)) = v;
    }
}

/// hidden x norm weight into shared memory as bf16; the root mean square is applied to the sums (`scales`).
__device__ __forceinline__ void gemv_load_normed(const GemvArguments& a, const GemvShare& s, int true_rows,
                                                 __nv_bfloat16* to, float* partial, float* scales) {
    const int begin = s.piece_begin * 128, end = s.piece_end * 128;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    for (int row = 0; row < a.rows; ++row) {
        const int64_t from = gemv_input_row(a, row, true_rows);
        float sum = 0;
#pragma unroll 4
        for (int c = static_cast<int>(threadIdx.x) * 4; c < max(a.in, end); c += kGemvConsumers * 128) {
            float4 v = make_float4(0, 0, 0, 0), w = make_float4(0, 0, 0, 0);
            if (from >= 0 && c < a.in) {
                v = __ldcg(reinterpret_cast<const float4*>(a.hidden + from * a.in + c));
                w = __ldg(reinterpret_cast<const float4*>(a.norm_weight + c));
            }
            if (a.one_plus) w = make_float4(1 + w.x, 1 + w.y, 1 + w.z, 1 + w.w);
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            if (c >= begin && c < end) {
                const uint2 packed = make_uint2(pack_pair<__nv_bfloat16>(v.x * w.x, v.y * w.y),
                                                pack_pair<__nv_bfloat16>(v.z * w.z, v.w * w.w));
                *reinterpret_cast<uint2*>(to + row * a.x_stride + (c - begin)) = packed;
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) partial[row * kGemvConsumers + warp] = sum;
    }
    named_barrier(1, kGemvConsumers * 32);
    if (static_cast<int>(threadIdx.x) < a.rows) {
        float sum = 0;
        for (int w = 0; w < kGemvConsumers; ++w) sum += partial[threadIdx.x * kGemvConsumers + w];
        scales[threadIdx.x] = rsqrtf(sum / static_cast<float>(a.in) + a.epsilon);
    }
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

template <GemvOutput kOutput>
__global__ void __launch_bounds__(kGemvThreads, 2)
    gemv_kernel(const __grid_constant__ CUtensorMap map, const GemvArguments a) {
    extern __shared__ __align__(1024) uint8_t memory[];
    __shared__ uint64_t full[8], empty[8];
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
        if (lane == 0) gemv_produce(map, a, share, ring, full, empty);
        return;
    }
    wait_for_predecessors();
    const int true_rows = min(a.rows, a.rows_are_samples ? a.header->num_samples : a.header->num_rows);
    if (a.hidden != nullptr) {
        gemv_load_normed(a, share, true_rows, x, partial, scales);
    } else {
        gemv_load_plain(a, share, true_rows, x);
    }
    named_barrier(1, kGemvConsumers * 32);
    const uint32_t x_lane = shared_address(x + min(lane % 8, a.rows - 1) * a.x_stride + lane / 8 * 8);
    int stage = 0, turn = 0;
    uint32_t phase = 0;
    for (int group = share.group_begin; group < share.group_end; ++group, turn ^= 1) {
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
        float* mine = reduce + turn * kGemvConsumers * 128;
        *reinterpret_cast<float4*>(mine + warp * 128 + lane * 4) = make_float4(acc[0], acc[1], acc[2], acc[3]);
        named_barrier(1, kGemvConsumers * 32);
        gemv_write<kOutput>(a, group, true_rows, share.piece_begin == 0, mine, scales);
    }
}

}   // namespace takt::cuda
