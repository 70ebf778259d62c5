// Sampling on the device, in the contract's order and with the CPU's generator. Host side; capturable.
#pragma once

#include <cuda_runtime.h>

#include "kernels/params.h"

namespace takt::cuda {

Status run_sample(cudaStream_t stream, const SampleParams& params);
/// The full path keeps one adjusted copy of each sample's logits.
size_t sample_workspace_bytes(int32_t samples, int32_t vocab);

}   // namespace takt::cuda
