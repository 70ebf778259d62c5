// Cuts a medium linear layer into tiles and launches the kernel; instantiated once an output (gemm_stream_*.cu).
#pragma once

#include <algorithm>

#include "kernels/cuda/gemm_stream_kernel.cuh"
#include "kernels/cuda/gemm_stream_launch.h"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {

constexpr int kStreamShared = 232'448 - 1024;   // what a block may have, less its barriers

template <StreamOutput kOutput, int kTokens, int kTiles>
Status launch_stream(cudaStream_t stream, GemmStreamArguments& a, const GemmStreamLaunch& launch) {
    const int stage = (a.tile_rows + 63) / 64 * kStreamTileBytes + kTokens * kStreamRowBytes;
    a.num_stages = std::min(kStreamMostStages, (kStreamShared - kStreamOutBytes<kOutput>) / stage);
    const auto bytes = static_cast<size_t>(a.num_stages * stage + kStreamOutBytes<kOutput>);
    const auto kernel = gemm_stream_kernel<kOutput, kTokens, kTiles>;
    const Status s = allow_shared(kernel, bytes);
    if (!s.ok()) return s;
    const int blocks = kOutput == StreamOutput::add ? launch.num_sms : std::min(launch.num_sms, a.num_tiles);
    return launch_kernel(stream, dim3(static_cast<unsigned>(blocks)), dim3(kStreamThreads<kOutput>), bytes, Edge::programmatic, kernel,
                         *launch.weights, *launch.x, a);
}

/// Rows of a tile of gate and up, a multiple of 32: the fewest rounds, then the evenest.
inline void choose_tile_rows(GemmStreamArguments& a, int num_sms, int tokens) {
    double best = 0;
    for (int rows = 128; rows <= 384; rows += kStreamBoxRows) {
        const int tiles = (a.out + rows - 1) / rows, rounds = (tiles + num_sms - 1) / num_sms;
        const double cost = rounds * (rows + 0.3 * tokens + 24);
        if (best > 0 && cost >= best) continue;
        best = cost;
        a.tile_rows = rows;
        a.num_tiles = tiles;
    }
}

template <int kTokens>
Status launch_add(cudaStream_t stream, GemmStreamArguments& a, const GemmStreamLaunch& launch) {
    a.tile_rows = kSummedRows;
    a.num_tiles = (a.out + kSummedRows - 1) / kSummedRows;
    return launch_stream<StreamOutput::add, kTokens, 1>(stream, a, launch);
}

template <int kTokens>
Status launch_gated(cudaStream_t stream, GemmStreamArguments& a, const GemmStreamLaunch& launch) {
    choose_tile_rows(a, launch.num_sms, kTokens);
    if (a.tile_rows <= 128) return launch_stream<StreamOutput::gated, kTokens, 1>(stream, a, launch);
    if (a.tile_rows <= 256) return launch_stream<StreamOutput::gated, kTokens, 2>(stream, a, launch);
    return launch_stream<StreamOutput::gated, kTokens, 3>(stream, a, launch);
}

}   // namespace takt::cuda
