// The linear layer of medium steps whose sums are long or whose outputs are few: a cluster of blocks divides the columns of a tile and
// adds its parts in shared memory, so that all multiprocessors read weights and no sum goes through L2 more than once. Host side.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/linear.h"
#include "kernels/params.h"

namespace takt::cuda {

constexpr int32_t kSplitLeastRows = 5, kSplitMostRows = 128;

/// Where y is float32, y[row][n] += sum + bias; else y[row][n] = sum, bf16, without bias.
struct GemmSplitCall {
    const CudaLinear* linear = nullptr;
    const StepHeader* header = nullptr;
    int32_t first_row = 0;              // of the step, whose row is row 0 of x and y
    int32_t rows = 0;                   // padded; rows past header->num_rows are not written
    const __nv_bfloat16* x = nullptr;   // [rows][x_stride]
    int64_t x_stride = 0;
    const float* bias = nullptr;   // [out] or null
    bool adds = false;
    void* y = nullptr;
    int64_t y_stride = 0;   // elements, a multiple of 4
};

/// Whether the device and this layer's shape allow it.
bool gemm_split_fits(const CudaLinear& linear, int32_t rows);

/// Enqueues; capturable. gemm_split_fits must hold. The order of a sum's parts is fixed.
Status run_gemm_split(cudaStream_t stream, const GemmSplitCall& call);

}   // namespace takt::cuda
