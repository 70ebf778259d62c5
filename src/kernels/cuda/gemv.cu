// Chooses how a small-batch linear layer is cut over the multiprocessors and launches it. One block a multiprocessor,
// and little enough shared memory that the next kernel's blocks fit beside it and can start their own weight stream
// early.
#include <algorithm>

#include "kernels/cuda/gemv_kernel.cuh"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

constexpr int kBlockShared = 110 * 1024;   // two blocks fit on a multiprocessor
constexpr int kWideShared = 200 * 1024;    // one block: for eight long rows that may not be sliced
constexpr int kMaxStages = 6;
constexpr int kMinStages = 3;

struct Cut {
    int slices = 1, blocks = 1, stages = 0, x_stride = 0;
};

/// The slice count with the shortest longest share; more slices cost a few groups' worth of atomics.
Cut choose_cut(int shared, int num_sms, int rows, int in, int out, bool may_slice) {
    const int pieces = (in + 127) / 128, groups = (out + 15) / 16;
    Cut best;
    double best_cost = 0;
    for (int slices = 1; slices <= (may_slice ? std::min(pieces, 16) : 1); ++slices) {
        const int blocks = std::min(num_sms / slices, groups);
        if (blocks == 0) break;
        const int most_pieces = (pieces + slices - 1) / slices, most_groups = (groups + blocks - 1) / blocks;
        const int x_stride = most_pieces * 128 + 8;
        const int left = shared - kGemvReduceBytes - rows * x_stride * 2;
        if (left < kMinStages * kGemvStageBytes) continue;
        const double cost = most_groups * (most_pieces + 0.3) + 0.15 * slices;
        if (best.stages != 0 && cost >= best_cost) continue;
        best_cost = cost;
        best = {slices, blocks, std::min(kMaxStages, left / kGemvStageBytes), x_stride};
    }
    return best;
}

Cut cut_of(const CudaLinear& linear, int rows, GemvOutput output) {
    Cut cut;
    for (const int shared : {kBlockShared, kWideShared}) {
        cut = choose_cut(shared, linear.context().num_sms(), rows, static_cast<int>(linear.in_features()),
                         static_cast<int>(linear.out_features()), output == GemvOutput::add);
        if (cut.stages != 0) break;
    }
    return cut;
}

template <GemvOutput kOutput>
Status launch(cudaStream_t stream, const CudaLinear& linear, const Cut& cut, GemvArguments& a) {
    const size_t bytes = static_cast<size_t>(cut.stages) * kGemvStageBytes + kGemvReduceBytes +
                         static_cast<size_t>(a.rows * a.x_stride) * 2;
    const Status s = allow_shared(gemv_kernel<kOutput>, bytes);
    if (!s.ok()) return s;
    return launch_kernel(stream, dim3(static_cast<unsigned>(cut.slices * cut.blocks)), dim3(kGemvThreads), bytes,
                         Edge::programmatic, gemv_kernel<kOutput>, linear.map(), a);
}

}   // namespace

bool gemv_fits(const CudaLinear& linear, int32_t rows, GemvOutput output) {
    return rows >= 1 && rows <= kGemvRows && linear.in_features() % 8 == 0 && cut_of(linear, rows, output).stages != 0;
}

Status run_gemv(cudaStream_t stream, const GemvCall& c) {
    const CudaLinear& linear = *c.linear;
    if (c.rows < 1 || c.rows > kGemvRows || linear.in_features() % 8 != 0)
        return {kStatusBadArgument, "CUDA: shape of a small linear layer"};
    const Cut cut = cut_of(linear, c.rows, c.output);
    if (cut.stages == 0) return {kStatusUnsupported, "CUDA: rows too long for the small linear layer"};
    GemvArguments a = {};
    a.header = c.header;
    a.samples = c.samples;
    a.x = c.x;
    a.hidden = c.hidden;
    a.norm_weight = c.norm.weight;
    a.epsilon = c.norm.epsilon;
    a.one_plus = c.norm.style == NormStyle::one_plus;
    a.bias = c.bias;
    a.y = c.y;
    a.y_stride = c.y_stride;
    a.soft_cap = c.soft_cap;
    a.rows = c.rows;
    a.in = static_cast<int32_t>(linear.in_features());
    a.out = static_cast<int32_t>(linear.out_features());
    a.num_slices = cut.slices;
    a.blocks_per_slice = cut.blocks;
    a.num_stages = cut.stages;
    a.x_stride = cut.x_stride;
    a.rows_are_samples = c.rows_are_samples;
    a.is_gelu = c.activation == Activation::gelu_tanh;
    switch (c.output) {
        case GemvOutput::add: return launch<GemvOutput::add>(stream, linear, cut, a);
        case GemvOutput::store: return launch<GemvOutput::store>(stream, linear, cut, a);
        case GemvOutput::gated: return launch<GemvOutput::gated>(stream, linear, cut, a);
    }
    return {};
}

}   // namespace takt::cuda
