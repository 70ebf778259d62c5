// Scheduler: what a step holds. Each rule of scheduling.md 4.2 to 4.5 is a case with a name; admission, preemption and the cache
// are in scheduler_admit_test.cpp.
#include "runtime/scheduler.h"

#include <cmath>

#include "catch.h"
#include "runtime/scheduler_rig.h"

namespace takt {
namespace {

/// The plan with the next larger shape filled instead.
StepFeatures larger(const SchedulerRig& rig) {
    StepFeatures f = rig.plan.features;
    const auto& ladder = rig.config.row_ladder;
    const auto above = std::upper_bound(ladder.begin(), ladder.end(), f.padded_rows);
    if (above == ladder.end()) return f;
    const int32_t more = *above - f.rows;
    int32_t context = 0;
    for (const PlanSegment& s : rig.plan.segments) context = s.is_decode ? context : s.token_begin + s.num_rows;
    f.rows = f.padded_rows = *above;
    f.prefill_pairs += int64_t{more} * context + int64_t{more} * (more + 1) / 2;
    return f;
}

double pace(const SchedulerRig& rig, const StepFeatures& f) {
    return (f.rows - f.decode_rows) / static_cast<double>(rig.cost.predict_ns(f));
}

}  // namespace

TEST_CASE("every decodable row is in the step, before any prefill row", "[scheduler]") {
    SchedulerRig rig(rig_config());
    rig.start_streams(5, 100);
    rig.submit(1, 3000, 10);
    rig.look();
    REQUIRE(rig.plan.features.decode_rows == 5);
    for (size_t i = 0; i < 5; ++i) CHECK(rig.plan.segments[i].is_decode);
    CHECK(rig.rows_of(1) > 0);
}

TEST_CASE("the budget is what the tightest gap leaves, and it is spent", "[scheduler]") {
    for (const double itl : {10.0, 20.0, 40.0, 80.0}) {
        for (const int32_t streams : {1, 4, 15}) {
            INFO("itl " << itl << " ms, " << streams << " streams");
            SchedulerRig rig(rig_config(itl));
            rig.start_streams(streams, 500);
            rig.submit(1, 40'000, 10);
            for (int i = 0; i < 12; ++i) {
                rig.look();
                const StepFeatures f = rig.plan.features;
                CHECK(static_cast<double>(rig.plan.budget_ns) <= itl * 1e6);
                CHECK(static_cast<double>(rig.plan.budget_ns) > (itl - 1.0) * 1e6);
                REQUIRE(f.prefill_segments == 1);
                CHECK(rig.cost.bound_ns(f) <= rig.plan.budget_ns);
                const bool more_fits = rig.cost.bound_ns(larger(rig)) <= rig.plan.budget_ns && f.padded_rows < rig.config.row_ladder.back();
                CHECK((!more_fits || pace(rig, larger(rig)) <= pace(rig, f)));
                if (i < 4) CHECK(f.padded_rows == f.rows);   // padding buys nothing where a row is cheap beside its shape
                rig.complete();
            }
        }
    }
}

TEST_CASE("the tightest running promise decides, a loose one beside it does not", "[scheduler]") {
    SchedulerConfig c = rig_config(80);
    SchedulerClass tight = c.classes[0];
    tight.name = "tight";
    tight.itl_ns = 15 * kMs;
    c.classes.push_back(tight);
    SchedulerRig rig(c);
    rig.start_streams(2, 100, 1000, 0);
    rig.submit(1, 30'000, 10);
    CHECK(rig.look().budget_ns > 70 * kMs);
    rig.complete();
    rig.submit(2, 16, 4000, 1);
    for (int i = 0; i < 20 && rig.emitted[2] < 2; ++i) rig.step();
    CHECK(rig.look().budget_ns <= 15 * kMs);
    CHECK(rig.rows_of(1) > 0);
}

TEST_CASE("slices shrink as a document's history grows, and the gaps stay", "[scheduler]") {
    SchedulerRig rig(rig_config(40));
    rig.start_streams(4, 100);
    rig.submit(1, 60'000, 10);
    rig.step();
    rig.step();
    const int32_t first = rig.prefill_rows();
    int32_t last = first;
    while (rig.emitted[1] == 0) {
        rig.look();
        if (rig.rows_of(1) > 0 && rig.plan.features.prefill_segments > 0 && !rig.plan.segments.back().samples) last = rig.prefill_rows();
        const uint64_t before = rig.now;
        rig.complete();
        REQUIRE(rig.now - before <= 40 * kMs);
    }
    CHECK(last < first / 2);
}

TEST_CASE("a promise that no slice fits gets the flat part's slice every few steps, and no stream is left out", "[scheduler]") {
    SchedulerRig rig(rig_config(6.4));   // a decode step takes about 6
    rig.start_streams(3, 100);
    rig.submit(1, 2000, 10);
    int since = 0, most = 0, num_floors = 0;
    for (int i = 0; i < 200 && rig.emitted[1] == 0; ++i) {
        rig.look();
        CHECK(rig.plan.features.decode_rows == 3);
        since = rig.rows_of(1) > 0 ? 0 : since + 1;
        most = std::max(most, since);
        num_floors += rig.plan.at_floor ? 1 : 0;
        if (rig.plan.at_floor) CHECK(rig.plan.features.padded_rows <= 128);
        rig.complete();
    }
    CHECK(rig.emitted[1] > 0);
    CHECK(num_floors > 0);
    CHECK(most <= 8);
}

TEST_CASE("where decoding alone breaks the promise that is said, and prompts still move", "[scheduler]") {
    SchedulerRig rig(rig_config(3));
    rig.start_streams(3, 100);
    rig.submit(1, 20'000, 10);
    for (int i = 0; i < 140; ++i) rig.step();
    CHECK(rig.scheduler.infeasible());
    CHECK(rig.scheduler.infeasible(0));
    CHECK(rig.scheduler.budget_trim() == 1.0);   // frozen: shrinking cures nothing
    for (int i = 0; i < 4000 && rig.emitted[1] == 0; ++i) rig.step();
    CHECK(rig.emitted[1] > 0);
}

TEST_CASE("a request that asks for an impossible gap is infeasible for itself alone: everybody's prompts move on", "[scheduler]") {
    const auto steps_of_document = [](uint64_t own_itl_ns) {
        SchedulerRig rig(rig_config(40));
        rig.start_streams(2, 500);
        SchedulerRequest greedy;
        greedy.id = 3;
        greedy.prompt_tokens = 500;
        greedy.max_tokens = 4000;
        greedy.itl_ns = own_itl_ns;
        rig.submit(greedy);
        while (rig.emitted[3] == 0) rig.step();
        rig.submit(4, 8000, 100);
        int32_t steps = 0;
        for (; rig.emitted[4] == 0 && steps < 4000; ++steps) {
            rig.step();
            CHECK(rig.plan.features.decode_rows == 3);   // and nobody stands back for it
        }
        CHECK_FALSE(rig.scheduler.infeasible(0));
        CHECK(rig.scheduler.budget_trim() > 0.9);
        return steps;
    };
    const int32_t tightest = steps_of_document(static_cast<uint64_t>(9 * kMs));
    for (const uint64_t own_itl_ns : {uint64_t{1'000}, uint64_t{1 * kMs}, uint64_t{5 * kMs}}) {
        CAPTURE(own_itl_ns);
        const int32_t steps = steps_of_document(own_itl_ns);
        CHECK(steps <= 8000 / 60);         // the slice of the flat part, which ends at 64 rows, in each step
        CHECK(steps >= tightest);
    }
}

TEST_CASE("nothing decodes: a step is as large as a new arrival may wait for", "[scheduler]") {
    SchedulerRig rig(rig_config());
    rig.submit(1, 30'000, 10);
    rig.look();
    CHECK(rig.plan.features.rows >= 1536);   // no larger shape is faster a row on this device by more than a few per cent
    CHECK(rig.cost.bound_ns(rig.plan.features) <= 100 * kMs);
    CHECK(pace(rig, larger(rig)) < 1.06 * pace(rig, rig.plan.features));
    CHECK(rig.plan.budget_ns == 0);
    SchedulerConfig c = rig_config();
    c.classes[0].ttft_ns = 100 * kMs;   // a quarter of it may pass before an arrival is looked at
    SchedulerRig hasty(c);
    hasty.submit(1, 30'000, 10);
    hasty.look();
    CHECK(hasty.prefill_rows() > 512);
    CHECK(hasty.cost.bound_ns(hasty.plan.features) <= 25 * kMs);
}

TEST_CASE("a stream that begins gets its budget in the very next step", "[scheduler]") {
    SchedulerRig rig(rig_config(20));
    rig.submit(1, 16, 100);
    rig.submit(2, 60'000, 10);
    rig.step();
    REQUIRE(rig.emitted[1] == 1);
    rig.look();
    CHECK(rig.rows_of(1) == 1);
    CHECK(rig.rows_of(2) > 0);
    CHECK(rig.cost.bound_ns(rig.plan.features) <= 20 * kMs);
}

TEST_CASE("several prompts share one step's budget", "[scheduler]") {
    SchedulerRig rig(rig_config(40));
    rig.start_streams(2, 100);
    for (RequestId id = 1; id <= 4; ++id) rig.submit(id, 200, 10);
    rig.look();
    CHECK(rig.plan.features.prefill_segments == 4);
    CHECK(rig.cost.bound_ns(rig.plan.features) <= rig.plan.budget_ns);
}

TEST_CASE("the time since the last token is taken from the budget", "[scheduler]") {
    SchedulerRig rig(rig_config(40));
    rig.start_streams(1, 100);
    rig.submit(1, 30'000, 10);
    const uint64_t full = rig.look().budget_ns;
    rig.complete();
    rig.now += 12 * kMs;
    const uint64_t late = rig.look().budget_ns;
    CHECK(late < full - 11 * kMs);
    CHECK(rig.cost.bound_ns(rig.plan.features) <= late);
}

TEST_CASE("an envelope lets a stream that is ahead lend its lead, three gaps at the most", "[scheduler]") {
    SchedulerConfig c = rig_config(20);
    c.classes[0].envelope = true;
    SchedulerRig rig(c);
    rig.start_streams(1, 100);
    for (int i = 0; i < 4; ++i) rig.step();   // about 6 ms a token: ahead by 14 ms each
    rig.submit(1, 30'000, 10);
    rig.look();
    CHECK(rig.plan.budget_ns > 40 * kMs);
    CHECK(rig.plan.budget_ns <= 60 * kMs);
    rig.complete();
    for (int i = 0; i < 30; ++i) rig.step();
    CHECK(rig.look().budget_ns <= 60 * kMs);
}

TEST_CASE("an envelope's lent lead is no late gap: budgets stay whole until the lead is spent", "[scheduler]") {
    SchedulerConfig c = rig_config(20);
    c.classes[0].envelope = true;
    SchedulerRig rig(c);
    rig.start_streams(1, 100);
    for (int i = 0; i < 20; ++i) rig.step();   // ahead by about 280 ms
    rig.submit(1, 60'000, 10);
    for (int i = 0; i < 5; ++i) {              // three gaps each: two of the lead
        INFO(i);
        CHECK(rig.look().budget_ns > 55 * kMs);
        rig.complete();
    }
    for (int i = 0; i < 60; ++i) rig.step();
    CHECK(rig.scheduler.budget_trim() > 0.9);
    CHECK(rig.look().budget_ns < 30 * kMs);    // the lead is spent: a gap a token
}

TEST_CASE("equal prompts: the earlier deadline ends first", "[scheduler]") {
    SchedulerRig rig(rig_config());
    rig.start_streams(2, 100);
    SchedulerRequest late, soon;
    late.id = 1;
    soon.id = 2;
    late.prompt_tokens = soon.prompt_tokens = 6000;
    late.max_tokens = soon.max_tokens = 10;
    late.ttft_ns = 3000 * kMs;
    soon.ttft_ns = 1000 * kMs;
    rig.submit(late);
    rig.submit(soon);
    while (rig.emitted[1] == 0 && rig.emitted[2] == 0) rig.step();
    CHECK(rig.emitted[2] == 1);
    CHECK(rig.emitted[1] == 0);
}

TEST_CASE("short prompts pass a long document, late or nearly done; it keeps its floor", "[scheduler]") {
    SchedulerRig rig(rig_config(20));
    rig.start_streams(8, 1000);
    rig.submit(1, 32'000, 10);
    for (int round = 0; rig.emitted[1] == 0; ++round) {
        const auto id = static_cast<RequestId>(100 + round);
        rig.submit(id, 300, 2);
        const uint64_t from = rig.now;
        int steps = 0;
        for (; rig.emitted[id] == 0; ++steps) {
            rig.step();
            if (rig.emitted[1] == 0) CHECK(rig.rows_of(1) > 0);   // the document moves in each of them
        }
        CHECK(steps <= 3);
        CHECK(rig.now - from < 60 * kMs);
        for (int i = 0; i < 6; ++i) rig.step();
    }
}

TEST_CASE("the oldest prompt keeps a quarter of each step's prompt rows however many shorter ones wait", "[scheduler]") {
    SchedulerRig rig(rig_config(40, 64));
    rig.start_streams(4, 100);
    rig.submit(1, 32'000, 2);
    for (int i = 0; i < 3; ++i) rig.step();
    for (RequestId id = 100; id < 130; ++id) rig.submit(id, 2000, 2);
    rig.step();
    for (int i = 0; i < 15; ++i) {
        const StepFeatures& f = rig.step().features;
        CHECK(4 * rig.rows_of(1) >= f.rows - f.decode_rows - 4);
        CHECK(2 * rig.rows_of(1) < f.rows);   // and the others have the rest
    }
}

TEST_CASE("a prompt whose promise is about to be lost goes before others", "[scheduler]") {
    SchedulerRig rig(rig_config(40));
    rig.start_streams(2, 100);
    SchedulerRequest urgent;
    urgent.id = 1;
    urgent.prompt_tokens = 900;
    urgent.max_tokens = 10;
    urgent.ttft_ns = 80 * kMs;
    for (RequestId id = 2; id < 6; ++id) rig.submit(id, 700, 10);
    rig.submit(urgent);
    rig.look();
    CHECK(rig.rows_of(1) >= 600);
}

TEST_CASE("lost promises make room for those that can be kept, and still get a share", "[scheduler]") {
    SchedulerConfig c = rig_config(40);
    c.classes[0].ttft_ns = 300 * kMs;
    SchedulerRig rig(c);
    rig.start_streams(2, 100);
    SchedulerRequest lost;
    lost.id = 1;
    lost.prompt_tokens = 12'000;
    lost.max_tokens = 2;
    rig.submit(lost);
    RequestId next = 10;
    int num_kept = 0, num_all = 0;
    std::map<RequestId, uint64_t> arrivals;
    for (int i = 0; i < 1500 && rig.emitted[1] == 0; ++i) {
        if (rig.scheduler.counts().num_waiting < 3) {   // more than it can do, for ever
            arrivals[next] = rig.now;
            rig.submit(next++, 900, 1);
        }
        rig.step();
        for (auto at = arrivals.begin(); at != arrivals.end();) {
            if (rig.emitted[at->first] == 0) {
                ++at;
                continue;
            }
            ++num_all;
            num_kept += rig.now - at->second <= 300 * kMs ? 1 : 0;
            at = arrivals.erase(at);
        }
    }
    CHECK(rig.emitted[1] > 0);
    CHECK(num_all > 20);
    CHECK(num_kept > num_all * 8 / 10);
}

TEST_CASE("a loose class stands back while a tight one runs and prompts wait, within its promise", "[scheduler]") {
    SchedulerConfig c = rig_config(40, 200);
    SchedulerClass loose = c.classes[0];
    loose.name = "loose";
    loose.itl_ns = 400 * kMs;
    c.classes.push_back(loose);
    SchedulerRig rig(c);
    rig.start_streams(150, 400, 5000, 1);
    rig.start_streams(4, 100, 1000, 0);
    rig.submit(1, 30'000, 10);
    int32_t fewest = 154;
    std::map<RequestId, uint64_t> seen;
    for (int i = 0; i < 60; ++i) {
        rig.look();
        fewest = std::min(fewest, rig.plan.features.decode_rows);
        for (RequestId id = 1000; id < 1004; ++id) CHECK(rig.rows_of(id) == 1);   // the tight ones are in each step
        rig.complete();
        for (const PlanSegment& s : rig.plan.segments) {
            if (s.request < 5000) continue;
            if (seen[s.request] != 0) CHECK(rig.now - seen[s.request] <= 400 * kMs);
            seen[s.request] = rig.now;
        }
    }
    CHECK(fewest < 100);
}

TEST_CASE("tenants: the one with less device time goes first, and idling earns nothing", "[scheduler]") {
    SchedulerConfig c = rig_config(40);
    c.tenants = {{"", 1, 0, 0}, {"a", 1, 0, 0}, {"b", 1, 0, 0}};
    SchedulerRig rig(c);
    rig.start_streams(1, 100);
    RequestId next = 10;
    std::map<int32_t, double> rows;
    std::map<RequestId, int32_t> tenant_of;
    int waiting[3] = {0, 0, 0};
    for (int i = 0; i < 400; ++i) {
        // b sends twice as many and twice as long prompts.
        for (int32_t t = 1; t <= 2; ++t) {
            while (waiting[t] < 2 * t) {
                tenant_of[next] = t;
                rig.submit(next++, 1500 * t, 1, 0, t);
                ++waiting[t];
            }
        }
        rig.step();
        for (const PlanSegment& s : rig.plan.segments) {
            if (s.is_decode) continue;
            rows[tenant_of[s.request]] += s.num_rows;
            if (s.samples) --waiting[tenant_of[s.request]];
        }
    }
    CHECK(rows[1] / rows[2] > 0.85);
    CHECK(rows[1] / rows[2] < 1.15);
}

TEST_CASE("where each row has its price a slow device gives a prompt the few rows that fit, in every step", "[scheduler]") {
    SchedulerConfig c = rig_config(12.5);
    c.row_ladder = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    c.rows_are_data = true;
    CostModel cost(c.row_ladder, true, {50e9, 1e11, 1e-4, 1e8, 2.7e8, 0, 0});
    const auto ns = [](const StepFeatures& f) { return static_cast<uint64_t>(2e6 + 1.1e6 * f.rows); };   // 16 rows: 19.6 ms
    for (int i = 0; i < 40; ++i) {
        for (int32_t rows = 1; rows <= 512; rows = rows * 3 / 2 + 1) {
            StepFeatures f;
            f.rows = rows;
            f.padded_rows = cost.padded_rows(rows);
            f.prefill_segments = 1;
            cost.observe(f, ns(f));
        }
    }
    KvManager kv({1000, 16, 16, 8192, true});
    Scheduler scheduler(c, cost, kv);
    StepPlan plan;
    uint64_t now = 1'000'000'000;
    const auto step = [&] {
        scheduler.plan(now, plan);
        StepOutcome outcome;
        outcome.step = plan.step;
        outcome.device_ns = ns(plan.features);
        now += outcome.device_ns + 50'000;
        for (const PlanSegment& s : plan.segments) {
            if (s.samples) scheduler.emitted(s.request, now);
        }
        scheduler.apply(outcome, now);
    };
    SchedulerRequest r;
    r.id = 1;
    r.prompt_tokens = 4;
    r.max_tokens = 4000;
    r.arrival_ns = now;
    scheduler.submit(r, now);
    step();
    r.id = 2;
    r.prompt_tokens = 400;
    r.arrival_ns = now;
    scheduler.submit(r, now);
    int steps = 0;
    for (; scheduler.counts().num_decoding < 2; ++steps) {
        step();
        REQUIRE(steps < 120);
        REQUIRE(plan.features.decode_rows == 1);
        CHECK_FALSE(plan.at_floor);
        CHECK(ns(plan.features) <= 12'500'000);
        if (scheduler.counts().num_decoding < 2) CHECK(plan.features.rows > 5);
    }
}

TEST_CASE("the fixed chunk is the plain baseline: so many tokens, first come, first served", "[scheduler]") {
    SchedulerConfig c = rig_config(10);
    c.fixed_chunk = c.first_come = true;
    c.fixed_chunk_tokens = 512;
    SchedulerRig rig(c);
    rig.start_streams(3, 100);
    rig.submit(1, 5000, 10);
    rig.submit(2, 100, 10);
    rig.look();
    CHECK(rig.prefill_rows() == 512);
    CHECK(rig.rows_of(1) == 512);
    c.chunk_holds_decodes = true;
    SchedulerRig total(c);
    total.start_streams(3, 100);
    total.submit(1, 5000, 10);
    CHECK(total.look().features.rows == 512);
    c.chunk_holds_decodes = false;
    c.lone_chunk_tokens = 4000;
    SchedulerRig two_level(c);
    two_level.start_streams(3, 100);
    two_level.submit(1, 9000, 10);
    CHECK(two_level.look().features.rows == 4003);
    two_level.complete();
    two_level.submit(2, 9000, 10);
    CHECK(two_level.look().features.rows <= 515 + 3500);
}

TEST_CASE("however many come in with one plan, they come in by their keys", "[scheduler]") {
    SchedulerRig rig(rig_config(40, 64));
    std::vector<int32_t> lengths(51, 0);
    for (RequestId id = 1; id <= 50; ++id) {   // all at one time: the shorter one's key is the lower
        lengths[id] = 10 + static_cast<int32_t>(id * 7 % 50);
        rig.submit(id, lengths[id], 50);
    }
    rig.look();
    REQUIRE(rig.plan.admitted.size() == 50);
    CHECK(std::is_sorted(rig.plan.admitted.begin(), rig.plan.admitted.end(),
                         [&](RequestId a, RequestId b) { return lengths[a] < lengths[b]; }));
}

}  // namespace takt
