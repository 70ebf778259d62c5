// 64 x 64 tiles, four warps of 16 batch rows each, three stages of 64 columns through asynchronous copies. One
// accumulator an element and one order of K: the bits of a row depend on nothing but the row. Bound by the MMA rate of
// mma.sync at many rows.
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/ops_ptx.cuh"

namespace takt::cuda {
namespace {

constexpr int kTile = 64, kThreads = 128, kStages = 3;
constexpr int kRowBytes = kTile * 2 + 16;
constexpr int kOperandBytes = kTile * kRowBytes;

__device__ __forceinline__ void load_operand(const __nv_bfloat16* from, int64_t stride, int64_t first, int64_t rows,
                                             int64_t in, int k, uint8_t* to) {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kTile * 8; i += kThreads) {
        const int r = i / 8, c = k + i % 8 * 8;
        const bool real = first + r < rows && c < in;
        const __nv_bfloat16* src = real ? from + (first + r) * stride + c : from;
        copy_async_16(to + r * kRowBytes + i % 8 * 16, src,
                      real ? static_cast<int>(min(int64_t{16}, (in - c) * 2)) : 0);
    }
}

template <bool kFloat, bool kAdd>
__device__ __forceinline__ void store_pair(void* y, int64_t at, bool second, float u, float v) {
    if constexpr (kFloat) {
        float* to = static_cast<float*>(y) + at;
        to[0] = kAdd ? __ldcg(to) + u : u;
        if (second) to[1] = kAdd ? __ldcg(to + 1) + v : v;
    } else {
        auto* to = static_cast<__nv_bfloat16*>(y) + at;
        to[0] = __float2bfloat16_rn(u);
        if (second) to[1] = __float2bfloat16_rn(v);
    }
}

template <bool kFloat, bool kAdd>
__global__ void __launch_bounds__(kThreads, 4) gemm_tile_kernel(const LtGemm::Product p) {
    extern __shared__ __align__(128) uint8_t memory[];
    const auto* x = static_cast<const __nv_bfloat16*>(p.x);
    const auto* weight = static_cast<const __nv_bfloat16*>(p.weight);
    const int64_t row0 = int64_t{blockIdx.y} * kTile, out0 = int64_t{blockIdx.x} * kTile;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, which = lane / 8;
    const int steps = static_cast<int>((p.in + kTile - 1) / kTile);
    dependents_may_launch();
    wait_for_predecessors();
    const auto load = [&](int step) {
        if (step < steps) {
            uint8_t* stage = memory + step % kStages * 2 * kOperandBytes;
            load_operand(x, p.x_stride, row0, p.rows, p.in, step * kTile, stage);
            load_operand(weight, p.weight_stride, out0, p.out, p.in, step * kTile, stage + kOperandBytes);
        }
        copy_async_commit();
    };
    for (int i = 0; i < kStages - 1; ++i) load(i);
    float acc[8][4] = {};
    for (int step = 0; step < steps; ++step) {
        copy_async_wait<kStages - 2>();
        __syncthreads();
        load(step + kStages - 1);
        const uint32_t stage = shared_address(memory + step % kStages * 2 * kOperandBytes);
        const uint32_t a_at =
            stage + static_cast<uint32_t>((warp * 16 + lane % 8 + (which & 1) * 8) * kRowBytes + (which >> 1) * 16);
        const uint32_t b_at =
            stage + static_cast<uint32_t>(kOperandBytes + (lane % 8 + (which >> 1) * 8) * kRowBytes + (which & 1) * 16);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            uint32_t a[4];
            load_matrix_x4(a, a_at + static_cast<uint32_t>(k * 32));
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                uint32_t b[4];
                load_matrix_x4(b, b_at + static_cast<uint32_t>(n * 16 * kRowBytes + k * 32));
                mma_16816<__nv_bfloat16>(acc[2 * n], a, b[0], b[1]);
                mma_16816<__nv_bfloat16>(acc[2 * n + 1], a, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int64_t row = row0 + warp * 16 + lane / 4 + r * 8, out = out0 + n * 8 + lane % 4 * 2;
            if (row < p.rows && out < p.out) {
                store_pair<kFloat, kAdd>(p.y, row * p.y_stride + out, out + 1 < p.out, acc[n][2 * r],
                                         acc[n][2 * r + 1]);
            }
        }
    }
}

template <bool kFloat, bool kAdd>
Status launch(cudaStream_t stream, const LtGemm::Product& p) {
    constexpr size_t kBytes = size_t{kStages} * 2 * kOperandBytes;
    const Status s = allow_shared(gemm_tile_kernel<kFloat, kAdd>, kBytes);
    if (!s.ok()) return s;
    const dim3 grid(static_cast<unsigned>((p.out + kTile - 1) / kTile),
                    static_cast<unsigned>((p.rows + kTile - 1) / kTile));
    return launch_kernel(stream, grid, dim3(kThreads), kBytes, Edge::programmatic, gemm_tile_kernel<kFloat, kAdd>, p);
}

}   // namespace

Status run_gemm_tile(cudaStream_t stream, const LtGemm::Product& p) {
    if (p.in % 8 != 0 || p.x_stride % 8 != 0)
        return {kStatusBadArgument, "CUDA: width of a linear layer must be a multiple of 8"};
    if (p.y_is_float) return p.add ? launch<true, true>(stream, p) : launch<true, false>(stream, p);
    if (p.add) return {kStatusBadArgument, "CUDA: only float32 results can be added to"};
    return launch<false, false>(stream, p);
}

}   // namespace takt::cuda
