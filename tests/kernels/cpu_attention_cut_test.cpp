// The attention work list of the CPU device: short slices of prompts are cut by context where that balances the threads, a list
// without room for the pieces is not, and neither changes a bit of the outputs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "catch.h"
#include "kernels/device.h"
#include "kernels/device_factory.h"
#include "kernels/ops.h"

namespace {

using namespace takt;

struct Slice {
    int32_t first = 0, rows = 1;   // position of its first row, rows
};

constexpr int32_t kGroup = 3, kKvHeads = 3, kDims = 64, kHeads = kGroup * kKvHeads;

/// A step of some slices over one layer of random K and V.
struct Step {
    explicit Step(const std::vector<Slice>& slices) {
        kv.type = DType::f32;
        kv.num_layers = 1;
        kv.num_kv_heads = kKvHeads;
        kv.head_dim = kDims;
        std::mt19937 random(17);
        int32_t rows = 0;
        for (const Slice& slice : slices) {
            SegmentInput s;
            s.row_begin = rows;
            s.num_rows = slice.rows;
            s.position_begin = slice.first;
            s.table_begin = static_cast<int32_t>(block_ids.size());
            s.num_blocks = (slice.first + slice.rows + kv.block_tokens - 1) / kv.block_tokens;
            for (int32_t b = 0; b < s.num_blocks; ++b) block_ids.push_back(static_cast<int32_t>(block_ids.size()) + 1);
            segments.push_back(s);
            rows += slice.rows;
        }
        kv.num_blocks = static_cast<int32_t>(block_ids.size()) + 1;
        std::shuffle(block_ids.begin(), block_ids.end(), random);
        cache.resize(kv.layer_bytes() / sizeof(float));
        for (float& v : cache) v = std::normal_distribution<float>()(random);
        q.resize(static_cast<size_t>(rows * kHeads * kDims));
        for (float& v : q) v = std::normal_distribution<float>()(random);
        header.num_rows = rows;
        header.num_segments = static_cast<int32_t>(segments.size());
    }

    Status plan(Device& device, int32_t max_work) {
        work.assign(static_cast<size_t>(max_work), AttentionWork{});
        AttentionPlanParams p;
        p.host = view();
        p.capacity.max_work = max_work;
        p.num_heads = kHeads;
        p.kv = kv;
        return device.ops().plan_attention(device, p);
    }

    std::vector<float> run(Device& device) {
        std::vector<float> out(q.size(), std::nanf(""));
        std::vector<uint8_t> partials(
            device.ops().attention_scratch_bytes(device, kv, kHeads, static_cast<int32_t>(work.size()), header.num_rows));
        AttentionParams p;
        p.in = view();
        p.num_heads = kHeads;
        p.kv = kv;
        p.kv_layer = cache.data();
        p.q = q.data();
        p.out = out.data();
        p.partials = partials.data();
        p.scale = 0.125F;
        std::unique_ptr<Stream> stream = device.stream(0).value();
        REQUIRE(device.ops().attention(*stream, p).ok());
        REQUIRE(stream->synchronize().ok());
        return out;
    }

    StepView view() {
        StepView v;
        v.header = &header;
        v.segments = segments.data();
        v.work = work.data();
        v.block_ids = block_ids.data();
        return v;
    }

    /// Positions that the list reads for the rows of a segment and one KV head, in pairs of row and position.
    [[nodiscard]] int64_t covered(int32_t segment) const {
        int64_t sum = 0;
        for (int32_t i = 0; i < header.num_work; ++i) {
            const AttentionWork& w = work[static_cast<size_t>(i)];
            if (w.segment == segment && w.kv_head == 0) sum += int64_t{w.num_rows} * (w.kv_end - w.kv_begin);
        }
        return sum;
    }

    KvLayout kv;
    StepHeader header;
    std::vector<SegmentInput> segments;
    std::vector<AttentionWork> work;
    std::vector<int32_t> block_ids;
    std::vector<float> cache, q;
};

std::unique_ptr<Device> two_threads() {
    CpuDeviceOptions options;
    options.num_threads = 2;
    return make_cpu_device(options, TimeSource{[](void*) -> uint64_t { return 1; }, nullptr}).value();
}

}  // namespace

TEST_CASE("attention work: a short slice is cut by context, and no bit of it changes") {
    const std::unique_ptr<Device> device = two_threads();
    Step step({{700, 1}, {600, 9}, {500, 40}, {290, 1}, {10, 5}});
    // 3 tiles for the 40 rows, 1 for each of the others, 3 KV heads.
    const int32_t least = 7 * kKvHeads;
    CHECK_FALSE(step.plan(*device, least - 1).ok());
    REQUIRE(step.plan(*device, least).ok());
    CHECK(step.header.num_work == least);
    const std::vector<float> whole = step.run(*device);

    REQUIRE(step.plan(*device, 1000).ok());
    // Chunks of 256: 3 of the 701 positions, 3 of 609, 3 of each tile of the 40 rows, 2 of 291, 1 of 15.
    CHECK(step.header.num_work == (3 + 3 + 9 + 2 + 1) * kKvHeads);
    CHECK(step.covered(0) == 701);
    CHECK(step.covered(1) == 9 * 609);
    CHECK(step.covered(4) == 5 * 15);
    const std::vector<float> cut = step.run(*device);
    CHECK(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)) == 0);
    CHECK(std::none_of(whole.begin(), whole.end(), [](float v) { return std::isnan(v); }));

    // Room for some pieces only: the first slices take them, the last are left whole.
    for (int32_t max_work = least; max_work < 40; ++max_work) {
        REQUIRE(step.plan(*device, max_work).ok());
        CHECK(step.header.num_work <= max_work);
        const std::vector<float> some = step.run(*device);
        CHECK(std::memcmp(whole.data(), some.data(), whole.size() * sizeof(float)) == 0);
    }
}
