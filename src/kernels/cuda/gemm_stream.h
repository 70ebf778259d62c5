// The linear layer of medium steps: weights streamed once through shared memory into warpgroup products. Host side.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/linear.h"
#include "kernels/params.h"

namespace takt::cuda {

constexpr int32_t kStreamRows = 64;   ///< most rows

enum class StreamOutput : uint8_t {
    add,     ///< y[row][n] += sum + bias, float32
    gated,   ///< out[row][i] = activation(gate_i) * up_i, bf16; the weights are interleaved gate and up
};

struct GemmStreamCall {
    const CudaLinear* linear = nullptr;
    const StepHeader* header = nullptr;
    int32_t rows = 0;                   // padded; results past header->num_rows are not written
    const __nv_bfloat16* x = nullptr;   // [rows][x_stride]
    int64_t x_stride = 0;
    const float* bias = nullptr;   // [out] or null; for `add`
    StreamOutput output = StreamOutput::add;
    Activation activation = Activation::silu;
    void* y = nullptr;
    int64_t y_stride = 0;   // elements, a multiple of 8
};

/// Whether the device and this layer's shape allow it.
bool gemm_stream_fits(const CudaLinear& linear, int32_t rows, StreamOutput output);

/// Enqueues; capturable. gemm_stream_fits must hold.
Status run_gemm_stream(cudaStream_t stream, const GemmStreamCall& call);

}   // namespace takt::cuda
