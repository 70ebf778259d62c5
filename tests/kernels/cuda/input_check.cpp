// Embedding and the attention input (norm, q/k/v, bias, per-head norm, rotation, paged write) against float64.
#include <string>

#include "checks.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/qkv_split.h"
#include "step_builder.h"

namespace takt::check {
namespace {

struct Case {
    int hidden, heads, kv_heads, head_dim, rows;
    bool bias, head_norm;
    RopeStyle rope;
    int block_tokens = 16;
    NormStyle style = NormStyle::plain;
    int position = 37;   // of the first row
    bool odd_rows = false;   // rows of zeros, of large and of tiny values among the others
};

struct Inputs {
    std::vector<float> hidden, norm, bias, q_norm, k_norm, frequencies;
    std::vector<__nv_bfloat16> weight;
};

Inputs make_inputs(const Case& c, int rows, std::mt19937_64& random) {
    const auto n = [](int v) { return static_cast<size_t>(v); };
    const int out = (c.heads + 2 * c.kv_heads) * c.head_dim;
    Inputs in;
    in.hidden = random_values<float>(random, n(rows) * n(c.hidden), 2.0f, 0.1f);
    for (size_t r = 0; r < n(rows) && c.odd_rows; ++r) {
        const float factors[] = {1.0f, 0.0f, 3e4f, 1e-7f, 1e15f};
        for (size_t i = 0; i < n(c.hidden); ++i) in.hidden[r * n(c.hidden) + i] *= factors[(r + r / 5) % 5];
    }
    in.norm = random_values<float>(random, n(c.hidden), 0.2f, 1.0f);
    in.bias = random_values<float>(random, n(out), 0.5f);
    in.q_norm = random_values<float>(random, n(c.head_dim), 0.2f, 1.0f);
    in.k_norm = random_values<float>(random, n(c.head_dim), 0.2f, 1.0f);
    for (int i = 0; i < c.head_dim / 2; ++i)
        in.frequencies.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.head_dim)));
    in.weight =
        random_values<__nv_bfloat16>(random, n(out) * n(c.hidden), 1.0f / std::sqrt(static_cast<float>(c.hidden)));
    return in;
}

/// q, k, v of one row before the cache: [(heads + 2 kv) * head_dim].
std::vector<double> reference_row(const Case& c, const Inputs& in, int row, int position) {
    const int out = (c.heads + 2 * c.kv_heads) * c.head_dim;
    const auto hidden = static_cast<size_t>(c.hidden);
    std::vector<double> x(hidden), y(static_cast<size_t>(out));
    double square = 0;
    const float* h = in.hidden.data() + static_cast<size_t>(row) * hidden;
    for (size_t i = 0; i < hidden; ++i) square += static_cast<double>(h[i]) * h[i];
    const double scale = 1.0 / std::sqrt(square / c.hidden + 1e-5);
    for (size_t i = 0; i < hidden; ++i)
        x[i] = h[i] * scale * (in.norm[i] + (c.style == NormStyle::one_plus ? 1.0 : 0.0));
    for (size_t o = 0; o < static_cast<size_t>(out); ++o) {
        double sum = c.bias ? static_cast<double>(in.bias[o]) : 0;
        for (size_t i = 0; i < hidden; ++i) sum += x[i] * value_of(in.weight[o * hidden + i]);
        y[o] = sum;
    }
    for (int head = 0; head < c.heads + c.kv_heads; ++head) {
        double* v = y.data() + static_cast<size_t>(head) * static_cast<size_t>(c.head_dim);
        if (c.head_norm) {
            double s = 0;
            for (int i = 0; i < c.head_dim; ++i) s += v[i] * v[i];
            const double r = 1.0 / std::sqrt(s / c.head_dim + 1e-6);
            for (int i = 0; i < c.head_dim; ++i)
                v[i] *= r * static_cast<double>((head < c.heads ? in.q_norm : in.k_norm)[static_cast<size_t>(i)]);
        }
        for (int i = 0; i < c.head_dim / 2 && c.rope != RopeStyle::none; ++i) {
            double& a = v[c.rope == RopeStyle::half ? i : 2 * i];
            double& b = v[c.rope == RopeStyle::half ? i + c.head_dim / 2 : 2 * i + 1];
            const double angle =
                static_cast<double>(position) * static_cast<double>(in.frequencies[static_cast<size_t>(i)]);
            const double u = a * std::cos(angle) - b * std::sin(angle);
            b = b * std::cos(angle) + a * std::sin(angle);
            a = u;
        }
    }
    return y;
}

