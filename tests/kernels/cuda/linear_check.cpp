// Linear layers against float64: residual, gate and up, logits, in fast and deterministic mode, for one to many rows;
// and that the deterministic kernel gives a row the same bits whatever the batch.
#include <algorithm>
#include <string>

#include "checks.h"
#include "kernels/cuda/ops.h"
#include "step_builder.h"

namespace takt::check {
namespace {

size_t n(int64_t v) { return static_cast<size_t>(v); }

struct Weights {
    std::vector<__nv_bfloat16> values;
    std::unique_ptr<Linear> linear;
};

Weights make_weights(const std::shared_ptr<cuda::LinearContext>& context, std::mt19937_64& random, int out, int in,
                     LinearKind kind) {
    Weights w;
    // A random run of a prime length again and again: rows differ, and a large matrix takes no seconds.
    const auto run = random_values<__nv_bfloat16>(random, std::min(n(out) * n(in), size_t{1'048'583}),
                                                  1.0f / std::sqrt(static_cast<float>(in)));
    w.values.resize(n(out) * n(in));
    for (size_t at = 0; at < w.values.size(); at += run.size())
        std::copy_n(run.begin(), std::min(run.size(), w.values.size() - at), w.values.begin() + static_cast<std::ptrdiff_t>(at));
    std::vector<HostTensor> parts = {{w.values.data(), DType::bf16, out, in}};
    if (kind == LinearKind::gate_up) {
        parts = {{w.values.data(), DType::bf16, out / 2, in},
                 {w.values.data() + n(out / 2) * n(in), DType::bf16, out / 2, in}};
    }
    auto linear = cuda::make_cuda_linear(context, parts, kind);
    require(linear.ok() ? Status{} : Status{1, "make_linear"}, "weights");
    w.linear = std::move(linear).value();
    return w;
}

double dot(const Weights& w, int64_t out, const std::vector<double>& x) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * value_of(w.values[n(out) * x.size() + i]);
    return sum;
}

std::vector<double> normed(const std::vector<float>& hidden, int64_t row, int in, const std::vector<float>& norm) {
    std::vector<double> x(n(in));
    double square = 0;
    for (size_t i = 0; i < n(in); ++i)
        square += static_cast<double>(hidden[n(row) * n(in) + i]) * hidden[n(row) * n(in) + i];
    for (size_t i = 0; i < n(in); ++i)
        x[i] = hidden[n(row) * n(in) + i] / std::sqrt(square / in + 1e-5) * static_cast<double>(norm[i]);
    return x;
}

StepBuilder make_step(Bench& bench, int rows, int padding) {
    KvLayout layout{DType::bf16, 1, 1, 64, 16, 0};
    std::vector<SegmentShape> segments(n(rows), SegmentShape{0, 1});
    return StepBuilder(layout, segments, 1, 0, false, bench.context->num_sms(), bench.random, padding);
}

void check_residual(Bench& bench, const std::shared_ptr<cuda::LinearContext>& context, int in, int out, int rows,
                    int padding, bool bias, bool post_norm) {
    const Weights w = make_weights(context, bench.random, out, in, LinearKind::stacked);
    StepBuilder step = make_step(bench, rows, padding);
    const auto x = random_values<__nv_bfloat16>(bench.random, n(rows + padding) * n(in), 1.0f);
    const auto hidden = random_values<float>(bench.random, n(rows + padding) * n(out), 0.3f);
    const auto biases = random_values<float>(bench.random, n(out), 0.5f),
               norm = random_values<float>(bench.random, n(out), 0.2f, 1.0f);
    DeviceArray<__nv_bfloat16> device_x(x);
    DeviceArray<float> device_hidden(hidden), device_bias(biases), device_norm(norm);
    LinearResidualParams p;
    p.in = step.device();
    p.rows = rows + padding;
    p.x = device_x.data();
    p.linear = w.linear.get();
    p.bias = bias ? device_bias.data() : nullptr;
    if (post_norm) p.post_norm = {device_norm.data(), 1e-5f, NormStyle::plain};
    p.hidden = device_hidden.data();
    require(cuda::run_linear_residual(bench.stream, p), "residual");
    bench.finish("residual");
    const auto got = device_hidden.get();
    Comparison comparison;
    for (int r = 0; r<rows; r += rows> 20 ? 1 + rows / 6 : 1) {
        std::vector<double> row(n(in)), branch(n(out));
        for (size_t i = 0; i < n(in); ++i) row[i] = value_of(x[n(r) * n(in) + i]);
        const int step_out = post_norm ? 1 : 1 + out / 700;
        double square = 0;
        for (int o = 0; o < out; o += step_out) {
            branch[n(o)] = dot(w, o, row) + (bias ? static_cast<double>(biases[n(o)]) : 0);
            square += branch[n(o)] * branch[n(o)];
        }
        const double scale = 1.0 / std::sqrt(square / out + 1e-5);
        for (int o = 0; o < out; o += step_out) {
            const double b = post_norm ? branch[n(o)] * scale * static_cast<double>(norm[n(o)]) : branch[n(o)];
            comparison.add(static_cast<double>(got[n(r) * n(out) + n(o)]),
                           static_cast<double>(hidden[n(r) * n(out) + n(o)]) + b);
        }
    }
    bench.report->add("residual " + std::to_string(out) + "x" + std::to_string(in) + " rows " + std::to_string(rows) +
                          (bias ? " bias" : "") + (post_norm ? " norm" : "") +
                          (context->deterministic() ? " tile" : ""),
                      comparison.error(), post_norm || bias ? 5e-3 : 1e-4);
}

void check_gate(Bench& bench, const std::shared_ptr<cuda::LinearContext>& context, int in, int width, int rows,
                Activation activation) {
    const Weights w = make_weights(context, bench.random, 2 * width, in, LinearKind::gate_up);
    StepBuilder step = make_step(bench, rows, 1);
    const auto hidden = random_values<float>(bench.random, n(rows + 1) * n(in), 3.0f),
               norm = random_values<float>(bench.random, n(in), 0.2f, 1.0f);
    DeviceArray<float> device_hidden(hidden), device_norm(norm);
    DeviceArray<__nv_bfloat16> out(n(rows + 1) * n(width));
    MlpInputParams p;
    p.in = step.device();
    p.rows = rows + 1;
    p.hidden = device_hidden.data();
    p.norm = {device_norm.data(), 1e-5f, NormStyle::plain};
    p.gate_up = w.linear.get();
    p.activation = activation;
    p.out = out.data();
    require(cuda::run_mlp_input(bench.stream, p), "gate");
    bench.finish("gate");
    const auto got = out.get();
    Comparison comparison;
    for (int r = 0; r<rows; r += rows> 20 ? 1 + rows / 6 : 1) {
        const auto x = normed(hidden, r, in, norm);
        for (int o = 0; o < width; o += 1 + width / 500) {
            const double gate = dot(w, o, x), up = dot(w, width + o, x);
            const double gelu =
                0.5 * gate * (1 + std::tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)));
            comparison.add(value_of(got[n(r) * n(width) + n(o)]),
                           (activation == Activation::silu ? gate / (1 + std::exp(-gate)) : gelu) * up);
        }
    }
    bench.report->add("gate " + std::to_string(width) + "x" + std::to_string(in) + " rows " + std::to_string(rows) +
                          (activation == Activation::silu ? "" : " gelu") + (context->deterministic() ? " tile" : ""),
                      comparison.error(), 1e-2);
}

