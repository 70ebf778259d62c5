// The CUDA backend's op table, and the forward operations behind it on a plain CUDA stream. Each enqueues and returns
// at once, may be captured, and never allocates or synchronises. Up to four rows a layer is six launches, up to kGemvRows seven; above,
// gemm_stream, gemm_split, gemm_wide and cuBLASLt (or the tile kernel) with launches of their own for norm and rotation. Types:
// residual float32, activations bf16, KV f16 or bf16, logits float32.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/linear.h"
#include "kernels/ops.h"

namespace takt::cuda {

/// What the backend's streams are, so that the table can reach the native handle.
class NativeStream : public Stream {
public:
    [[nodiscard]] virtual cudaStream_t native() const = 0;
    /// Before an operation of the table, with its parameters: whether the stream takes it. A capture remembers the memory they
    /// name.
    virtual Status begin_operation(const void* params, size_t bytes) = 0;
    /// After it, with what its launches gave: a failure is the stream's (or the capture's).
    virtual Status end_operation(Status status) = 0;
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
