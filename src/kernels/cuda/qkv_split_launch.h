// The launch of qkv_split.h's kernel. Host side; the kernel reads the same arguments.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/gemm_split_launch.h"

namespace takt::cuda {

/// What becomes of the product's columns: heads of q, then of k, then of v.
struct QkvEnd {
    const RowInput* rows;   // of the step
    const float *bias, *inverse_frequencies;
    __nv_bfloat16* q;       // [rows of the step][num_heads][head_dim]
    uint8_t* kv_layer;
    int64_t block_stride, kv_stride, head_stride;   // bytes of the cache
    float magnitude;
    int32_t num_heads, num_kv_heads, head_dim, block_tokens;
    int32_t turns_at;       // byte of shared memory where angles lie
    bool has_rope, is_f16;
};

/// `launch.columns`: 96, 128, 160, 192 or 256; `launch.splits`: 2 or 4. The weights' map has boxes of 64 columns by 16 rows of both
/// halves of a head. Chooses stages and turns_at itself.
Status launch_qkv_split(cudaStream_t stream, GemmSplitArguments& a, QkvEnd& end, const GemmSplitLaunch& launch);

}   // namespace takt::cuda
