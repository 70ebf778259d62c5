// Attention of a step: the decode items of the work list in one launch, the prefill items in another. Host side; capturable.
#pragma once

#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

/// `deterministic`: the plan was made without splits and may have prefill items in a step of any size.
Status run_attention(cudaStream_t stream, const AttentionParams& params, int32_t num_sms, bool deterministic = false);

}   // namespace takt::cuda
