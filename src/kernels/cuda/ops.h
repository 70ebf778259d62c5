// The CUDA backend's op table. Adapts the operations of this folder to the plain function pointers of kernels/ops.h; each
// enqueues on a CudaStream and returns at once, may be captured, and never allocates or synchronises.
// Types: residual float32, activations bf16, KV f16 or bf16, logits float32.
#pragma once

#include "kernels/ops.h"

namespace takt::cuda {

const OpTable& cuda_op_table();

}  // namespace takt::cuda
