// The launch of gemm_wide.h's kernel. Host side; the kernel reads the same arguments.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/params.h"
#include "kernels/status.h"

namespace takt::cuda {

constexpr int32_t kWideRows = 128;   ///< of a block's tile

struct GemmWideArguments {
    const StepHeader* header;
    __nv_bfloat16* y;
    int64_t y_stride;
    int32_t first_row, rows, out, k_blocks;
    bool shares_rows;   // the blocks of a pair have two tiles of the same rows; else of the same columns
    bool is_gelu;
};

/// Columns of a block's tile: 112, 128, 144, 160, 176, 192, 224 or 256. Maps have boxes of 64 columns by the rows that a block
/// loads at a time.
struct GemmWideLaunch {
    int num_sms = 0;
    int columns = 0;
    const CUtensorMap *weights = nullptr, *x = nullptr;
};

Status launch_gemm_wide(cudaStream_t stream, const GemmWideArguments& a, const GemmWideLaunch& launch);

}   // namespace takt::cuda
