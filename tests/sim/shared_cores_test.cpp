// A CPU whose cores others share, on the virtual clock: the scheduler where rows are data learns the machine from its own steps and uses
// the gap that it was promised, whatever the first step took.

#include <algorithm>
#include <utility>
#include <vector>

#include "catch.h"
#include "kernels/row_ladder.h"
#include "runtime/budget.h"
#include "runtime/sim/scene.h"

using namespace takt;
using namespace takt::sim;

namespace {

// A model of 135M parameters on two cores, as measured in slices of 1 to 64 rows behind 0 to 6,000 tokens (slices_2026-11-30.json): the
// weights, the rows; a row alone reads K and V at 600 ns a position, rows of one slice share the reading and cost 430 ns a pair.
double usual_ns(const StepFeatures& f) {
    const auto alone = static_cast<double>(f.kv_read_tokens + f.single_row_tokens);
    return 2.2e6 + 0.65e6 * f.rows + 600.0 * alone + 90.0 * static_cast<double>(f.prefill_kv_tokens - f.single_row_tokens) +
           430.0 * static_cast<double>(f.prefill_pairs - f.single_row_tokens);
}

SimOptions two_cores(double itl_ms) {
    SimOptions o;
    o.scheduler.max_running = 16;
    o.scheduler.max_waiting = 100;
    o.scheduler.max_context = 8192;
    o.scheduler.rows_are_data = true;
    o.scheduler.row_ladder = make_row_ladder(0, 16, 512);
    SchedulerClass sla;
    sla.name = "default";
    sla.itl_ns = static_cast<uint64_t>(itl_ms * 1e6);
    o.scheduler.classes = {sla};
    o.kv = {2000, 16, 16, 8192, false};
    o.roofline.bytes_per_second = 4e10;
    o.roofline.operations_per_second = 6e11;
    o.roofline.weight_bytes = 9e7;
    o.roofline.operations_per_row = 2.1e8;
    o.roofline.kv_bytes_per_token = 23'040;
    o.roofline.operations_per_pair = 69'000;
    o.true_ns = usual_ns;
    o.noise = 0.03;
    o.depth = 0;
    o.host_ns = 50'000;
    return o;
}

struct Insertion {
    double late_share = 0;
    double used = 0;            // of the promise, mean over the steps that held a slice
    double rows = 0;            // of a slice, mean
    double ttft_ms = 0;
};

/// Documents of 2,000 tokens, one after the other, beside one stream; what came of those behind the first `skip`.
Insertion insert(SimOptions o, int skip, int count, double spacing_ms = 8000) {
    const double itl_ms = static_cast<double>(o.scheduler.classes[0].itl_ns) * 1e-6;
    std::vector<SimRequest> w{request_at(0, 16, 6000)};
    for (int i = 0; i < skip + count; ++i) w.push_back(request_at(400 + spacing_ms * i, 2000, 1));
    const double from_ms = 400 + spacing_ms * skip;
    Insertion result;
    double steps = 0;
    o.on_step = [&](const SimStep& s) {
        if (static_cast<double>(s.begin_ns) * 1e-6 < from_ms || s.prefill_rows == 0 || s.decode_rows == 0) return;
        ++steps;
        result.used += static_cast<double>(s.end_ns - s.begin_ns) * 1e-6 / itl_ms;
        result.rows += s.prefill_rows;
        result.late_share += static_cast<double>(s.end_ns - s.begin_ns) * 1e-6 > itl_ms ? 1 : 0;
    };
    const SimReport report = run(o, w);
    INFO(report.wrong);
    REQUIRE(report.wrong.empty());
    REQUIRE(steps > 0);
    result.used /= steps;
    result.rows /= steps;
    result.late_share /= steps;
    for (int i = skip; i < skip + count; ++i) result.ttft_ms += ttft_ms(report, w, static_cast<size_t>(1 + i)) / count;
    return result;
}

}  // namespace

