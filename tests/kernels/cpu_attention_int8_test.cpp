// Attention over int8 K and V on every CPU path that this machine runs: rounding of a row, attention against float64 over the same
// integers and scales, bits that depend on the row and the cache alone, and the way from a projection through the cache to the output.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "attention_job.h"
#include "catch.h"
#include "cpu_paths.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kv_place.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace {

using namespace takt;
using namespace takt::cpu;
using takt::test::machine_kernels;
using takt::test::run_attention;
using takt::test::run_attention_by_rows;
using Shape = takt::test::AttentionShape;

std::vector<float> normals(std::mt19937& random, size_t count) {
    std::vector<float> out(count);
    for (float& v : out) v = std::normal_distribution<float>()(random);
    return out;
}

/// One head's quantised K and V, by position and as the cache holds them; what nobody wrote would poison a result.
struct Cache {
    Cache(const Shape& s, std::mt19937& random) : shape(s) {
        kv.type = DType::i8;
        kv.num_layers = kv.num_kv_heads = 1;
        kv.head_dim = s.dims;
        kv.block_tokens = s.block_tokens;
        kv.num_blocks = (s.context + s.block_tokens - 1) / s.block_tokens + 1;
        const auto count = static_cast<size_t>(s.context * s.dims);
        for (int t = 0; t < 2 * s.context; ++t) scales.push_back(std::uniform_real_distribution<float>(0.002F, 0.02F)(random));
        for (size_t i = 0; i < 2 * count; ++i) integers.push_back(static_cast<int8_t>(static_cast<int>(random() % 255) - 127));
        for (int b = 0; b < kv.num_blocks; ++b) table.push_back(kv.num_blocks - 1 - b);
        bytes.assign(kv.layer_bytes(), 0xff);   // scales that are not numbers
        for (int t = 0; t < s.context; ++t) {
            const int token = t % s.block_tokens;
            const size_t begin = static_cast<size_t>(table[static_cast<size_t>(t / s.block_tokens)]) * kv.head_stride();
            uint8_t* keys = bytes.data() + key_begin(kv, 0) + begin;
            uint8_t* values = bytes.data() + value_begin(kv, 0) + begin;
            place_key(row(0, t), s.block_tokens, s.dims, token, keys);
            std::memcpy(values + static_cast<size_t>(token) * kv.token_stride(), row(1, t), kv.token_stride());
            std::memcpy(keys + kv.scales_begin() + 4 * static_cast<size_t>(token), &scales[static_cast<size_t>(t)], 4);
            std::memcpy(values + kv.scales_begin() + 4 * static_cast<size_t>(token), &scales[static_cast<size_t>(s.context + t)], 4);
        }
    }
    [[nodiscard]] const int8_t* row(int part, int t) const {
        return &integers[static_cast<size_t>((part * shape.context + t) * shape.dims)];
    }
    [[nodiscard]] double at(int part, int t, int d) const {
        return static_cast<double>(row(part, t)[d]) * static_cast<double>(scales[static_cast<size_t>(part * shape.context + t)]);
    }
    [[nodiscard]] AttentionJob job() const {
        AttentionJob j = takt::test::attention_job(shape);
        j.keys = bytes.data() + key_begin(kv, 0);
        j.values = bytes.data() + value_begin(kv, 0);
        j.block_stride = kv.head_stride();
        j.token_stride = kv.token_stride();
        j.type = DType::i8;
        j.table = table.data();
        return j;
    }

    Shape shape;
    KvLayout kv;
    std::vector<int8_t> integers;   // K, then V, by position
    std::vector<float> scales;
    std::vector<int32_t> table;
    std::vector<uint8_t> bytes;
};

