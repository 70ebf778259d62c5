// Paged attention against float64: decode, prefill, chunks at a position, mixed steps, windows, soft cap, every head
// size and block size; and bit-equality of the unsplit plan under chunking.
#include <algorithm>
#include <string>

#include "checks.h"
#include "kernels/cuda/attention.h"
#include "step_builder.h"

namespace takt::check {
namespace {

struct Case {
    int heads, kv_heads, head_dim, block_tokens;
    std::vector<SegmentShape> segments;
    int window = 0;
    float soft_cap = 0;
    bool deterministic = false;
    int padding = 0;
};

template <class T>
double attend(const Case& c, const std::vector<T>& cache, const KvLayout& layout, const StepBuilder& step, int segment,
              int row, int head, int dim, const std::vector<double>& weights) {
    double sum = 0;
    const SegmentInput& s = step.host().segments[segment];
    const int position = s.position_begin + row;
    for (int p = 0; p <= position; ++p) {
        if (weights[static_cast<size_t>(p)] == 0) continue;
        const size_t at = step.cache_offset(layout, segment, p, 1, head / (c.heads / c.kv_heads)) / sizeof(T);
        sum += weights[static_cast<size_t>(p)] * value_of(cache[at + static_cast<size_t>(dim)]);
    }
    return sum;
}

/// Softmax weights of one query over positions [0, own].
template <class T>
std::vector<double> weights_of(const Case& c, const std::vector<__nv_bfloat16>& q, const std::vector<T>& cache,
                               const KvLayout& layout, const StepBuilder& step, int segment, int row, int head,
                               float scale) {
    const SegmentInput& s = step.host().segments[segment];
    const int position = s.position_begin + row;
    std::vector<double> w(static_cast<size_t>(position) + 1, 0.0);
    const size_t query =
        (static_cast<size_t>(s.row_begin + row) * static_cast<size_t>(c.heads) + static_cast<size_t>(head)) *
        static_cast<size_t>(c.head_dim);
    double most = -1e300, total = 0;
    for (int p = 0; p <= position; ++p) {
        if (c.window > 0 && p <= position - c.window) continue;
        const size_t at = step.cache_offset(layout, segment, p, 0, head / (c.heads / c.kv_heads)) / sizeof(T);
        double dot = 0;
        for (size_t d = 0; d < static_cast<size_t>(c.head_dim); ++d)
            dot += value_of(q[query + d]) * value_of(cache[at + d]);
        dot *= static_cast<double>(scale);
        if (c.soft_cap > 0) dot = c.soft_cap * std::tanh(dot / c.soft_cap);
        w[static_cast<size_t>(p)] = dot;
        most = std::max(most, dot);
    }
    for (int p = 0; p <= position; ++p) {
        double& x = w[static_cast<size_t>(p)];
        x = c.window > 0 && p <= position - c.window ? 0 : std::exp(x - most);
        total += x;
    }
    for (double& x : w) x /= total;
    return w;
}

template <class T>
std::vector<__nv_bfloat16> run_case(Bench& bench, const Case& c, const std::string& name, uint64_t seed) {
    std::mt19937_64 random(seed);
    KvLayout layout;
    layout.type = sizeof(T) == 2 && std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
    layout.num_layers = 1;
    layout.num_kv_heads = c.kv_heads;
    layout.head_dim = c.head_dim;
    layout.block_tokens = c.block_tokens;
    const int num_sms = bench.context->num_sms();
    StepBuilder step(layout, c.segments, c.heads, c.window, c.deterministic, num_sms, random, c.padding);
    const auto cache = random_values<T>(random, layout.layer_bytes() / sizeof(T), 1.0f);
    const size_t width = static_cast<size_t>(c.heads * c.head_dim);
    const auto q = random_values<__nv_bfloat16>(random, static_cast<size_t>(step.padded_rows()) * width, 1.5f);
    DeviceArray<T> device_cache(cache);
    DeviceArray<__nv_bfloat16> device_q(q), out(q.size());
    DeviceArray<uint8_t> partials(cuda::attention_scratch_bytes(layout, step.capacity().max_work));
    AttentionParams p;
    p.in = step.device();
    p.rows = step.padded_rows();
    p.q = device_q.data();
    p.num_heads = c.heads;
    p.kv = layout;
    p.kv_layer = device_cache.data();
    p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
    p.soft_cap = c.soft_cap;
    p.window = c.window;
    p.partials = partials.data();
    p.out = out.data();
    for (int turn = 0; turn < 2; ++turn) {   // the second turn finds the counters as the first left them
        out.poison();
        p.decodes = turn == 1 && step.decodes();   // without the kernel of prefill items
        require(cuda::run_attention(bench.stream, p, num_sms, c.deterministic), "attention");
        bench.finish(name.c_str());
    }
    const auto result = out.get();
    Comparison comparison;
    for (size_t s = 0; s < c.segments.size(); ++s) {
        const int rows = c.segments[s].num_rows;
        for (int r = 0; r<rows; r += rows> 40 ? 1 + static_cast<int>(random() % 17) : 1) {
            for (int h = 0; h<c.heads; h += c.heads> 8 ? 1 + static_cast<int>(random() % 3) : 1) {
                const auto w = weights_of<T>(c, q, cache, layout, step, static_cast<int>(s), r, h, p.scale);
                const size_t at = static_cast<size_t>(step.host().segments[s].row_begin + r) * width +
                                  static_cast<size_t>(h * c.head_dim);
                for (int d = 0; d < c.head_dim; d += 1 + static_cast<int>(random() % 7)) {
                    comparison.add(value_of(result[at + static_cast<size_t>(d)]),
                                   attend<T>(c, cache, layout, step, static_cast<int>(s), r, h, d, w));
                }
            }
        }
    }
    bench.report->add(name, comparison.error(), 8e-3);
    return result;
}

void check_chunking(Bench& bench) {
    // The same sequence whole and in slices, unsplit plan: the last rows must be equal bit for bit.
    const Case whole{28, 4, 128, 16, {{0, 300}}, 0, 0, true, 0};
    std::mt19937_64 random(99);
    KvLayout layout{DType::bf16, 1, 4, 128, 16, 0};
    StepBuilder step(layout, whole.segments, 28, 0, true, bench.context->num_sms(), random);
    const auto cache = random_values<__nv_bfloat16>(random, layout.layer_bytes() / 2, 1.0f);
    const auto q = random_values<__nv_bfloat16>(random, size_t{300} * 28 * 128, 1.0f);
    DeviceArray<__nv_bfloat16> device_cache(cache), device_q(q), out(q.size()), slice_out(q.size());
    DeviceArray<uint8_t> partials(cuda::attention_scratch_bytes(layout, step.capacity().max_work));
    AttentionParams p;
    p.in = step.device();
    p.rows = 300;
    p.q = device_q.data();
    p.num_heads = 28;
    p.kv = layout;
    p.kv_layer = device_cache.data();
    p.scale = 0.1f;
    p.partials = partials.data();
    p.out = out.data();
    require(cuda::run_attention(bench.stream, p, bench.context->num_sms(), true), "attention");
    bench.finish("whole");
    for (const int begin : {1, 64, 123, 299}) {
        StepView v = step.host();
        v.segments[0].position_begin = begin;
        v.segments[0].num_rows = 300 - begin;
        v.header->num_rows = 300 - begin;
        AttentionPlanParams plan;
        plan.host = v;
        plan.capacity = step.capacity();
        plan.num_heads = 28;
        plan.kv = layout;
        plan.deterministic = true;
        require(cuda::plan_attention(plan, bench.context->num_sms()), "planning");
        step.upload();
        AttentionParams slice = p;
        slice.rows = 300 - begin;
        slice.q = device_q.data() + begin * 28 * 128;
        slice.out = slice_out.data();
        require(cuda::run_attention(bench.stream, slice, bench.context->num_sms(), true), "attention");
        bench.finish("slice");
        const auto a = out.get(), b = slice_out.get();
        int64_t different = 0;
        for (size_t i = 0; i < static_cast<size_t>(300 - begin) * 28 * 128; ++i) {
            if (value_of(a[i + static_cast<size_t>(begin) * 28 * 128]) != value_of(b[i])) ++different;
        }
        bench.report->add("attention unsplit, chunk at " + std::to_string(begin) + " bit-equal",
                          static_cast<double>(different), 0);
    }
}

/// A mixed step whose items fill all multiprocessors, again and again over poisoned results: the same bits every time.
void check_repeats(Bench& bench) {
    std::mt19937_64 random(77);
    KvLayout layout{DType::bf16, 1, 4, 128, 16, 0};
    std::vector<SegmentShape> segments;
    for (int i = 0; i < 32; ++i) segments.push_back({300 + 20 * i, 1});
    segments.push_back({2000, 224});
    const int num_sms = bench.context->num_sms();
    StepBuilder step(layout, segments, 28, 0, false, num_sms, random);
    DeviceArray<__nv_bfloat16> cache(random_values<__nv_bfloat16>(random, layout.layer_bytes() / 2, 1.0f)),
        q(random_values<__nv_bfloat16>(random, size_t{256} * 28 * 128, 1.0f)), out(q.size());
    DeviceArray<uint8_t> partials(cuda::attention_scratch_bytes(layout, step.capacity().max_work));
    AttentionParams p;
    p.in = step.device();
    p.rows = step.padded_rows();
    p.q = q.data();
    p.num_heads = 28;
    p.kv = layout;
    p.kv_layer = cache.data();
    p.scale = 0.0884f;
    p.partials = partials.data();
    p.out = out.data();
    std::vector<__nv_bfloat16> first;
    int64_t different = 0;
    for (int turn = 0; turn < (bench.brief ? 2 : 100); ++turn) {
        out.poison();
        partials.poison();
        require(cuda::run_attention(bench.stream, p, num_sms), "attention");
        bench.finish("repeated attention");
        const auto got = out.get();
        if (turn == 0) first = got;
        for (size_t i = 0; i < got.size(); ++i) different += value_of(got[i]) == value_of(first[i]) ? 0 : 1;
    }
    bench.report->add("attention mixed, 100 turns bit-equal", static_cast<double>(different), 0);
}

}   // namespace

void check_attention(Bench& bench) {
    // About as many results as multiprocessors: blocks of eight warps, some without a tile for each of them.
    std::vector<SegmentShape> many;
    for (int i = 0; i < 40; ++i) many.push_back({i * 27, 1});
    std::vector<SegmentShape> uneven(many.begin(), many.begin() + 30);
    uneven.push_back({6000, 1});
    const std::vector<Case> cases = {
        {16, 2, 128, 16, many},
        {9, 3, 64, 8, many, 300, 30.0f},
        {12, 2, 96, 16, many, 0, 0, false, 5},
        {28, 4, 128, 16, uneven},
        {16, 2, 128, 16, {{0, 1}}},
        {16, 2, 128, 16, {{1023, 1}}},
        {28, 4, 128, 16, {{5000, 1}, {0, 1}, {17, 1}, {63, 1}, {64, 1}, {2047, 1}}},
        {28, 4, 128, 8, {{700, 1}, {31, 1}}},
        {28, 4, 128, 32, {{700, 1}, {33, 1}}, 0, 0, false, 3},
        {9, 3, 64, 16, {{900, 1}, {15, 1}}},
        {32, 32, 64, 16, {{150, 1}}},
        {32, 1, 128, 16, {{1500, 1}, {40, 1}}},
        {20, 4, 80, 16, {{333, 1}, {0, 70}}},
        {12, 2, 96, 16, {{333, 1}, {0, 70}}},
        {8, 4, 256, 16, {{333, 1}, {0, 70}}},
        {28, 4, 128, 16, {{0, 200}}},
        {28, 4, 128, 16, {{777, 65}}},
        {16, 2, 128, 16, {{3000, 24}}},
        {28, 4, 128, 16, {{1000, 1}, {50, 1}, {300, 96}, {0, 33}}},
        {28, 4, 128, 16, {{2000, 1}, {700, 40}}, 256},
        {16, 8, 256, 16, {{900, 1}, {100, 70}}, 200, 50.0f},
        {28, 4, 128, 16, {{1000, 1}, {50, 1}, {300, 96}}, 0, 0, true},
        // Prefill items beside decode items: split and whole, and enough decode items for several a block.
        {28, 4, 128, 16, {{1000, 1}, {50, 1}, {999, 1}, {1000, 16}}},
        {16, 2, 128, 16, {{4000, 1}, {3000, 1}, {100, 1}, {4096, 96}}},
        {28, 4, 128, 16, {{700, 1}, {650, 1}, {600, 1}, {550, 1}, {500, 1}, {450, 1}, {400, 1}, {350, 1}, {300, 1}, {250, 1}, {3000, 224}}},
        {28, 4, 128, 16, {{1000, 1}, {50, 1}, {0, 1000}}},
        {28, 4, 128, 16, {{1000, 1}, {2000, 383}}},   // in more parts than multiprocessors
        {12, 2, 96, 16, {{333, 1}, {700, 1}, {600, 70}}},
    };
    int index = 0;
    for (const Case& c : cases) {
        const auto is_long = [](const SegmentShape& s) { return s.position_begin + s.num_rows > 1100; };
        if (bench.brief && std::any_of(c.segments.begin(), c.segments.end(), is_long)) continue;
        const std::string name = "attention " + std::to_string(index) + " q" + std::to_string(c.heads) + " kv" +
                                 std::to_string(c.kv_heads) + " x" + std::to_string(c.head_dim) + " block " +
                                 std::to_string(c.block_tokens);
        run_case<__nv_bfloat16>(bench, c, name + " bf16", 1000 + static_cast<uint64_t>(index));
        run_case<__half>(bench, c, name + " f16", 2000 + static_cast<uint64_t>(index));
        ++index;
    }
    check_chunking(bench);
    check_repeats(bench);
}

}   // namespace takt::check
