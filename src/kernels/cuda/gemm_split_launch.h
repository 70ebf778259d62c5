// The launch of gemm_split.h's kernel. Host side; the kernel reads the same arguments.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/params.h"
#include "kernels/status.h"

namespace takt::cuda {

struct GemmSplitArguments {
    const StepHeader* header;
    const float* bias;
    void* y;
    int64_t y_stride;
    int32_t first_row, rows, out, k_blocks, num_stages;
    bool adds;   // to float32; else bf16 is stored
};

/// Columns of a block's tile: 64, 112, 128, 144, 160, 192, 224 or 256; rows: 64 or 128. Maps have boxes of 64 columns by the tile's
/// rows and columns.
struct GemmSplitLaunch {
    int columns = 0, tile_rows = 0;
    int splits = 0;   // blocks of a cluster: 4 or 8
    const CUtensorMap *weights = nullptr, *x = nullptr;
};

/// Clusters of `splits` blocks that the device holds at once; 0 where it cannot tell.
int most_split_clusters(int splits);

/// Chooses the stages itself.
Status launch_gemm_split(cudaStream_t stream, GemmSplitArguments& a, const GemmSplitLaunch& launch);

}   // namespace takt::cuda