/// Tiles of the product that finishes q, k and v; 0: as it chooses them itself.
struct Tile {
    int columns = 0, splits = 0;
};

/// The attention input; with a tile named, its norm (into `x`) and the product by such tiles.
Status run_input(Bench& bench, const AttentionInputParams& p, const Tile& tile, __nv_bfloat16* x) {
    if (tile.columns == 0) return cuda::run_attention_input(bench.stream, p);
    const int64_t stride = static_cast<const cuda::CudaLinear*>(p.qkv)->stride();
    const Status s = cuda::run_norm_rows(bench.stream, {p.in.header, nullptr, 0, p.rows, static_cast<const float*>(p.hidden),
                                                        static_cast<int32_t>(p.qkv->in_features()), p.norm, x, stride});
    return s.ok() ? cuda::run_qkv_split(bench.stream, {&p, 0, p.rows, x, stride, tile.columns, tile.splits}) : s;
}

/// Rows of q and what their keys and values became in the cache against float64.
template <class T>
void compare_rows(Bench& bench, const Case& c, const std::string& name, const Inputs& in, const StepBuilder& step, const KvLayout& layout,
                  const std::vector<__nv_bfloat16>& got_q, const std::vector<T>& got_cache) {
    Comparison queries, keys, values;
    double worst_row = 0;
    for (int r = 0; r<c.rows; r += c.rows> 12 ? 5 : 1) {
        const int segment = r == 0 ? 0 : 1, position = r == 0 ? c.position : 5 + r - 1;
        const auto y = reference_row(c, in, r, position);
        Comparison row;
        for (int i = 0; i < c.heads * c.head_dim; ++i) {
            const double got = value_of(got_q[static_cast<size_t>(r * c.heads * c.head_dim + i)]);
            queries.add(got, y[static_cast<size_t>(i)]);
            row.add(got, y[static_cast<size_t>(i)]);
        }
        worst_row = std::max(worst_row, row.error());
        for (int kv = 0; kv < 2; ++kv) {
            for (int i = 0; i < c.kv_heads * c.head_dim; ++i) {
                const size_t at = step.cache_offset(layout, segment, position, kv, i / c.head_dim) / sizeof(T) +
                                  static_cast<size_t>(i % c.head_dim);
                (kv == 0 ? keys : values)
                    .add(value_of(got_cache[at]), y[static_cast<size_t>((c.heads + kv * c.kv_heads) * c.head_dim + i)]);
            }
        }
    }
    bench.report->add(name + " q", queries.error(), 8e-3);
    bench.report->add(name + " k", keys.error(), 8e-3);
    bench.report->add(name + " v", values.error(), 8e-3);
    bench.report->add(name + " worst row of q", worst_row, 1.2e-2);
}

/// `tile`: q, k and v must be finished in their product.
template <class T>
void run_case(Bench& bench, const Case& c, const std::string& name, bool deterministic, const Tile* tile = nullptr) {
    std::mt19937_64 random(bench.random());
    KvLayout layout{sizeof(T) == 2 && std::is_same_v<T, __half> ? DType::f16 : DType::bf16,
                    1,
                    c.kv_heads,
                    c.head_dim,
                    c.block_tokens,
                    0};
    const auto& context = deterministic ? bench.deterministic : bench.context;
    StepBuilder step(layout, {{c.position, 1}, {5, c.rows - 1}}, c.heads, 0, false, context->num_sms(), random, 2);
    const Inputs in = make_inputs(c, step.padded_rows(), random);
    const int out = (c.heads + 2 * c.kv_heads) * c.head_dim;
    const std::vector<HostTensor> parts = {{in.weight.data(), DType::bf16, out, c.hidden}};
    auto linear = cuda::make_cuda_linear(context, parts, LinearKind::stacked);
    require(linear.ok() ? Status{} : Status{1, "make_linear"}, "weights");
    DeviceArray<float> hidden(in.hidden), norm(in.norm), bias(in.bias), q_norm(in.q_norm), k_norm(in.k_norm),
        frequencies(in.frequencies);
    DeviceArray<T> cache(layout.layer_bytes() / sizeof(T));
    DeviceArray<__nv_bfloat16> q(static_cast<size_t>(step.padded_rows() * c.heads * c.head_dim));
    DeviceArray<__nv_bfloat16> x(static_cast<size_t>(step.padded_rows()) * static_cast<size_t>((c.hidden + 63) / 64 * 64));
    AttentionInputParams p;
    p.in = step.device();
    p.rows = step.padded_rows();
    p.hidden = hidden.data();
    p.norm = {norm.data(), 1e-5f, c.style};
    p.qkv = linear.value().get();
    p.bias = c.bias ? bias.data() : nullptr;
    if (c.head_norm) {
        p.q_norm = {q_norm.data(), 1e-6f, NormStyle::plain};
        p.k_norm = {k_norm.data(), 1e-6f, NormStyle::plain};
    }
    p.rope = {c.rope, frequencies.data(), 1.0f};
    p.num_heads = c.heads;
    p.kv = layout;
    p.kv_layer = cache.data();
    p.q = q.data();
    if (tile != nullptr) bench.report->add(name + " is one product", cuda::qkv_split_fits(p, p.rows) ? 0 : 1, 0);
    for (int turn = 0; turn < 2; ++turn) {
        q.poison();
        cache.poison();
        require(run_input(bench, p, tile != nullptr ? *tile : Tile{}, x.data()), "attention input");
        bench.finish(name.c_str());
    }
    const auto got_q = q.get();
    const auto got_cache = cache.get();
    int64_t written = 0;
    for (const T& v : got_cache) written += std::isnan(value_of(v)) ? 0 : 1;
    compare_rows(bench, c, name, in, step, layout, got_q, got_cache);
    const int64_t expected = int64_t{c.rows} * 2 * c.kv_heads * c.head_dim;
    bench.report->add(name + " writes only its slots", static_cast<double>(std::llabs(written - expected)), 0);
}

