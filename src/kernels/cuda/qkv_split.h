// The attention input of medium steps as one product: gemm_split.h's clusters, whose tiles hold whole pairs of columns that rotate
// together, so that the block that adds a sum's parts also adds the bias, rotates and writes q and the paged cache. Host side.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/linear.h"
#include "kernels/params.h"

namespace takt::cuda {

struct QkvSplitCall {
    const AttentionInputParams* params = nullptr;
    int32_t first_row = 0, rows = 0;    // of the step; its row first_row is row 0 of x
    const __nv_bfloat16* x = nullptr;   // [rows][x_stride], normed
    int64_t x_stride = 0;
    int32_t columns = 0, splits = 0;    // of a tile: 96, 128, 160, 192 or 256; blocks of a cluster: 2 or 4. 0: chosen
};

/// Whether the device and these shapes allow it: 5 to 256 rows, no norm of heads, pairs half a head apart, halves of whole sixteens.
bool qkv_split_fits(const AttentionInputParams& params, int32_t rows);

/// Enqueues; capturable. qkv_split_fits must hold. The order of a sum's parts is fixed.
Status run_qkv_split(cudaStream_t stream, const QkvSplitCall& call);

}   // namespace takt::cuda