TEST_CASE("where rows are data a first step that takes a hundred times as long hides no shape", "[scenes]") {
    for (const double promise : {12.0, 24.0}) {
        SimOptions o = two_cores(promise);
        bool is_first = true;   // it faults the memory of weights and cache in
        o.true_ns = [&is_first](const StepFeatures& f) { return usual_ns(f) * (std::exchange(is_first, false) ? 100 : 1); };
        const Insertion first = insert(o, 0, 1);
        is_first = true;
        const Insertion later = insert(o, 1, 4);
        INFO("promise " << promise << ": first " << first.used << " used, " << first.rows << " rows, " << first.late_share << " late; "
                        << "later " << later.used << ", " << later.rows << ", " << later.late_share);
        CHECK(first.used > 0.8);
        CHECK(first.late_share <= 0.02);
        CHECK(later.used > 0.83);
        CHECK(later.late_share <= 0.02);
    }
}

TEST_CASE("where rows are data the promise is used and kept through spells of a slower machine", "[scenes]") {
    for (const double promise : {12.0, 24.0}) {
        for (const uint64_t seed : {1u, 2u, 3u}) {
            SimOptions o = two_cores(promise);
            o.seed = seed;
            const Insertion calm = insert(o, 1, 4);
            o.noise = 0.05;
            o.disturbance = [](uint64_t now_ns) { return (now_ns / 200'000'000) % 7 == 3 ? 1.5 : 1.0; };
            const Insertion spells = insert(o, 1, 4);
            INFO("promise " << promise << ", seed " << seed << ": calm " << calm.used << " used, " << calm.late_share << " late; spells "
                            << spells.used << ", " << spells.late_share);
            CHECK(calm.used > 0.81);
            CHECK(calm.late_share <= 0.02);
            CHECK(spells.used > 0.7);
            CHECK(spells.late_share <= 0.025);
        }
    }
}

TEST_CASE("where rows are data rare stalls cost little of the promise, frequent ones are held as far as a margin can", "[scenes]") {
    for (const double promise : {12.0, 24.0}) {
        for (const double share : {0.01, 0.04}) {
            SimOptions o = two_cores(promise);
            Random chance(78);
            o.disturbance = [share, &chance](uint64_t) { return chance.chance(share) ? 1.3 + 1.0 * chance.uniform() : 1.0; };
            const Insertion stalls = insert(o, 1, 6);
            INFO("promise " << promise << ", " << share << " stalled: " << stalls.used << " used, " << stalls.late_share << " late");
            CHECK(stalls.late_share <= (share < 0.02 ? 0.02 : 0.045));
            CHECK(stalls.used > (share < 0.02 ? 0.75 : 0.6));
        }
    }
}

