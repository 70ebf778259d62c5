// The linear operations of a forward: which kernels run for how many rows. Enqueues only; engine thread.
#include <algorithm>

#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/gemm_split.h"
#include "kernels/cuda/gemm_stream.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/gemm_wide.h"
#include "kernels/cuda/gemv.h"
#include "kernels/cuda/logits.h"
#include "kernels/cuda/mlp.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/qkv_split.h"
#include "kernels/cuda/rope.h"

namespace takt::cuda {
namespace {

const CudaLinear& linear_of(const Linear* l) { return *static_cast<const CudaLinear*>(l); }

bool is_small(const CudaLinear& l, int32_t rows, GemvOutput output) {
    return !l.context().deterministic() && gemv_fits(l, rows, output);
}

bool is_medium(const CudaLinear& l, int32_t rows, StreamOutput output) {
    return !l.context().deterministic() && gemm_stream_fits(l, rows, output);
}

enum class Use : uint8_t { input, output, down };

/// Which products are divided (linear.md has what each takes in a whole step).
bool is_split(const CudaLinear& l, int32_t rows, Use use) {
    if (l.context().deterministic() || !gemm_split_fits(l, rows)) return false;
    switch (use) {
        case Use::input: return rows <= 64;
        case Use::output: return rows > kGemvRows && rows <= 16;
        case Use::down: return rows > 64;
    }
    return false;
}

Use residual_use(const CudaLinear& l) { return l.in_features() > 2 * l.out_features() ? Use::down : Use::output; }

/// A divided product.
GemmSplitCall split_call(const CudaLinear& l, const StepView& in, int32_t first, int32_t rows, const void* x, int64_t x_stride) {
    GemmSplitCall g;
    g.linear = &l;
    g.header = in.header;
    g.first_row = first;
    g.rows = rows;
    g.x = static_cast<const __nv_bfloat16*>(x);
    g.x_stride = x_stride;
    return g;
}

Status product(cudaStream_t stream, LinearContext& context, const LtGemm::Product& p) {
    if (!context.deterministic() && context.gemm()->available()) return context.gemm()->run(stream, p);
    return run_gemm_tile(stream, p);
}

LtGemm::Product product_of(const CudaLinear& l, const void* x, int64_t x_stride, int64_t rows) {
    LtGemm::Product p;
    p.x = x;
    p.x_stride = x_stride;
    p.weight = l.data();
    p.weight_stride = l.stride();
    p.rows = rows;
    p.out = l.out_features();
    p.in = l.in_features();
    return p;
}

/// Calls f(first_row, rows) for pieces of the context's chunk.
template <class F>
Status in_chunks(const LinearContext& context, int32_t rows, F f) {
    for (int32_t at = 0; at < rows; at += context.chunk_rows()) {
        const Status s = f(at, std::min(context.chunk_rows(), rows - at));
        if (!s.ok()) return s;
    }
    return {};
}

/// norm of hidden rows [first, first + rows) -> bf16 scratch.
Status norm_to_scratch(cudaStream_t stream, const CudaLinear& l, const StepView& in, const void* hidden, const NormParams& norm,
                       int32_t first, int32_t rows, bool rows_are_samples = false) {
    NormRowsCall n;
    n.header = in.header;
    n.samples = rows_are_samples ? in.samples : nullptr;
    n.first_row = first;
    n.rows = rows;
    n.hidden = static_cast<const float*>(hidden);
    n.dim = static_cast<int32_t>(l.in_features());
    n.norm = norm;
    n.out = l.context().normed();
    n.out_stride = l.stride();
    return run_norm_rows(stream, n);
}

/// A medium product with the rows in the bf16 scratch.
GemmStreamCall scratch_call(const CudaLinear& l, const StepView& in, int32_t rows, StreamOutput output, void* y, int64_t y_stride) {
    GemmStreamCall g;
    g.linear = &l;
    g.header = in.header;
    g.rows = rows;
    g.x = l.context().normed();
    g.x_stride = l.stride();
    g.output = output;
    g.y = y;
    g.y_stride = y_stride;
    return g;
}

/// The same -> product with `l` -> bf16 scratch.
Status normed_product(cudaStream_t stream, const CudaLinear& l, const StepView& in, const void* hidden,
                      const NormParams& norm, int32_t first, int32_t rows) {
    LinearContext& context = l.context();
    const Status s = norm_to_scratch(stream, l, in, hidden, norm, first, rows);
    if (!s.ok()) return s;
    if (l.kind() == LinearKind::stacked && is_split(l, rows, Use::input)) {
        GemmSplitCall g = split_call(l, in, first, rows, context.normed(), l.stride());
        g.y = context.wide();
        g.y_stride = (l.out_features() + 63) / 64 * 64;
        return run_gemm_split(stream, g);
    }
    LtGemm::Product p = product_of(l, context.normed(), l.stride(), rows);
    p.y = context.wide();
    p.y_stride = (l.out_features() + 63) / 64 * 64;
    return product(stream, context, p);
}

}   // namespace

Status run_attention_input(cudaStream_t stream, const AttentionInputParams& p) {
    const CudaLinear& l = linear_of(p.qkv);
    LinearContext& context = l.context();
    FinishQkvCall finish;
    finish.params = &p;
    if (is_small(l, p.rows, GemvOutput::add) && p.norm.weight != nullptr && !is_split(l, p.rows, Use::input) &&
        !qkv_split_fits(p, p.rows)) {
        finish.rows = p.rows;
        finish.sums = context.accumulator();
        finish.stride = l.out_features();
        GemvCall g;
        g.linear = &l;
        g.header = p.in.header;
        g.rows = p.rows;
        g.hidden = static_cast<const float*>(p.hidden);
        g.norm = p.norm;
        g.output = GemvOutput::add;
        g.y = context.accumulator();
        g.y_stride = l.out_features();
        const Status s = run_gemv(stream, g);
        if (!s.ok()) return s;
        return run_finish_qkv(stream, finish);
    }
    return in_chunks(context, p.rows, [&](int32_t first, int32_t rows) {
        if (qkv_split_fits(p, rows)) {
            const Status normed = norm_to_scratch(stream, l, p.in, p.hidden, p.norm, first, rows);
            return normed.ok() ? run_qkv_split(stream, {&p, first, rows, context.normed(), l.stride()}) : normed;
        }
        const Status s = normed_product(stream, l, p.in, p.hidden, p.norm, first, rows);
        if (!s.ok()) return s;
        finish.first_row = first;
        finish.rows = rows;
        finish.product = context.wide();
        finish.stride = (l.out_features() + 63) / 64 * 64;
        return run_finish_qkv(stream, finish);
    });
}

Status run_linear_residual(cudaStream_t stream, const LinearResidualParams& p) {
    const CudaLinear& l = linear_of(p.linear);
    LinearContext& context = l.context();
    const auto* x = static_cast<const __nv_bfloat16*>(p.x);
    auto* hidden = static_cast<float*>(p.hidden);
    if (p.post_norm.weight == nullptr && is_split(l, p.rows, residual_use(l))) {
        GemmSplitCall g = split_call(l, p.in, 0, p.rows, x, l.in_features());
        g.bias = p.bias;
        g.adds = true;
        g.y = hidden;
        g.y_stride = l.out_features();
        return run_gemm_split(stream, g);
    }
    if (is_medium(l, p.rows, StreamOutput::add) && p.post_norm.weight == nullptr) {
        GemmStreamCall g = scratch_call(l, p.in, p.rows, StreamOutput::add, hidden, l.out_features());
        g.x = x;
        g.x_stride = l.in_features();
        g.bias = p.bias;
        return run_gemm_stream(stream, g);
    }
    if (is_small(l, p.rows, GemvOutput::add) && p.post_norm.weight == nullptr) {
        GemvCall g;
        g.linear = &l;
        g.header = p.in.header;
        g.rows = p.rows;
        g.x = x;
        g.bias = p.bias;
        g.output = GemvOutput::add;
        g.y = hidden;
        g.y_stride = l.out_features();
        return run_gemv(stream, g);
    }
    const bool has_branch = p.post_norm.weight != nullptr || p.bias != nullptr;
    return in_chunks(context, p.rows, [&](int32_t first, int32_t rows) {
        LtGemm::Product g = product_of(l, x + first * l.in_features(), l.in_features(), rows);
        if (!has_branch) {
            g.y = hidden + first * l.out_features();
            g.y_stride = l.out_features();
            g.y_is_float = g.add = true;
            return product(stream, context, g);
        }
        g.y = context.wide();
        g.y_stride = (l.out_features() + 63) / 64 * 64;
        const Status s = product(stream, context, g);
        if (!s.ok()) return s;
        AddBranchCall b;
        b.header = p.in.header;
        b.first_row = first;
        b.rows = rows;
        b.branch = context.wide();
        b.branch_stride = g.y_stride;
        b.bias = p.bias;
        b.norm = p.post_norm;
        b.hidden = hidden;
        b.dim = static_cast<int32_t>(l.out_features());
        return run_add_branch(stream, b);
    });
}

Status run_mlp_input(cudaStream_t stream, const MlpInputParams& p) {
    const CudaLinear& l = linear_of(p.gate_up);
    LinearContext& context = l.context();
    const auto width = static_cast<int32_t>(l.out_features() / 2);
    if (is_small(l, p.rows, GemvOutput::gated) && p.norm.weight != nullptr && l.interleaved()) {
        GemvCall g;
        g.linear = &l;
        g.header = p.in.header;
        g.rows = p.rows;
        g.hidden = static_cast<const float*>(p.hidden);
        g.norm = p.norm;
        g.output = GemvOutput::gated;
        g.activation = p.activation;
        g.y = p.out;
        g.y_stride = width;
        return run_gemv(stream, g);
    }
    if (is_medium(l, p.rows, StreamOutput::gated)) {
        const Status s = norm_to_scratch(stream, l, p.in, p.hidden, p.norm, 0, p.rows);
        if (!s.ok()) return s;
        GemmStreamCall g = scratch_call(l, p.in, p.rows, StreamOutput::gated, p.out, width);
        g.activation = p.activation;
        return run_gemm_stream(stream, g);
    }
    return in_chunks(context, p.rows, [&](int32_t first, int32_t rows) {
        if (!context.deterministic() && gemm_wide_fits(l, rows)) {
            const Status s = norm_to_scratch(stream, l, p.in, p.hidden, p.norm, first, rows);
            if (!s.ok()) return s;
            GemmWideCall g;
            g.linear = &l;
            g.header = p.in.header;
            g.first_row = first;
            g.rows = rows;
            g.x = context.normed();
            g.x_stride = l.stride();
            g.activation = p.activation;
            g.y = static_cast<__nv_bfloat16*>(p.out) + int64_t{first} * width;
            g.y_stride = width;
            return run_gemm_wide(stream, g);
        }
        const Status s = normed_product(stream, l, p.in, p.hidden, p.norm, first, rows);
        if (!s.ok()) return s;
        GateCall g;
        g.header = p.in.header;
        g.first_row = first;
        g.rows = rows;
        g.product = context.wide();
        g.stride = (l.out_features() + 63) / 64 * 64;
        g.interleaved = l.interleaved();
        g.activation = p.activation;
        g.width = width;
        g.out = static_cast<__nv_bfloat16*>(p.out);
        return run_gate(stream, g);
    });
}

Status run_logits(cudaStream_t stream, const LogitsParams& p) {
    const CudaLinear& l = linear_of(p.head);
    LinearContext& context = l.context();
    if (is_small(l, p.samples, GemvOutput::store) && p.norm.weight != nullptr) {
        GemvCall g;
        g.linear = &l;
        g.header = p.in.header;
        g.rows = p.samples;
        g.rows_are_samples = true;
        g.samples = p.in.samples;
        g.hidden = static_cast<const float*>(p.hidden);
        g.norm = p.norm;
        g.output = GemvOutput::store;
        g.soft_cap = p.soft_cap;
        g.y = p.logits;
        g.y_stride = p.vocab_stride;
        return run_gemv(stream, g);
    }
    if (p.samples > context.chunk_rows()) return {kStatusBadArgument, "CUDA: more sampled rows than the scratch holds"};
    Status s = norm_to_scratch(stream, l, p.in, p.hidden, p.norm, 0, p.samples, true);
    if (!s.ok()) return s;
    LtGemm::Product g = product_of(l, context.normed(), l.stride(), p.samples);
    g.y = p.logits;
    g.y_stride = p.vocab_stride;
    g.y_is_float = true;
    s = product(stream, context, g);
    if (!s.ok() || p.soft_cap <= 0) return s;
    return run_soft_cap(stream, p, static_cast<int32_t>(l.out_features()));
}

}   // namespace takt::cuda
