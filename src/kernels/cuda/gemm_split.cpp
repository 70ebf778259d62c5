// Chooses the tiles of a divided linear layer and fills the kernel's arguments.
#include "kernels/cuda/gemm_split.h"

#include "kernels/cuda/gemm_split_launch.h"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

constexpr int64_t kFewBlocks = 80, kLongSum = 64;   // in blocks of 64 columns

struct Tiles {
    int columns = 0, splits = 0;
};

/// The narrowest tiles of which all clusters of `splits` blocks run at once; the widest where none do.
Tiles tiles_of(int64_t out, int splits, int64_t row_tiles) {
    const int64_t room = most_split_clusters(splits);
    for (const int columns : {112, 128, 144, 160, 192, 224}) {
        if ((out + columns - 1) / columns * row_tiles <= room) return {columns, splits};
    }
    return {256, splits};
}

/// Clusters of four; of eight where these leave many multiprocessors without work and sums are long.
Tiles choose_tiles(int64_t out, int64_t k_blocks, int64_t row_tiles) {
    const Tiles four = tiles_of(out, 4, row_tiles);
    const int64_t blocks = (out + four.columns - 1) / four.columns * row_tiles * 4;
    return blocks < kFewBlocks && k_blocks >= kLongSum && most_split_clusters(8) > 0 ? tiles_of(out, 8, row_tiles) : four;
}

}   // namespace

bool gemm_split_fits(const CudaLinear& linear, int32_t rows) {
    return rows >= kSplitLeastRows && rows <= kSplitMostRows && linear.in_features() % 64 == 0 && linear.in_features() >= 4 * 64 &&
           linear.out_features() % 4 == 0 && has_warpgroups() && most_split_clusters(4) > 0;
}

Status run_gemm_split(cudaStream_t stream, const GemmSplitCall& c) {
    const CudaLinear& linear = *c.linear;
    const LinearContext& context = linear.context();
    GemmSplitArguments a = {};
    a.header = c.header;
    a.bias = c.bias;
    a.y = c.y;
    a.y_stride = c.y_stride;
    a.first_row = c.first_row;
    a.rows = c.rows;
    a.out = static_cast<int32_t>(linear.out_features());
    a.k_blocks = static_cast<int32_t>(linear.in_features() / 64);
    a.adds = c.adds;
    GemmSplitLaunch launch;
    launch.tile_rows = c.rows <= 64 ? 64 : 128;
    const Tiles tiles = choose_tiles(a.out, a.k_blocks, (c.rows + launch.tile_rows - 1) / launch.tile_rows);
    launch.columns = tiles.columns;
    launch.splits = tiles.splits;
    CUtensorMap x, weights;
    Status s = context.make_map(&x, c.x, c.rows, linear.in_features(), c.x_stride, launch.tile_rows, 1);
    if (s.ok()) s = context.make_map(&weights, linear.data(), a.out, linear.in_features(), linear.stride(), launch.columns, 1);
    if (!s.ok()) return s;
    launch.weights = &weights;
    launch.x = &x;
    return launch_gemm_split(stream, a, launch);
}

}   // namespace takt::cuda