void check_logits(Bench& bench, const std::shared_ptr<cuda::LinearContext>& context, int in, int vocab, int samples,
                  float cap) {
    const Weights w = make_weights(context, bench.random, vocab, in, LinearKind::head);
    StepBuilder step = make_step(bench, samples, 3);
    for (int i = 0; i < samples; ++i) step.host().samples[i].row = samples - 1 - i;
    step.upload();
    const auto hidden = random_values<float>(bench.random, n(samples + 3) * n(in), 3.0f),
               norm = random_values<float>(bench.random, n(in), 0.2f, 1.0f);
    const int64_t stride = (vocab + 63) / 64 * 64;
    DeviceArray<float> device_hidden(hidden), device_norm(norm), logits(n(samples) * n(stride));
    LogitsParams p;
    p.in = step.device();
    p.samples = samples;
    p.hidden = device_hidden.data();
    p.norm = {device_norm.data(), 1e-5f, NormStyle::plain};
    p.head = w.linear.get();
    p.soft_cap = cap;
    p.logits = logits.data();
    p.vocab_stride = stride;
    require(cuda::run_logits(bench.stream, p), "logits");
    bench.finish("logits");
    const auto got = logits.get();
    Comparison comparison;
    for (int s = 0; s<samples; s += samples> 20 ? 7 : 1) {
        const auto x = normed(hidden, samples - 1 - s, in, norm);
        for (int o = 0; o < vocab; o += 1 + vocab / 500) {
            const double v = dot(w, o, x);
            comparison.add(static_cast<double>(got[n(s) * n(stride) + n(o)]), cap > 0 ? cap * std::tanh(v / cap) : v);
        }
    }
    bench.report->add("logits " + std::to_string(vocab) + "x" + std::to_string(in) + " rows " +
                          std::to_string(samples) + (cap > 0 ? " cap" : "") + (context->deterministic() ? " tile" : ""),
                      comparison.error(), 6e-3);
}

