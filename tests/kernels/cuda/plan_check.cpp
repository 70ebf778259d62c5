// The attention work list checked without a device: random steps, every visible (packed row, position) covered exactly once,
// items within their bounds, results side by side, partial rows apart, the promised capacity never exceeded.
#include <algorithm>
#include <set>
#include <string>

#include "checks.h"
#include "kernels/cuda/attention_plan.h"

namespace takt::check {
namespace {

constexpr int kNumSms = 132;

struct Step {
    StepHeader header;
    std::vector<SegmentInput> segments;
    std::vector<AttentionWork> work;
    AttentionPlanParams params;
};

Step make_step(std::mt19937_64& random, int num_sms) {
    Step s;
    const int kv_heads[] = {1, 2, 3, 4, 8}, groups[] = {1, 3, 7, 8, 16, 32};
    s.params.kv = {DType::bf16, 1, kv_heads[random() % 5], 128, 16, 0};
    s.params.num_heads = s.params.kv.num_kv_heads * groups[random() % 6];
    s.params.window = random() % 3 == 0 ? 1 + static_cast<int>(random() % 700) : 0;
    s.params.deterministic = random() % 4 == 0;
    int rows = 0;
    const int count = 1 + static_cast<int>(random() % 40);
    for (int i = 0; i < count; ++i) {
        SegmentInput g;
        g.row_begin = rows;
        g.num_rows = random() % 5 == 0 ? 1 + static_cast<int>(random() % 300) : 1;
        const uint64_t longest = random() % 4 == 0 ? 9000 : 500;
        g.position_begin = static_cast<int>(random() % longest);
        rows += g.num_rows;
        s.segments.push_back(g);
    }
    s.header.num_rows = rows;
    s.header.num_segments = count;
    s.params.capacity.max_work = cuda::max_attention_work(s.params.kv, s.params.num_heads, rows, count, num_sms);
    s.work.resize(static_cast<size_t>(s.params.capacity.max_work));
    return s;
}

/// Number of rules that the plan breaks.
int count_faults(const Step& s) {
    const int group = s.params.num_heads / s.params.kv.num_kv_heads;
    int faults = 0;
    std::vector<std::vector<std::vector<int>>> begins(s.segments.size()), ends(s.segments.size());
    for (size_t i = 0; i < s.segments.size(); ++i) {
        const auto cells = static_cast<size_t>(s.segments[i].num_rows * group * s.params.kv.num_kv_heads);
        begins[i].resize(cells);
        ends[i].resize(cells);
    }
    std::set<int> partials;
    const auto decode_items = static_cast<int>(s.header.reserved),
               early_items = static_cast<int>(s.header.reserved >> cuda::kEarlyItemsShift),
               early_blocks = static_cast<int>(s.header.reserved >> cuda::kBlocksShift) & cuda::kBlocksMask;
    faults += early_blocks < 1 || early_blocks > 2 * kNumSms || early_items > decode_items;
    // Parts of a prefill result wait for each other: all prefill items run at once, beside the early decode items' blocks.
    if (s.header.num_work > decode_items && !s.params.deterministic && early_items > 0)
        faults += s.header.num_work - decode_items > kNumSms - early_blocks / 2;
    for (int w = 0; w < s.header.num_work; ++w) {
        const AttentionWork& item = s.work[static_cast<size_t>(w)];
        const SegmentInput& g = s.segments[static_cast<size_t>(item.segment)];
        const int most = w < decode_items ? cuda::kDecodeRows : cuda::kPrefillRows;
        const int splits = item.group >> cuda::kSplitShift, first = item.group & ((1 << cuda::kSplitShift) - 1);
        faults += item.num_rows < 1 || item.num_rows > most || item.row_begin + item.num_rows > g.num_rows * group;
        faults += item.kv_begin % 64 != 0 || item.kv_begin >= item.kv_end || w < first || w >= first + splits;
        faults += (splits > 1) != (item.partial >= 0);
        for (int r = 0; item.partial >= 0 && r < most; ++r) faults += partials.insert(item.partial + r).second ? 0 : 1;
        for (int m = item.row_begin; m < item.row_begin + item.num_rows; ++m) {
            const auto cell = static_cast<size_t>(item.kv_head * g.num_rows * group + m);
            begins[static_cast<size_t>(item.segment)][cell].push_back(item.kv_begin);
            ends[static_cast<size_t>(item.segment)][cell].push_back(item.kv_end);
        }
    }
    for (size_t i = 0; i < s.segments.size(); ++i) {
        const SegmentInput& g = s.segments[i];
        for (size_t cell = 0; cell < begins[i].size(); ++cell) {
            auto& b = begins[i][cell];
            auto& e = ends[i][cell];
            std::sort(b.begin(), b.end());
            std::sort(e.begin(), e.end());
            const int position = g.position_begin + static_cast<int>(cell) % (g.num_rows * group) / group;
            const int low = s.params.window > 0 ? std::max(0, position - s.params.window + 1) : 0;
            if (b.empty() || b.front() > low || e.back() <= position) ++faults;
            for (size_t k = 1; k < b.size(); ++k) faults += b[k] == e[k - 1] ? 0 : 1;
        }
    }
    const int rows = partials.empty() ? 0 : *partials.rbegin() + 1;
    const size_t bytes = static_cast<size_t>(rows) * static_cast<size_t>(s.params.kv.head_dim + cuda::kPartialExtra) * 4;
    return faults + (bytes > cuda::attention_scratch_bytes(s.params.kv, s.params.capacity.max_work) ? 1 : 0);
}

}   // namespace

void check_plan(Report& report) {
    std::mt19937_64 random(5);
    int faults = 0, refused = 0;
    for (int turn = 0; turn < 500; ++turn) {
        Step s = make_step(random, kNumSms);
        s.params.host.header = &s.header;
        s.params.host.segments = s.segments.data();
        s.params.host.work = s.work.data();
        refused += cuda::plan_attention(s.params, kNumSms).ok() ? 0 : 1;
        faults += count_faults(s);
    }
    report.add("attention plan, 500 random steps, faults", faults, 0);
    report.add("attention plan, 500 random steps, over capacity", refused, 0);
}

}   // namespace takt::check
