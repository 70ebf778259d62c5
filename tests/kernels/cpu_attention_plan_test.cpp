// The CPU device's attention work list: whatever a step holds, it fits the stated capacity and covers each row's context once.
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "catch.h"
#include "kernels/cpu/ops.h"
#include "kernels/device_factory.h"

namespace {

using namespace takt;

uint64_t no_time(void*) { return 1; }

struct Step {
    StepHeader header;
    std::vector<SegmentInput> segments;
    std::vector<AttentionWork> work;
    AttentionPlanParams params;

    Step(const KvLayout& kv, int32_t num_heads, int32_t capacity) : work(static_cast<size_t>(capacity)) {
        params.kv = kv;
        params.num_heads = num_heads;
        params.capacity.max_work = capacity;
    }
    void add(int32_t position, int32_t rows) {
        SegmentInput s;
        s.row_begin = header.num_rows;
        s.num_rows = rows;
        s.position_begin = position;
        segments.push_back(s);
        header.num_rows += rows;
        ++header.num_segments;
    }
    Status plan(const Device& device) {
        params.host.header = &header;
        params.host.segments = segments.data();
        params.host.work = work.data();
        return device.ops().plan_attention(device, params);
    }
    /// Empty if every row of every KV head sees its whole context exactly once; else what is wrong.
    [[nodiscard]] std::string check() const {
        std::map<std::pair<int32_t, int32_t>, int32_t> seen;   // (row, head) -> positions
        for (int32_t i = 0; i < header.num_work; ++i) {
            const AttentionWork& w = work[static_cast<size_t>(i)];
            for (int32_t r = w.row_begin; r < w.row_begin + w.num_rows; ++r) {
                int32_t& end = seen[{r, w.kv_head}];
                const SegmentInput& s = segments[static_cast<size_t>(w.segment)];
                if (end == s.position_begin + r - s.row_begin + 1) continue;   // a later chunk of the rows behind it
                if (end != w.kv_begin) return "a gap before item " + std::to_string(i);
                end = std::min(w.kv_end, s.position_begin + r - s.row_begin + 1);
            }
        }
        for (const SegmentInput& s : segments) {
            for (int32_t r = 0; r < s.num_rows; ++r) {
                for (int32_t h = 0; h < params.kv.num_kv_heads; ++h) {
                    const auto at = seen.find({s.row_begin + r, h});
                    if (at == seen.end() || at->second != s.position_begin + r + 1) return "row " + std::to_string(s.row_begin + r);
                }
            }
        }
        return "";
    }
};

KvLayout layout(int32_t kv_heads) {
    KvLayout kv;
    kv.num_kv_heads = kv_heads;
    kv.head_dim = 64;
    return kv;
}

}  // namespace

TEST_CASE("the longest contexts in every slot fit the capacity that is stated for them, where they are too many to cut as well") {
    CpuDeviceOptions options;
    options.num_threads = 1;
    const auto device = make_cpu_device(options, TimeSource{no_time, nullptr}).value();
    constexpr int32_t kContext = 131072;
    for (const int32_t running : {1, 4, 64, 4096}) {
        const KvLayout kv = layout(8);
        const int32_t rows = std::max(512, running);
        const int32_t capacity = device->ops().max_attention_work(*device, kv, 32, rows, 2 * running + 2, kContext);
        CHECK(capacity < 1 << 18);   // and that is no more than memory allows
        Step step(kv, 32, capacity);
        for (int32_t i = 0; i < running; ++i) step.add(kContext - 1, 1);
        INFO(running << " running");
        REQUIRE(step.plan(*device).ok());
        CHECK(step.header.num_work <= capacity);
        CHECK(step.check() == "");
        if (running <= 4) CHECK(step.header.num_work == running * 8 * kContext / 256);   // each of them is cut
    }
}

TEST_CASE("random steps fit, however little room there is beyond what must be there") {
    CpuDeviceOptions options;
    options.num_threads = 1;
    const auto device = make_cpu_device(options, TimeSource{no_time, nullptr}).value();
    std::mt19937 random(3);
    auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    for (int round = 0; round < 300; ++round) {
        const KvLayout kv = layout(1 + below(4));
        const int32_t num_heads = kv.num_kv_heads * (1 + below(9));
        // Nothing may be cut in a context of no length: that capacity is the least, and cuts take what is beyond it.
        const int32_t least = device->ops().max_attention_work(*device, kv, num_heads, 256, 40, 0);
        Step step(kv, num_heads, least + below(200));
        while (step.header.num_rows < 200 && step.header.num_segments < 40) step.add(below(4000), below(3) == 0 ? 1 + below(50) : 1);
        REQUIRE(step.plan(*device).ok());
        REQUIRE(step.header.num_work <= step.params.capacity.max_work);
        REQUIRE(step.check() == "");
    }
}
