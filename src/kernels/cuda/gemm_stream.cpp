// Fills the arguments of the medium linear layer and its activations' tensor map.
#include "kernels/cuda/gemm_stream.h"

#include "kernels/cuda/gemm_stream_launch.h"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

constexpr int32_t kShortSumRows = 32;
constexpr int64_t kLongSum = 3;   // columns for each output

}   // namespace

bool gemm_stream_fits(const CudaLinear& linear, int32_t rows, StreamOutput output) {
    if (rows < 1 || rows > kStreamRows || linear.in_features() % 64 != 0 || !has_warpgroups()) return false;
    if (output == StreamOutput::gated) return linear.interleaved();
    // L2 adds one float a cycle and slice: many rows only where the sums are long.
    return linear.out_features() % 4 == 0 && (rows <= kShortSumRows || linear.in_features() >= kLongSum * linear.out_features());
}

Status run_gemm_stream(cudaStream_t stream, const GemmStreamCall& c) {
    const CudaLinear& linear = *c.linear;
    const LinearContext& context = linear.context();
    GemmStreamLaunch launch;
    launch.num_sms = context.num_sms();
    launch.tokens = c.rows <= 16 ? 16 : c.rows <= 32 ? 32 : 64;
    CUtensorMap x;
    const Status s = context.make_map(&x, c.x, c.rows, linear.in_features(), c.x_stride, launch.tokens, 1);
    if (!s.ok()) return s;
    launch.weights = &linear.tile_map();
    launch.x = &x;
    GemmStreamArguments a = {};
    a.header = c.header;
    a.bias = c.bias;
    a.y = c.y;
    a.y_stride = c.y_stride;
    a.out = static_cast<int32_t>(linear.out_features());
    a.k_blocks = static_cast<int32_t>(linear.in_features() / 64);
    a.is_gelu = c.activation == Activation::gelu_tanh;
    switch (c.output) {
        case StreamOutput::add: return launch_gemm_stream_add(stream, a, launch);
        case StreamOutput::gated: return launch_gemm_stream_gated(stream, a, launch);
    }
    return {};
}

}   // namespace takt::cuda
