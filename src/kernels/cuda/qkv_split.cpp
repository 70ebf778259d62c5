// Chooses the tiles of the attention input's product and fills the kernel's arguments.
#include "kernels/cuda/qkv_split.h"

#include "kernels/cuda/gemm_split.h"
#include "kernels/cuda/ops_launch.h"
#include "kernels/cuda/qkv_split_launch.h"

namespace takt::cuda {
namespace {

constexpr int32_t kMostRows = 256;
constexpr int kColumnsOfATile[] = {96, 128, 160, 192, 256};

struct Tiles {
    int columns = 0, splits = 0;
};

/// The narrowest tiles of which all clusters run at once. Two row tiles have enough blocks in clusters of two.
Tiles choose_tiles(int64_t out, int64_t row_tiles) {
    Tiles tiles{256, row_tiles > 1 ? 2 : 4};
    const int64_t room = most_split_clusters(tiles.splits);
    for (const int columns : kColumnsOfATile) {
        if ((out + columns - 1) / columns * row_tiles > room) continue;
        tiles.columns = columns;
        break;
    }
    return tiles;
}

const CudaLinear& linear_of(const AttentionInputParams& p) { return *static_cast<const CudaLinear*>(p.qkv); }

QkvEnd end_of(const AttentionInputParams& p) {
    QkvEnd e = {};
    e.rows = p.in.rows;
    e.bias = p.bias;
    e.inverse_frequencies = p.rope.inverse_frequencies;
    e.q = static_cast<__nv_bfloat16*>(p.q);
    e.kv_layer = static_cast<uint8_t*>(p.kv_layer);
    e.block_stride = static_cast<int64_t>(p.kv.block_stride());
    e.kv_stride = static_cast<int64_t>(p.kv.kv_stride());
    e.head_stride = static_cast<int64_t>(p.kv.head_stride());
    e.magnitude = p.rope.magnitude;
    e.num_heads = p.num_heads;
    e.num_kv_heads = p.kv.num_kv_heads;
    e.head_dim = p.kv.head_dim;
    e.block_tokens = p.kv.block_tokens;
    e.has_rope = p.rope.style != RopeStyle::none;
    e.is_f16 = p.kv.type == DType::f16;
    return e;
}

}   // namespace

bool qkv_split_fits(const AttentionInputParams& p, int32_t rows) {
    const CudaLinear& l = linear_of(p);
    const bool shape = p.kv.head_dim % 32 == 0 && p.kv.head_dim <= 256 && l.in_features() % 64 == 0 && l.in_features() >= 4 * 64 &&
                       l.out_features() == int64_t{p.num_heads + 2 * p.kv.num_kv_heads} * p.kv.head_dim;
    const bool end = p.q_norm.weight == nullptr && p.k_norm.weight == nullptr && p.rope.style != RopeStyle::interleaved &&
                     (p.kv.type == DType::bf16 || p.kv.type == DType::f16);
    return shape && end && rows >= kSplitLeastRows && rows <= kMostRows && !l.context().deterministic() &&
           l.kind() == LinearKind::stacked && has_warpgroups() && most_split_clusters(2) > 0 && most_split_clusters(4) > 0;
}

Status run_qkv_split(cudaStream_t stream, const QkvSplitCall& c) {
    const AttentionInputParams& p = *c.params;
    const CudaLinear& linear = linear_of(p);
    const LinearContext& context = linear.context();
    GemmSplitArguments a = {};
    a.header = p.in.header;
    a.first_row = c.first_row;
    a.rows = c.rows;
    a.out = static_cast<int32_t>(linear.out_features());
    a.k_blocks = static_cast<int32_t>(linear.in_features() / 64);
    GemmSplitLaunch launch;
    launch.tile_rows = c.rows <= 64 ? 64 : 128;
    const Tiles tiles = choose_tiles(a.out, (c.rows + launch.tile_rows - 1) / launch.tile_rows);
    launch.columns = c.columns != 0 ? c.columns : tiles.columns;
    launch.splits = c.splits != 0 ? c.splits : tiles.splits;
    CUtensorMap x, weights;
    Status s = context.make_map(&x, c.x, c.rows, linear.in_features(), c.x_stride, launch.tile_rows, 1);
    if (s.ok()) s = context.make_pair_map(&weights, linear.data(), a.out, linear.in_features(), linear.stride(), p.kv.head_dim, 16);
    if (!s.ok()) return s;
    launch.weights = &weights;
    launch.x = &x;
    QkvEnd end = end_of(p);
    return launch_qkv_split(stream, a, end, launch);
}

}   // namespace takt::cuda
