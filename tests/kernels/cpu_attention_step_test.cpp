// From a projection through the cache to attention's output: int8 K and V within what rounding takes, keys and values that are not finite,
// and the dummy block, on every CPU path that this machine runs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "catch.h"
#include "cpu_paths.h"
#include "kernels/cpu/kv_place.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace {

using namespace takt;
using namespace takt::cpu;

std::vector<float> normals(std::mt19937& random, size_t count) {
    std::vector<float> out(count);
    for (float& v : out) v = std::normal_distribution<float>()(random);
    return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A step whose projection is the identity: hidden rows are q, k and v of two KV heads with two queries each.
class Step {
public:
    static constexpr int32_t kDims = 80, kKvHeads = 2, kHeads = 4, kRows = 21, kWidth = (kHeads + 2 * kKvHeads) * kDims;

    explicit Step(int num_threads, int32_t block_tokens, CpuIsa isa = CpuIsa::automatic, DType type = DType::i8) {
        CpuDeviceOptions options;
        options.isa = isa;
        options.num_threads = num_threads;
        options.arithmetic = CpuArithmetic::float32;
        device = make_cpu_device(options, TimeSource{[](void*) -> uint64_t { return 1; }, nullptr}).value();
        kv.type = type;
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
        // As the host pads a step: such rows and entries of the table name the dummy block.
        for (int32_t r = kRows; r < 32; ++r) rows.push_back(RowInput{0, 0, kDummyBlock, -1});
        while (block_ids.size() % 8 != 0) block_ids.push_back(kDummyBlock);
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

TEST_CASE("a step's attention reads and writes nothing of the dummy block, which holds no numbers here, in every type") {
    std::mt19937 random(33);
    const std::vector<float> hidden = normals(random, static_cast<size_t>(Step::kRows * Step::kWidth));
    for (const DType type : {DType::i8, DType::f16, DType::bf16, DType::f32}) {
        for (const CpuIsa isa : takt::test::machine_isas()) {
            CAPTURE(dtype_info(type).name, isa);
            Step step(2, 16, isa, type);
            const std::vector<float> out = step.run(hidden);
            CHECK(std::all_of(out.begin(), out.end(), [](float v) { return std::isfinite(v); }));
            for (int head = 0; head < Step::kKvHeads; ++head) {
                for (const size_t begin : {key_begin(step.kv, head), value_begin(step.kv, head)}) {
                    const auto first = step.cache.begin() + static_cast<std::ptrdiff_t>(begin);   // of block 0
                    const auto bytes = static_cast<std::ptrdiff_t>(step.kv.head_stride());
                    CHECK(std::all_of(first, first + bytes, [](uint8_t b) { return b == 0xff; }));
                }
            }
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
        for (const CpuIsa isa : takt::test::machine_isas()) {
            CAPTURE(isa);
            Step step(1, 16, isa);
            const std::vector<float> out = step.run(hidden, bias.data());
            const auto bad = out.begin() + static_cast<std::ptrdiff_t>(bad_row * Step::kHeads * Step::kDims);
            CHECK(std::all_of(out.begin(), bad, [](float v) { return std::isfinite(v); }));
            CHECK(std::none_of(bad, out.end(), [](float v) { return std::isfinite(v); }));
        }
    }
}
