// Row-wise operations on the residual: RMS norm to bf16, the addition of a normed or biased branch. Host side; all
// capturable.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

struct NormRowsCall {
    const StepHeader* header = nullptr;
    const SampleInput* samples = nullptr;   // not null: row r reads hidden row samples[r].row, true count num_samples
    int32_t first_row = 0, rows = 0;        // rows [first_row, first_row + rows) of hidden into out rows [0, rows)
    const float* hidden = nullptr;          // [..][dim]
    int32_t dim = 0;
    NormParams norm;                // weight null: only converts
    __nv_bfloat16* out = nullptr;   // [rows][out_stride]
    int64_t out_stride = 0;
};
Status run_norm_rows(cudaStream_t stream, const NormRowsCall& call);

struct AddBranchCall {
    const StepHeader* header = nullptr;
    int32_t first_row = 0, rows = 0;
    const __nv_bfloat16* branch = nullptr;   // [rows][branch_stride], row 0 is first_row
    int64_t branch_stride = 0;
    const float* bias = nullptr;   // [dim] or null
    NormParams norm;               // of branch + bias; weight null: none
    float* hidden = nullptr;       // [..][dim] +=
    int32_t dim = 0;
};
Status run_add_branch(cudaStream_t stream, const AddBranchCall& call);

}   // namespace takt::cuda