/// Outputs of a job, each row by chunks of its context that are folded afterwards.
std::vector<float> run_cut(const KernelTable& k, const AttentionJob& whole, const std::vector<float>& q) {
    std::vector<float> out(q.size(), std::nanf(""));
    const size_t stride = static_cast<size_t>(whole.head_dim) + 16;
    const auto heads = static_cast<size_t>(whole.num_heads);
    for (int r = 0; r < whole.num_rows; ++r) {
        AttentionJob j = whole;
        std::vector<float> scratch(attention_scratch_floats(j.num_heads, j.head_dim));
        j.scratch = scratch.data();
        j.num_rows = 1;
        j.first_position += r;
        j.q = q.data() + static_cast<size_t>(r) * whole.q_stride;
        const int context = j.first_position + 1, chunks = (context + kChunkPositions - 1) / kChunkPositions;
        std::vector<float> partials(static_cast<size_t>(chunks) * heads * stride, std::nanf(""));
        for (int c = 0; c < chunks; ++c) {
            j.kv_begin = c * kChunkPositions;
            j.kv_end = std::min(context, j.kv_begin + kChunkPositions);
            j.partial = &partials[static_cast<size_t>(c) * heads * stride];
            k.attention(j);
        }
        for (size_t h = 0; h < heads; ++h) {
            float* to = &out[static_cast<size_t>(r) * whole.out_stride + h * static_cast<size_t>(whole.head_dim)];
            k.merge(&partials[h * stride], heads * stride, chunks, whole.head_dim, to);
        }
    }
    return out;
}

std::vector<double> reference(const Cache& cache, const std::vector<float>& q) {
    const Shape& s = cache.shape;
    std::vector<double> out(q.size(), 0.0);
    for (int n = 0; n < s.rows * s.heads; ++n) {
        const int position = s.context - s.rows + n / s.heads;
        const int first = s.window > 0 ? std::max(position - s.window + 1, 0) : 0;
        const float* query = &q[static_cast<size_t>(n * s.dims)];
        std::vector<double> weights;
        double total = 0;
        for (int t = first; t <= position; ++t) {
            double score = 0;
            for (int d = 0; d < s.dims; ++d) score += static_cast<double>(query[d]) * cache.at(0, t, d);
            score *= 0.1;
            if (s.soft_cap > 0) score = static_cast<double>(s.soft_cap) * std::tanh(score / static_cast<double>(s.soft_cap));
            weights.push_back(std::exp(score));
            total += weights.back();
        }
        for (int t = first; t <= position; ++t) {
            const double weight = weights[static_cast<size_t>(t - first)] / total;
            for (int d = 0; d < s.dims; ++d) out[static_cast<size_t>(n * s.dims + d)] += weight * cache.at(1, t, d);
        }
    }
    return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Head sizes that fill whole passes and that do not; one query a KV head, some, many; windows; a soft cap; context past a chunk.
constexpr Shape kShapes[] = {{64, 3, 16, 300, 16, 0, 0.0F}, {64, 1, 8, 65, 7, 0, 0.0F},     {80, 1, 8, 131, 3, 0, 0.0F},
                             {96, 2, 32, 77, 5, 30, 0.0F},  {128, 8, 16, 17, 16, 0, 0.0F},  {256, 2, 16, 600, 9, 100, 0.0F},
                             {16, 4, 32, 64, 3, 0, 30.0F},  {128, 4, 8, 203, 11, 90, 5.0F}, {80, 5, 64, 129, 16, 40, 0.0F},
                             {64, 9, 32, 513, 1, 0, 0.0F},  {64, 1, 16, 1, 1, 0, 0.0F}};

}  // namespace