/// One row alone and among 63 others through the deterministic kernel.
void check_row_bits(Bench& bench) {
    constexpr int kIn = 1024, kOut = 640, kRows = 64;
    const Weights w = make_weights(bench.deterministic, bench.random, kOut, kIn, LinearKind::stacked);
    const auto x = random_values<__nv_bfloat16>(bench.random, size_t{kRows} * kIn, 1.0f);
    DeviceArray<__nv_bfloat16> device_x(x);
    std::vector<float> all;
    for (const int rows : {kRows, 1, 7}) {
        StepBuilder step = make_step(bench, rows, 0);
        DeviceArray<float> hidden(std::vector<float>(size_t{kRows} * kOut, 0.25f));
        LinearResidualParams p;
        p.in = step.device();
        p.rows = rows;
        p.x = device_x.data();
        p.linear = w.linear.get();
        p.hidden = hidden.data();
        require(cuda::run_linear_residual(bench.stream, p), "residual");
        bench.finish("residual");
        const auto got = hidden.get();
        if (rows == kRows) all = got;
        int64_t different = 0;
        for (size_t i = 0; i < n(rows) * kOut; ++i) different += got[i] != all[i] ? 1 : 0;
        bench.report->add("tile rows " + std::to_string(rows) + " bit-equal", static_cast<double>(different), 0);
    }
}

/// Gate and up in panels by each of the kernels that read them.
void check_panels(Bench& bench) {
    const std::vector<int> brief = {7, 60, 200}, all = {1, 3, 7, 8, 15, 31, 62, 63, 64, 100, 127, 200, 300};
    for (const int rows : bench.brief ? brief : all) {
        check_gate(bench, bench.context, 448, 1536, rows, Activation::silu);
        check_gate(bench, bench.context, 576, 1536, rows, Activation::gelu_tanh);
        check_gate(bench, bench.context, 128, 18944, rows, Activation::silu);
    }
    if (!bench.brief) {
        for (const int rows : {8, 255, 1100}) check_gate(bench, bench.context, 3584, 18944, rows, Activation::silu);
        for (const int rows : {1, 60, 255}) check_gate(bench, bench.context, 2048, 11008, rows, Activation::silu);
    }
}

/// Every kernel and every branch once, in shapes for which a race checker has the patience.
void check_linear_brief(Bench& bench) {
    for (const auto& context : {bench.context, bench.deterministic}) {
        for (const int rows : {1, 7, 30, 60, 100, 200}) {
            check_residual(bench, context, 448, 900, rows, 1, rows == 7 || rows == 60, false);
            check_residual(bench, context, 448, 576, rows, 0, false, true);
            check_gate(bench, context, 448, 1536, rows, rows == 7 ? Activation::gelu_tanh : Activation::silu);
            check_logits(bench, context, 448, 3001, rows, rows == 30 ? 30.0f : 0.0f);
        }
    }
    // Tiles of two and three warpgroup products.
    check_gate(bench, bench.context, 128, 18944, 60, Activation::silu);
    check_gate(bench, bench.context, 128, 11008, 100, Activation::silu);
    check_logits(bench, bench.context, 128, 30001, 60, 0);
    // Divided products: clusters of eight, columns and rows to spare.
    check_residual(bench, bench.context, 4096, 320, 100, 1, true, false);
    check_residual(bench, bench.context, 4096, 1300, 70, 3, false, false);
    check_residual(bench, bench.context, 1024, 1500, 13, 2, true, false);
    // Pairs of blocks that share columns, that share rows.
    check_gate(bench, bench.context, 128, 11008, 200, Activation::silu);
    check_gate(bench, bench.context, 128, 18944, 300, Activation::gelu_tanh);
}

}   // namespace

