// activation(gate) * up over interleaved gate and up columns. Host side; capturable.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

struct GateCall {
    const StepHeader* header = nullptr;
    int32_t first_row = 0, rows = 0;
    const __nv_bfloat16* product = nullptr;   // [rows][stride]: per 16 columns 8 of gate, 8 of up; or plain halves
    int64_t stride = 0;
    bool interleaved = true;
    Activation activation = Activation::silu;
    int32_t width = 0;              // of the output
    __nv_bfloat16* out = nullptr;   // [..][width], row first_row is the product's row 0
};
Status run_gate(cudaStream_t stream, const GateCall& call);

}   // namespace takt::cuda
