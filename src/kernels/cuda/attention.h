// Attention of a step: all items of the work list in one launch. Host side; capturable.
#pragma once

#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

Status run_attention(cudaStream_t stream, const AttentionParams& params, int32_t num_sms);

}   // namespace takt::cuda