void check_linear(Bench& bench) {
    check_panels(bench);
    if (bench.brief) return check_linear_brief(bench);
    for (const auto& context : {bench.context, bench.deterministic}) {
        for (const int rows : {1, 2, 3, 5, 7, 17, 100}) {
            check_residual(bench, context, 3584, 3584, rows, rows == 5 ? 2 : 0, false, false);
            check_residual(bench, context, 4864, 896, rows, 1, rows % 2 == 1, false);
        }
        check_residual(bench, context, 18944, 3584, 1, 0, false, false);
        check_residual(bench, context, 18944, 3584, 7, 0, false, false);
        check_residual(bench, context, 11008, 2048, 4, 0, true, false);
        check_residual(bench, context, 200, 100, 3, 0, false, false);
        check_residual(bench, context, 1536, 576, 6, 1, false, true);
        check_residual(bench, context, 1536, 576, 60, 1, true, true);
        for (const int rows : {1, 4, 7, 30}) {
            check_gate(bench, context, 2048, 11008, rows, Activation::silu);
            check_gate(bench, context, 576, 1536, rows, Activation::gelu_tanh);
            check_logits(bench, context, 1024, 9999, rows, rows == 4 || rows == 30 ? 30.0f : 0.0f);
        }
        check_gate(bench, context, 3584, 18944, 3, Activation::silu);
        // Eight rows that may not be sliced: beyond the usual shared memory, then beyond any.
        check_gate(bench, context, 3584, 18944, 8, Activation::silu);
        check_gate(bench, context, 16384, 512, 8, Activation::silu);
        check_gate(bench, context, 120, 100, 3, Activation::silu);
        check_logits(bench, context, 3584, 30001, 7, 0);
        check_logits(bench, context, 3584, 30001, 8, 0);
    }
    // The widths of the medium kernel's products, each with rows to spare; tiles of one to three warpgroup products.
    for (const int rows : {9, 33, 64, 120, 127, 256}) {
        check_residual(bench, bench.context, 3584, 3584, rows, rows % 2, rows == 33, false);
        check_residual(bench, bench.context, 4864, 900, rows, 0, false, false);
        check_gate(bench, bench.context, 3584, 18944, rows, Activation::silu);
        check_gate(bench, bench.context, 2048, 11008, rows, rows == 64 ? Activation::gelu_tanh : Activation::silu);
        check_gate(bench, bench.context, 576, 1536, rows, Activation::silu);
        check_logits(bench, bench.context, 1024, 30001, rows, rows == 33 ? 30.0f : 0.0f);
    }
    // Gate and up of large steps: rows to spare, pairs that share columns and that share rows, several tiles a block.
    for (const int rows : {65, 129, 300, 512, 1100, 2040}) {
        check_gate(bench, bench.context, 512, 18944, rows, Activation::silu);
        check_gate(bench, bench.context, 2048, 11008, rows, Activation::silu);
        check_gate(bench, bench.context, 576, 1536, rows, Activation::gelu_tanh);
    }
    // Divided products: down of the 7B and 3B, clusters of four and eight, rows and columns to spare.
    for (const int rows : {9, 15, 65, 100, 127}) {
        check_residual(bench, bench.context, 18944, 3584, rows, rows % 2, rows == 100, false);
        check_residual(bench, bench.context, 11008, 2048, rows, 1, rows == 9, false);
        check_residual(bench, bench.context, 8960, 1532, rows, 0, false, false);
    }
    check_row_bits(bench);
}

}   // namespace takt::check
