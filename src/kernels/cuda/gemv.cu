// Chooses how a small-batch linear layer is cut over the multiprocessors and launches it. One block a multiprocessor,
// and little enough shared memory that the next kernel's blocks fit beside it and can start their own weight stream
// early.
#include <algorithm>

#include "kernels/cuda/gemv_kernel.cuh"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

// Shared memory a block, out of 228 KB a multiprocessor (2 KB of each block are its barriers and the system's). The next kernel's
// blocks start while the running one's still stand, and the hardware puts two on one multiprocessor where two fit, which halves
// that multiprocessor's share of the memory. So blocks of kernels that produce whole sums (gated, store) and of attention are
// large: two do not fit. Those of the others are small: one fits beside a large one, two of them together, three do not.
constexpr int kLargeShared = 114'752, kSmallShared = 114'432;
constexpr int kCrowdedLarge = 131'328, kCrowdedSmall = 98'176;   // where a large block holds eight long rows
constexpr int kLeastShared = 75'904;
constexpr int kWholeShared = 200 * 1024;
constexpr int kCrowdedBytes = 38 * 1024;   // of activations over a model's width
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
    const auto in = static_cast<int>(linear.in_features()), out = static_cast<int>(linear.out_features());
    const bool may_slice = output == GemvOutput::add;
    const bool crowded = rows * std::min(in, out) * 2 > kCrowdedBytes;
    const int first = may_slice ? (crowded ? kCrowdedSmall : kSmallShared) : (crowded ? kCrowdedLarge : kLargeShared);
    Cut cut;
    for (const int shared : {first, kWholeShared}) {
        cut = choose_cut(shared, linear.context().num_sms(), rows, in, out, may_slice);
        if (cut.stages != 0) break;
    }
    return cut;
}

template <GemvOutput kOutput>
Status launch(cudaStream_t stream, const CudaLinear& linear, const Cut& cut, GemvArguments& a) {
    const size_t needed = static_cast<size_t>(cut.stages) * kGemvStageBytes + kGemvReduceBytes +
                          static_cast<size_t>(a.rows * a.x_stride) * 2;
    constexpr bool kIsLarge = kOutput == GemvOutput::gated || kOutput == GemvOutput::store;
    const size_t bytes = std::max(needed, static_cast<size_t>(kIsLarge ? kLargeShared : kLeastShared));
    const Status s = allow_shared(gemv_kernel<kOutput>, bytes);
    if (!s.ok()) return s;
    return launch_kernel(stream, dim3(static_cast<unsigned>(linear.context().num_sms())), dim3(kGemvThreads), bytes,
                         Edge::programmatic, gemv_kernel<kOutput>, linear.map(), a);
}

}   // namespace

bool gemv_fits(const CudaLinear& linear, int32_t rows, GemvOutput output) {
    return rows >= 1 && rows <= kGemvRows && linear.in_features() % 8 == 0 && has_tensor_copies() &&
           cut_of(linear, rows, output).stages != 0;
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
    a.rest_begin = (a.out + 15) / 16;
    if (c.output == GemvOutput::gated || c.output == GemvOutput::store) {
        // Blocks get unequal shares of the memory's rate: the last sixth goes to whichever is free.
        const int own = a.rest_begin / cut.blocks * 5 / 6;
        if (own >= 4) {
            a.rest_begin = own * cut.blocks;
            a.taken = linear.context().counters() + (c.output == GemvOutput::gated ? 0 : 1);
        }
    }
    a.is_gelu = c.activation == Activation::gelu_tanh;
    switch (c.output) {
        case GemvOutput::add: return launch<GemvOutput::add>(stream, linear, cut, a);
        case GemvOutput::store: return launch<GemvOutput::store>(stream, linear, cut, a);
        case GemvOutput::gated: return launch<GemvOutput::gated>(stream, linear, cut, a);
    }
    return {};
}

}   // namespace takt::cuda