TEST_CASE("int8 K and V: a row is rounded to the nearest of 255 steps, with the same bits on every path") {
    std::mt19937 random(3);
    for (const int n : {16, 64, 80, 96, 128, 256}) {
        for (const float spread : {1e-30F, 0.01F, 1.0F, 1e6F}) {
            std::vector<float> x = normals(random, static_cast<size_t>(n));
            for (float& v : x) v *= spread;
            float largest = 0.0F;
            for (const float v : x) largest = std::max(largest, std::abs(v));
            std::vector<int8_t> first;
            for (const KernelTable* k : machine_kernels()) {
                INFO(k->name << ", " << n << " of " << spread);
                std::vector<int8_t> out(static_cast<size_t>(n) + 16, 99);
                const float scale = k->quantise_kv(x.data(), n, out.data());
                CHECK(scale == largest / 127.0F);
                for (int i = 0; i < n; ++i) {
                    const double back = static_cast<double>(out[static_cast<size_t>(i)]) * static_cast<double>(scale);
                    CHECK(std::abs(back - static_cast<double>(x[static_cast<size_t>(i)])) <= 0.50005 * static_cast<double>(scale));
                }
                CHECK(std::count(out.begin() + n, out.end(), 99) == 16);   // nothing behind the row
                if (first.empty()) first = out;
                CHECK(out == first);
            }
        }
    }
    const float halves[16] = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 126.5F};   // of the scale 1: ties to even
    const int8_t expected[16] = {127, 0, 2, 2, 0, -2, -2, 126};
    for (const KernelTable* k : machine_kernels()) {
        int8_t out[16];
        CHECK(k->quantise_kv(halves, 16, out) == 1.0F);
        CHECK(std::equal(std::begin(out), std::end(out), std::begin(expected)));
    }
}

TEST_CASE("int8 K and V: a row of zeros has no scale, one that is not finite has none that is a number") {
    for (const KernelTable* k : machine_kernels()) {
        INFO(k->name);
        std::vector<float> x(64, 0.0F);
        std::vector<int8_t> out(64, 99);
        CHECK(k->quantise_kv(x.data(), 64, out.data()) == 0.0F);
        CHECK(std::count(out.begin(), out.end(), 0) == 64);
        for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
            x.assign(64, 1.0F);
            x[37] = bad;
            out.assign(64, 99);
            CHECK(std::isnan(k->quantise_kv(x.data(), 64, out.data())));
            CHECK(std::count(out.begin(), out.end(), 0) == 64);
        }
    }
}

TEST_CASE("int8 attention: float64 over the same integers and scales, for every shape") {
    std::mt19937 random(21);
    for (const Shape& s : kShapes) {
        CAPTURE(s.dims, s.heads, s.block_tokens, s.context, s.rows, s.window);
        const Cache cache(s, random);
        const std::vector<float> q = normals(random, static_cast<size_t>(s.rows * s.heads * s.dims));
        const std::vector<double> expected = reference(cache, q);
        for (const KernelTable* k : machine_kernels()) {
            INFO(k->name);
            const std::vector<float> out = run_attention(*k, cache.job(), q);
            double worst = 0;
            for (size_t i = 0; i < out.size(); ++i) {
                const double off = std::abs(static_cast<double>(out[i]) - expected[i]);
                worst = off <= worst ? worst : off;   // what is not a number counts
            }
            CHECK(worst < 1e-5);   // values up to 2.5
        }
    }
}

TEST_CASE("int8 attention of a row has the same bits alone, among other rows and with its context cut, for every shape") {
    std::mt19937 random(22);
    for (const Shape& s : kShapes) {
        CAPTURE(s.dims, s.heads, s.block_tokens, s.context, s.rows, s.window);
        const Cache cache(s, random);
        const std::vector<float> q = normals(random, static_cast<size_t>(s.rows * s.heads * s.dims));
        for (const KernelTable* k : machine_kernels()) {
            INFO(k->name);
            const std::vector<float> together = run_attention(*k, cache.job(), q);
            CHECK(same_bits(run_attention_by_rows(*k, cache.job(), q), together));
            CHECK(same_bits(run_cut(*k, cache.job(), q), together));
        }
    }
}

TEST_CASE("int8 attention: the bits do not depend on the size of the blocks") {
    for (const KernelTable* k : machine_kernels()) {
        INFO(k->name);
        std::vector<float> first;
        for (const int block_tokens : {8, 16, 32, 64}) {
            std::mt19937 random(23);
            const Cache cache({96, 3, block_tokens, 203, 6, 0, 0.0F}, random);
            const std::vector<float> out = run_attention(*k, cache.job(), normals(random, 6 * 3 * 96));
            if (first.empty()) first = out;
            CHECK(same_bits(out, first));
        }
    }
}

