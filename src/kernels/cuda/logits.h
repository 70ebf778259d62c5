// Soft cap of float32 logits. Host side; capturable.
#pragma once

#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

Status run_soft_cap(cudaStream_t stream, const LogitsParams& params, int32_t vocab);

}   // namespace takt::cuda