/// Cases in which q, k and v are finished in their product, by tiles and clusters of every kind; two rows of each step are padding.
void check_one_product(Bench& bench) {
    const RopeStyle half = RopeStyle::half;
    const NormStyle plain = NormStyle::plain;
    const std::vector<Case> cases = {
        {256, 16, 2, 128, 5, true, false, half},
        {448, 28, 4, 128, 9, true, false, half, 8, plain, 37, true},
        {512, 16, 2, 128, 62, true, false, half, 32},
        {320, 28, 4, 128, 63, false, false, half, 16, NormStyle::one_plus, 37, true},
        {384, 14, 2, 64, 100, true, false, half},
        {576, 16, 2, 128, 126, true, false, half, 16, plain, 131069},
        {256, 4, 2, 96, 127, true, false, RopeStyle::none},
        {448, 28, 4, 128, 200, true, false, half, 16, plain, 37, true},
        {320, 3, 1, 256, 254, true, false, half},
        {3584, 28, 4, 128, 30, true, false, half},
        {2048, 32, 8, 64, 17, false, false, half, 16, plain, 37, true},
        {2048, 16, 2, 128, 64, true, false, half},
        {1536, 12, 2, 128, 7, true, false, half},
        {640, 28, 4, 128, 129, false, false, half, 16, plain, 37, true},
    };
    for (const Tile tile : {Tile{0, 0}, Tile{96, 2}, Tile{128, 4}, Tile{160, 2}, Tile{160, 4}, Tile{192, 4}, Tile{256, 2}, Tile{256, 4}}) {
        int index = 0;
        for (const Case& c : cases) {
            // All shapes by the tiles that are chosen; a few by the others.
            const int at = index++;
            if (tile.columns != 0 && at % 3 != 1 && c.head_dim == 128) continue;
            if (bench.brief && c.hidden > 640) continue;
            const std::string name = "one product " + std::to_string(tile.columns) + "x" + std::to_string(tile.splits) + " hidden " +
                                     std::to_string(c.hidden) + " head " + std::to_string(c.head_dim) + " rows " + std::to_string(c.rows);
            run_case<__nv_bfloat16>(bench, c, name + " bf16", false, &tile);
            if (tile.columns == 0) run_case<__half>(bench, c, name + " f16", false, &tile);
        }
    }
}

/// Which attention inputs are one product.
void check_choice(Bench& bench) {
    struct Choice {
        const char* name;
        int hidden, rows;
        bool fits, head_norm = false, deterministic = false;
        RopeStyle rope = RopeStyle::half;
    };
    const Choice choices[] = {
        {"four rows", 256, 4, false},
        {"five rows", 256, 5, true},
        {"256 rows", 256, 256, true},
        {"257 rows", 256, 257, false},
        {"norms of heads", 256, 32, false, true},
        {"interleaved pairs", 256, 32, false, false, false, RopeStyle::interleaved},
        {"no rotation", 256, 32, true, false, false, RopeStyle::none},
        {"a width of half chunks", 288, 32, false},
        {"deterministic", 256, 32, false, false, true},
    };
    DeviceArray<float> weight(256);
    for (const Choice& c : choices) {
        constexpr int kHeads = 16, kKvHeads = 2, kHeadDim = 128;
        cuda::CudaLinear linear(c.deterministic ? bench.deterministic : bench.context, LinearKind::stacked);
        require(linear.allocate((kHeads + 2 * kKvHeads) * kHeadDim, c.hidden), "weights");
        AttentionInputParams p;
        p.qkv = &linear;
        p.num_heads = kHeads;
        p.kv = {DType::bf16, 1, kKvHeads, kHeadDim, 16, 8};
        p.norm.weight = weight.data();
        if (c.head_norm) p.q_norm.weight = p.k_norm.weight = weight.data();
        p.rope.style = c.rope;
        bench.report->add(std::string("choice of ") + c.name, cuda::qkv_split_fits(p, c.rows) == c.fits ? 0 : 1, 0);
    }
}