namespace {

/// A step whose projection is the identity: hidden rows are q, k and v of two KV heads with two queries each.
class Step {
public:
    static constexpr int32_t kDims = 80, kKvHeads = 2, kHeads = 4, kRows = 21, kWidth = (kHeads + 2 * kKvHeads) * kDims;

    explicit Step(int num_threads, int32_t block_tokens) {
        CpuDeviceOptions options;
        options.num_threads = num_threads;
        options.arithmetic = CpuArithmetic::float32;
        device = make_cpu_device(options, TimeSource{[](void*) -> uint64_t { return 1; }, nullptr}).value();
        kv.type = DType::i8;
        kv.num_layers = 1;
        kv.num_kv_heads = kKvHeads;
        kv.head_dim = kDims;
        kv.block_tokens = block_tokens;
        const int32_t blocks = (kRows + block_tokens - 1) / block_tokens;
        kv.num_blocks = blocks + 1;
        std::vector<float> identity(static_cast<size_t>(kWidth) * kWidth, 0.0F);
        for (size_t i = 0; i < kWidth; ++i) identity[i * (kWidth + 1)] = 1.0F;
        const HostTensor parts[] = {{identity.data(), DType::f32, kWidth, kWidth}};
        linear = device->make_linear(parts, LinearKind::stacked).value();
        for (int32_t b = 0; b < blocks; ++b) block_ids.push_back(blocks - b);
        header.num_rows = kRows;
        header.num_segments = 1;
        segment.num_rows = kRows;
        segment.num_blocks = blocks;
        for (int32_t r = 0; r < kRows; ++r) {
            const int32_t block = block_ids[static_cast<size_t>(r / block_tokens)];
            rows.push_back(RowInput{0, r, block * block_tokens + r % block_tokens, 0});
        }
        cache.assign(kv.layer_bytes(), 0xff);
    }

    /// Outputs of attention of the rows, each over those before it and itself.
    std::vector<float> run(const std::vector<float>& hidden, const float* bias = nullptr) {
        std::vector<float> q(static_cast<size_t>(kRows * kHeads * kDims), std::nanf("")), out(q);
        StepView view;
        view.header = &header;
        view.segments = &segment;
        view.rows = rows.data();
        view.block_ids = block_ids.data();
        std::vector<AttentionWork> work(256);
        view.work = work.data();
        AttentionPlanParams plan;
        plan.host = view;
        plan.capacity.max_work = 256;
        plan.num_heads = kHeads;
        plan.kv = kv;
        REQUIRE(device->ops().plan_attention(*device, plan).ok());
        AttentionInputParams in;
        in.in = view;
        in.rows = kRows;
        in.hidden = hidden.data();
        in.qkv = linear.get();
        in.bias = bias;
        in.rope.style = RopeStyle::none;
        in.num_heads = kHeads;
        in.kv = kv;
        in.kv_layer = cache.data();
        in.q = q.data();
        std::vector<uint8_t> partials(device->ops().attention_scratch_bytes(*device, kv, kHeads, 256, kRows));
        AttentionParams p;
        p.in = view;
        p.rows = kRows;
        p.q = q.data();
        p.num_heads = kHeads;
        p.kv = kv;
        p.kv_layer = cache.data();
        p.scale = 0.1F;
        p.partials = partials.data();
        p.out = out.data();
        const std::unique_ptr<Stream> stream = device->stream(0).value();
        REQUIRE(device->ops().attention_input(*stream, in).ok());
        REQUIRE(device->ops().attention(*stream, p).ok());
        REQUIRE(stream->synchronize().ok());
        return out;
    }

