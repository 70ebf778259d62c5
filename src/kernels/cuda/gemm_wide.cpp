// Chooses the tiles of gate and up of a large step and fills the kernel's arguments.
#include "kernels/cuda/gemm_wide.h"

#include "kernels/cuda/gemm_wide_launch.h"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

constexpr int kRoundColumns = 16;   // what a round costs beside its product, in columns

struct Tiles {
    int columns = 0;
    bool shares_rows = false;
};

/// The fewest rounds of all pairs, weighed by a round's length.
Tiles choose_tiles(int64_t rows, int64_t out, int num_sms) {
    Tiles best;
    const int64_t pairs = num_sms / 2;
    int64_t least = 0;
    for (const int columns : {256, 224, 192, 176, 160, 144, 128, 112}) {
        for (const bool shares_rows : {false, true}) {
            const int64_t row_tiles = (rows + kWideRows - 1) / kWideRows, column_tiles = (out + columns - 1) / columns;
            const int64_t tiles = shares_rows ? row_tiles * ((column_tiles + 1) / 2) : (row_tiles + 1) / 2 * column_tiles;
            const int64_t cost = (tiles + pairs - 1) / pairs * (columns + kRoundColumns);
            if (least > 0 && cost >= least) continue;
            least = cost;
            best = {columns, shares_rows};
        }
    }
    return best;
}

}   // namespace

bool gemm_wide_fits(const CudaLinear& linear, int32_t rows) {
    return rows >= kWideLeastRows && linear.interleaved() && linear.in_features() % 64 == 0 && has_warpgroups();
}

Status run_gemm_wide(cudaStream_t stream, const GemmWideCall& c) {
    const CudaLinear& linear = *c.linear;
    const LinearContext& context = linear.context();
    const Tiles tiles = choose_tiles(c.rows, linear.out_features(), context.num_sms());
    // A block loads its whole tile of the operand that is its own, half of the shared one.
    CUtensorMap x, weights;
    Status s = context.make_map(&x, c.x, c.rows, linear.in_features(), c.x_stride,
                                tiles.shares_rows ? kWideRows / 2 : kWideRows, 1);
    if (s.ok()) s = linear.make_map(&weights, tiles.shares_rows ? tiles.columns : tiles.columns / 2, 1);
    if (!s.ok()) return s;
    GemmWideArguments a = {};
    a.header = c.header;
    a.y = c.y;
    a.y_stride = c.y_stride;
    a.first_row = c.first_row;
    a.rows = c.rows;
    a.out = static_cast<int32_t>(linear.out_features());
    a.k_blocks = static_cast<int32_t>(linear.in_features() / 64);
    a.shares_rows = tiles.shares_rows;
    a.is_gelu = c.activation == Activation::gelu_tanh;
    return launch_gemm_wide(stream, a, {context.num_sms(), tiles.columns, &weights, &x});
}

}   // namespace takt::cuda
