// The end of a layer's attention input: bias, per-head norm of q and k, rotary embedding, K and V into the paged cache.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

struct FinishQkvCall {
    const AttentionInputParams* params = nullptr;
    int32_t first_row = 0, rows = 0;
    float* sums = nullptr;                    // [rows][sums_stride] float32, set back to zero here; or
    const __nv_bfloat16* product = nullptr;   // [rows][product_stride]
    int64_t stride = 0;
};
/// Rows [first_row, first_row + rows); row 0 of the input is first_row. Head dims up to 256, even. KV f16 or bf16.
/// Capturable.
Status run_finish_qkv(cudaStream_t stream, const FinishQkvCall& call);

}   // namespace takt::cuda