    std::unique_ptr<Device> device;
    KvLayout kv;
    std::unique_ptr<Linear> linear;
    StepHeader header;
    SegmentInput segment;
    std::vector<RowInput> rows;
    std::vector<int32_t> block_ids;
    std::vector<uint8_t> cache;
};

/// Attention over keys and values as they were before they were rounded.
std::vector<double> exact_attention(const std::vector<float>& hidden) {
    std::vector<double> out(static_cast<size_t>(Step::kRows * Step::kHeads * Step::kDims), 0.0);
    const auto at = [&](int row, int head, int d) {   // heads: q, then k, then v
        return static_cast<double>(hidden[static_cast<size_t>(row * Step::kWidth + head * Step::kDims + d)]);
    };
    for (int n = 0; n < Step::kRows * Step::kHeads; ++n) {
        const int row = n / Step::kHeads, head = n % Step::kHeads;
        const int k = Step::kHeads + head / 2, v = k + Step::kKvHeads;
        std::vector<double> weights;
        double total = 0;
        for (int t = 0; t <= row; ++t) {
            double score = 0;
            for (int d = 0; d < Step::kDims; ++d) score += at(row, head, d) * at(t, k, d);
            weights.push_back(std::exp(0.1 * score));
            total += weights.back();
        }
        for (int t = 0; t <= row; ++t) {
            for (int d = 0; d < Step::kDims; ++d) {
                out[static_cast<size_t>(n * Step::kDims + d)] += weights[static_cast<size_t>(t)] / total * at(t, v, d);
            }
        }
    }
    return out;
}

}  // namespace

TEST_CASE("int8 K and V: written by a step and read by its attention, within what rounding takes") {
    std::mt19937 random(31);
    const std::vector<float> hidden = normals(random, static_cast<size_t>(Step::kRows * Step::kWidth));
    const std::vector<double> expected = exact_attention(hidden);
    std::vector<float> first;
    for (const int32_t block_tokens : {8, 16, 32}) {
        for (const int threads : {1, 2}) {
            CAPTURE(block_tokens, threads);
            Step step(threads, block_tokens);
            const std::vector<float> out = step.run(hidden);
            double worst = 0;
            for (size_t i = 0; i < out.size(); ++i) {
                const double off = std::abs(static_cast<double>(out[i]) - expected[i]);
                worst = off <= worst ? worst : off;
            }
            CHECK(worst < 0.05);    // half a step of values of up to four is 0.016, the scores' errors move the weights
            CHECK(worst > 1e-4);    // rounded it was
            if (first.empty()) first = out;
            CHECK(same_bits(out, first));
        }
    }
}

TEST_CASE("int8 K and V: a key or value that is not finite shows from its own row on and in no earlier one") {
    std::mt19937 random(32);
    const std::vector<float> good = normals(random, static_cast<size_t>(Step::kRows * Step::kWidth));
    const int bad_row = Step::kRows - 2;
    for (const int first : {Step::kHeads, Step::kHeads + Step::kKvHeads}) {   // the keys, then the values
        CAPTURE(first);
        // An infinite input would spoil the row's whole product: the bias makes it of what all other rows take back.
        std::vector<float> hidden = good, bias(Step::kWidth, 0.0F);
        for (int head = first; head < first + Step::kKvHeads; ++head) {
            const int column = head * Step::kDims + 5;
            bias[static_cast<size_t>(column)] = 3e38F;
            for (int r = 0; r < Step::kRows; ++r) {
                hidden[static_cast<size_t>(r * Step::kWidth + column)] = r == bad_row ? 3e38F : -3e38F;
            }
        }
        Step step(1, 16);
        const std::vector<float> out = step.run(hidden, bias.data());
        const auto bad = out.begin() + static_cast<std::ptrdiff_t>(bad_row * Step::kHeads * Step::kDims);
        CHECK(std::all_of(out.begin(), bad, [](float v) { return std::isfinite(v); }));
        CHECK(std::none_of(bad, out.end(), [](float v) { return std::isfinite(v); }));
    }
}