TEST_CASE("where rows are data a document too deep for the promise costs one gap in fifty, and comes to its end", "[scenes]") {
    // Deep in it a single row beside the stream takes as long as promised, and steps scatter by a seventh.
    for (const double promise : {11.0, 12.0}) {
        SimOptions o = two_cores(promise);
        o.noise = 0.15;
        o.scheduler.max_context = 16384;
        o.kv = {3000, 16, 16, 16384, false};
        const std::vector<SimRequest> w{request_at(0, 16, 9000), request_at(400, 6000, 1)};
        std::vector<SimStep> steps;
        o.on_step = [&](const SimStep& s) { steps.push_back(s); };
        const SimReport report = run(o, w);
        int num_gaps = 0, num_late = 0, num_deep = 0;
        uint64_t longest_ns = 0;
        for (const SimStep& s : steps) {
            const double after_ms = static_cast<double>(s.end_ns) * 1e-6 - 400;
            if (after_ms < 0 || after_ms > ttft_ms(report, w, 1) || s.decode_rows == 0) continue;
            ++num_gaps;
            num_late += s.end_ns - s.begin_ns > o.scheduler.classes[0].itl_ns ? 1 : 0;
            num_deep += s.at_floor ? 1 : 0;
            longest_ns = std::max(longest_ns, s.end_ns - s.begin_ns);
        }
        INFO(report.wrong);
        REQUIRE(report.wrong.empty());
        INFO("promise " << promise << ": " << num_late << " of " << num_gaps << " late, " << num_deep << " at the floor, the longest "
                     << static_cast<double>(longest_ns) * 1e-6 << " ms, first token after " << ttft_ms(report, w, 1) << " ms");
        CHECK(num_deep > 10);
        CHECK(num_late <= num_gaps / 50);
        CHECK(static_cast<double>(longest_ns) * 1e-6 < 1.5 * promise * kLateSliceGaps);
        CHECK(ttft_ms(report, w, 1) < 65'000);
    }
}

namespace {

/// A prompt of 2,000 tokens put beside four streams that began with `context` tokens 20 s before, and what it does to them.
struct Beside {
    double late_share = 0, median_ms = 0, p99_ms = 0, longest_ms = 0, ttft_ms = 0, alone_ms = 0;
};

Beside beside_four(double promise_ms, bool is_own, int32_t context, uint64_t seed) {
    constexpr double kFromMs = 20'000;
    SimOptions o = two_cores(is_own ? 1000 : promise_ms);
    o.seed = seed;
    o.noise = 0.05;
    o.scheduler.max_context = 16384;
    o.kv = {8000, 16, 16, 16384, false};
    Beside b;
    std::vector<SimRequest> w{request_at(0, 2000, 1)};
    b.alone_ms = ttft_ms(run(o, w), w, 0);
    w.clear();
    for (int i = 0; i < 4; ++i) w.push_back(request_at(0, context, 9000));
    w.push_back(request_at(kFromMs, 2000, 1));
    if (is_own) {
        for (SimRequest& r : w) r.itl_ns = static_cast<uint64_t>(promise_ms * 1e6);
    }
    std::vector<SimStep> steps;
    o.on_step = [&](const SimStep& s) { steps.push_back(s); };
    const SimReport report = run(o, w);
    INFO(report.wrong);
    REQUIRE(report.wrong.empty());   // among them: infeasible is said within two windows, and only then
    b.ttft_ms = ttft_ms(report, w, 4);
    std::vector<double> gaps_ms;
    for (const SimStep& s : steps) {
        const double after_ms = static_cast<double>(s.end_ns) * 1e-6 - kFromMs;
        if (after_ms < 0 || after_ms > b.ttft_ms || s.decode_rows == 0) continue;
        gaps_ms.push_back(static_cast<double>(s.end_ns - s.begin_ns) * 1e-6);
    }
    REQUIRE(gaps_ms.size() > 50);
    std::sort(gaps_ms.begin(), gaps_ms.end());
    const auto in_time = std::upper_bound(gaps_ms.begin(), gaps_ms.end(), promise_ms) - gaps_ms.begin();
    b.late_share = 1 - static_cast<double>(in_time) / static_cast<double>(gaps_ms.size());
    b.median_ms = gaps_ms[gaps_ms.size() / 2];
    b.p99_ms = gaps_ms[gaps_ms.size() * 99 / 100];
    b.longest_ms = gaps_ms.back();
    return b;
}

}  // namespace

TEST_CASE("where rows are data a promise that decoding alone breaks leaves streams even and prompts half of the device", "[scenes]") {
    for (const bool is_own : {false, true}) {
        for (const int32_t context : {16, 1000}) {
            for (const uint64_t seed : {1u, 2u, 3u}) {
                const Beside b = beside_four(9.6, is_own, context, seed);
                INFO("own " << is_own << ", context " << context << ", seed " << seed << ": gaps " << b.median_ms << ", " << b.p99_ms
                            << ", " << b.longest_ms << " ms, first token after " << b.ttft_ms << " ms, alone " << b.alone_ms);
                CHECK(b.late_share > 0.9);   // as they would be without the prompt
                CHECK(b.p99_ms < 1.5 * b.median_ms);
                CHECK(b.longest_ms < 2 * b.median_ms);
                CHECK(b.ttft_ms < 3 * b.alone_ms);
            }
        }
    }
}

TEST_CASE("where rows are data nobody is kept out for a promise that those who run break by themselves", "[scenes]") {
    // Four streams of 3,000 tokens and more: one keeps the promise, a second one beside a slice does not.
    for (const bool is_own : {false, true}) {
        const Beside b = beside_four(9.6, is_own, 3000, 1);
        INFO("own " << is_own << ": first token after " << b.ttft_ms << " ms, alone " << b.alone_ms);
        CHECK(b.ttft_ms < 40'000);   // the stream runs for 70 s
    }
}
