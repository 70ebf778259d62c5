// The matrix product whose K order is the same for every number of rows: deterministic mode, and wherever cuBLASLt is
// not there. Host side; capturable.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/gemm_lt.h"
#include "kernels/params.h"

namespace takt::cuda {

/// y = x W^T, or y += x W^T (float32). K runs from 0 upwards in steps of 16 for every element, whatever the rows.
Status run_gemm_tile(cudaStream_t stream, const LtGemm::Product& product);

}   // namespace takt::cuda
