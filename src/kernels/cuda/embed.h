// Token embedding: rows of the table to the float32 residual. Host side; capturable.
#pragma once

#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

/// The first operation of a step: it waits for everything before it.
Status run_embed(cudaStream_t stream, const EmbedParams& params);

}   // namespace takt::cuda
