// Gate and up of large steps: tiles of 128 rows by up to 256 columns, computed by warpgroups while a producer streams both operands;
// blocks work in pairs that share one of them. Host side.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/linear.h"
#include "kernels/params.h"

namespace takt::cuda {

constexpr int32_t kWideLeastRows = 65;   ///< fewer are better off with gemm_stream

/// y[row][i] = activation(gate_i) * up_i, bf16; the weights are interleaved gate and up.
struct GemmWideCall {
    const CudaLinear* linear = nullptr;
    const StepHeader* header = nullptr;
    int32_t first_row = 0;              // of the step, whose row is row 0 of x and y
    int32_t rows = 0;                   // padded; rows past header->num_rows are neither computed nor written
    const __nv_bfloat16* x = nullptr;   // [rows][x_stride]
    int64_t x_stride = 0;
    Activation activation = Activation::silu;
    __nv_bfloat16* y = nullptr;
    int64_t y_stride = 0;   // elements, a multiple of 8
};

/// Whether the device and this layer's shape allow it.
bool gemm_wide_fits(const CudaLinear& linear, int32_t rows);

/// Enqueues; capturable. gemm_wide_fits must hold.
Status run_gemm_wide(cudaStream_t stream, const GemmWideCall& call);

}   // namespace takt::cuda