void check_embed(Bench& bench) {
    constexpr int kTokens = 1000, kHidden = 200;
    KvLayout layout{DType::bf16, 1, 1, 64, 16, 0};
    StepBuilder step(layout, {{0, 3}, {9, 1}}, 1, 0, false, bench.context->num_sms(), bench.random, 2);
    step.host().rows[3].token = ~5;
    step.upload();
    const auto table = random_values<__nv_bfloat16>(bench.random, size_t{kTokens} * kHidden, 1.0f);
    auto embedding = cuda::make_cuda_embedding(bench.context, {table.data(), DType::bf16, kTokens, kHidden}, nullptr);
    require(embedding.ok() ? Status{} : Status{1, "make_embedding"}, "embedding");
    std::vector<int32_t> slots(8, 1);
    slots[5] = 777;
    DeviceArray<int32_t> slot_tokens(slots);
    DeviceArray<float> hidden(static_cast<size_t>(step.padded_rows()) * kHidden);
    EmbedParams p;
    p.in = step.device();
    p.rows = step.padded_rows();
    p.table = embedding.value().get();
    p.slot_tokens = slot_tokens.data();
    p.scale = 3.0f;
    p.hidden = hidden.data();
    require(cuda::run_embed(bench.stream, p), "embed");
    bench.finish("embed");
    const auto got = hidden.get();
    Comparison comparison;
    for (size_t r = 0; r < 4; ++r) {
        const auto token = static_cast<size_t>(r == 3 ? 777 : step.host().rows[r].token);
        for (size_t i = 0; i < kHidden; ++i)
            comparison.add(static_cast<double>(got[r * kHidden + i]), 3.0 * value_of(table[token * kHidden + i]));
    }
    bench.report->add("embed", comparison.error(), 1e-6);
}

}   // namespace

void check_attention_input(Bench& bench) {
    check_embed(bench);
    const std::vector<Case> cases = {
        {2048, 16, 2, 128, 2, true, false, RopeStyle::half},
        {3584, 28, 4, 128, 3, true, false, RopeStyle::half},
        {3584, 28, 4, 128, 6, true, false, RopeStyle::half},
        {896, 14, 2, 64, 5, true, false, RopeStyle::half, 8},
        {576, 9, 3, 64, 6, false, false, RopeStyle::interleaved},
        {1024, 16, 8, 128, 4, false, true, RopeStyle::half},
        {1024, 16, 8, 128, 40, false, true, RopeStyle::half, 32},
        {640, 8, 2, 80, 4, true, false, RopeStyle::half},
        {1152, 4, 1, 256, 5, false, true, RopeStyle::half, 16, NormStyle::one_plus},
        {2048, 16, 2, 128, 21, true, false, RopeStyle::half},
        {200, 4, 2, 96, 6, true, false, RopeStyle::none},
        {2048, 16, 2, 128, 3, true, false, RopeStyle::half, 16, NormStyle::plain, 131069},
        {640, 8, 2, 80, 12, false, false, RopeStyle::interleaved, 32, NormStyle::plain, 131071},
        {128, 28, 4, 128, 200, true, false, RopeStyle::half},
        {320, 20, 4, 128, 200, true, false, RopeStyle::half},
        {448, 28, 4, 128, 300, true, false, RopeStyle::half},
        {128, 9, 3, 64, 700, false, true, RopeStyle::interleaved},
    };
    int index = 0;
    for (const Case& c : cases) {
        if (bench.brief && c.hidden > 640) continue;
        const std::string name = "input " + std::to_string(index++) + " hidden " + std::to_string(c.hidden) + " rows " +
                                 std::to_string(c.rows);
        run_case<__nv_bfloat16>(bench, c, name + " bf16", false);
        run_case<__half>(bench, c, name + " f16", false);
        run_case<__nv_bfloat16>(bench, c, name + " tile", true);
    }
    check_one_product(bench);
    check_choice(bench);
}

}   // namespace takt::check
