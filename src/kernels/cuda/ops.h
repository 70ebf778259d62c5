// The CUDA backend's op table, and the forward operations behind it on a plain CUDA stream. Each enqueues and returns
// at once, may be captured, and never allocates or synchronises. Up to kGemvRows rows a layer is six launches; above,
// cuBLASLt (or the tile kernel) with its own launches for norm, gate and rotation. Types: residual float32, activations
// bf16, KV f16 or bf16, logits float32.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/linear.h"
#include "kernels/ops.h"

namespace takt::cuda {

/// What the backend's streams are, so that the table can reach the native handle.
class NativeStream : public Stream {
public:
    [[nodiscard]] virtual cudaStream_t native() const = 0;
};

Status run_attention_input(cudaStream_t stream, const AttentionInputParams& params);
Status run_linear_residual(cudaStream_t stream, const LinearResidualParams& params);
Status run_mlp_input(cudaStream_t stream, const MlpInputParams& params);
Status run_logits(cudaStream_t stream, const LogitsParams& params);

/// Streams given to its operations must be NativeStreams; devices must report their multiprocessors as
/// caps().num_threads.
const OpTable& cuda_op_table();
/// The same with attention planned without splits, for devices whose LinearContext is deterministic.
const OpTable& cuda_deterministic_op_table();

}   // namespace takt::cuda
