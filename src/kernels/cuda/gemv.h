// The small-batch linear layer: up to 8 rows, weights streamed once through shared memory at the rate of the memory.
// Host side.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/linear.h"
#include "kernels/params.h"

namespace takt::cuda {

constexpr int32_t kGemvRows = 8;

enum class GemvOutput : uint8_t {
    add,     ///< y[row][n] += sum, float32, added in L2 (K may be split over blocks)
    store,   ///< y[row][n] = soft-capped sum, float32
    gated,   ///< out[row][i] = activation(gate_i) * up_i, bf16; the weights are interleaved gate and up
};

struct GemvCall {
    const CudaLinear* linear = nullptr;
    const StepHeader* header = nullptr;
    int32_t rows = 0;                // 1..kGemvRows, padded
    bool rows_are_samples = false;   // the true count is header->num_samples and the input row is samples[r].row
    const SampleInput* samples = nullptr;
    const __nv_bfloat16* x = nullptr;   // [rows][in], or
    const float* hidden = nullptr;      // [..][in] with `norm` applied on the way
    NormParams norm;
    const float* bias = nullptr;   // [out], for `add`
    GemvOutput output = GemvOutput::add;
    Activation activation = Activation::silu;
    float soft_cap = 0.0f;
    void* y = nullptr;
    int64_t y_stride = 0;
};

/// Whether `rows` rows of this layer fit the kernel's shared memory; longer ones take the general path.
bool gemv_fits(const CudaLinear& linear, int32_t rows, GemvOutput output);

/// Enqueues; capturable. gemv_fits must hold.
Status run_gemv(cudaStream_t stream, const GemvCall& call);

}   // namespace takt::cuda
