// The launches of gemm_stream.h by what happens to the results, one translation unit each. Host side.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "kernels/params.h"
#include "kernels/status.h"

namespace takt::cuda {

/// What the kernel reads. A tile is `tile_rows` weight rows.
struct GemmStreamArguments {
    const StepHeader* header;
    const float* bias;
    void* y;
    int64_t y_stride;
    int32_t out, k_blocks, tile_rows, num_tiles, num_stages;
    bool is_gelu;
};

/// `tokens`: columns of the product: 16, 32 or 64.
struct GemmStreamLaunch {
    int num_sms = 0;
    int tokens = 0;
    const CUtensorMap *weights = nullptr, *x = nullptr;
};

/// Each chooses tiles and stages itself.
Status launch_gemm_stream_add(cudaStream_t stream, GemmStreamArguments& a, const GemmStreamLaunch& launch);
Status launch_gemm_stream_gated(cudaStream_t stream, GemmStreamArguments& a, const GemmStreamLaunch& launch);

}   // namespace takt::cuda
