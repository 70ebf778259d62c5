// Each check of the simulations can fail: what the checks are told is altered, a plan or a step's time, and the invariant that is then
// broken is named. The numbers are those of scheduling.md section 5 (docs/scheduling.md has the table).
#include "runtime/sim/invariants.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "catch.h"
#include "runtime/sim/scene.h"
#include "runtime/sim/sim_text.h"

using namespace takt;
using namespace takt::sim;

namespace {

/// Streams and prompts at once: every kind of step.
std::vector<SimRequest> mixture() {
    Random random(2);
    std::vector<SimRequest> w;
    for (int i = 0; i < 6; ++i) w.push_back(request_at(i, 300, 400));
    for (int i = 0; i < 20; ++i) {
        w.push_back(drawn_at(100 + 60.0 * i, random, {200, 4000}, {5, 40}));
        w.back().tenant_index = random.between(0, 1);
    }
    return w;
}

SimOptions two_tenants(double itl_ms = 40) {
    SimOptions o = scene(itl_ms, 32, 6000);
    o.scheduler.tenants = {{"", 1, 0, 0}, {"a", 1, 0, 0}};
    return o;
}

/// What the checks say when they are told plans that `alter` has altered; it says whether it did, and alters every one where `always`.
std::string told(const std::function<bool(StepPlan&)>& alter, bool always = false, SimOptions o = two_tenants(),
                 const std::vector<SimRequest>& w = mixture()) {
    int num_altered = 0;
    o.tell_plan = [&](StepPlan& plan) {
        if ((always || num_altered == 0) && alter(plan)) ++num_altered;
    };
    const SimReport report = run(o, w);
    REQUIRE(num_altered > 0);
    REQUIRE(report.wrong.find("last plans:") != std::string::npos);   // and a way to look into it
    REQUIRE(report.wrong.find("seed 1") != std::string::npos);
    return report.wrong;
}

PlanSegment* find_segment(StepPlan& plan, bool is_decode) {
    const auto at = std::find_if(plan.segments.begin(), plan.segments.end(),
                                 [&](const PlanSegment& s) { return s.is_decode == is_decode; });
    return at == plan.segments.end() ? nullptr : &*at;
}

/// The plan without the rows of those whom `drop` names; the features agree with it.
bool leave_out(StepPlan& plan, const std::function<bool(const PlanSegment&)>& drop) {
    const size_t before = plan.segments.size();
    std::erase_if(plan.segments, drop);
    StepFeatures f;
    plan.num_samples = 0;
    for (const PlanSegment& s : plan.segments) {
        if (s.is_decode) f.add_decode(s.token_begin);
        else f.add_slice(s.num_rows, s.token_begin);
        plan.num_samples += s.samples ? 1 : 0;
    }
    const std::vector<int32_t> ladder = h100_ladder(32);
    f.padded_rows = f.rows == 0 ? 0 : *std::lower_bound(ladder.begin(), ladder.end(), f.rows);
    plan.features = f;
    return plan.segments.size() < before;
}

bool names(const std::string& wrong, int number) { return wrong.find("invariant " + std::to_string(number) + ":") != std::string::npos; }

}  // namespace

TEST_CASE("sound plans pass every check") {
    const SimReport report = run(two_tenants(), mixture());
    INFO(report.wrong);
    CHECK(report.wrong.empty());
}

TEST_CASE("1: blocks that somebody took behind the scheduler's back are missed") {
    const SchedulerConfig config = two_tenants().scheduler;
    CostModel cost(config.row_ladder, false, h100_roofline());
    KvManager kv({100, 16, 32, 1000, true});
    Scheduler scheduler(config, cost, kv);
    Invariants invariants(config, cost);
    StepPlan plan;
    scheduler.plan(1, plan);
    invariants.planned(plan, 1, scheduler);
    REQUIRE(invariants.wrong().empty());
    kv.open(3, 0, {});
    REQUIRE(kv.reserve(3, 64));
    SchedulerRequest request;
    request.id = 1;
    request.prompt_tokens = 10;
    request.max_tokens = 5;
    invariants.accepted(request);
    // A plan whose rows are sound: what is wrong is in the books alone.
    SchedulerRequest other = request;
    other.arrival_ns = 1;
    REQUIRE(scheduler.submit(other, 1).verdict == Admission::Verdict::accepted);
    scheduler.plan(2, plan);
    scheduler.finish(1);
    invariants.planned(plan, 2, scheduler);
    StepOutcome outcome;
    outcome.step = plan.step;
    outcome.device_ns = 1'000'000;
    scheduler.apply(outcome, 3);
    invariants.applied(plan, outcome.device_ns, scheduler);
    CHECK(names(invariants.wrong(), 1));
}

TEST_CASE("2: a slot twice, decode rows behind prompts, rows that are not those of the features") {
    CHECK(names(told([](StepPlan& plan) {
        if (plan.segments.size() < 2) return false;
        plan.segments[1].slot = plan.segments[0].slot;
        return true;
    }), 2));
    CHECK(names(told([](StepPlan& plan) {
        if (find_segment(plan, true) == nullptr || find_segment(plan, false) == nullptr) return false;
        std::reverse(plan.segments.begin(), plan.segments.end());
        return true;
    }), 2));
    CHECK(names(told([](StepPlan& plan) { return plan.features.rows++ > 0; }), 2));
}

TEST_CASE("3: a token left out, one computed twice, a prompt sampled before its end, somebody who is not there") {
    for (const int by : {-1, 1}) {
        CHECK(names(told([by](StepPlan& plan) {
            PlanSegment* s = find_segment(plan, true);
            if (s == nullptr) return false;
            s->token_begin += by;
            return true;
        }), 3));
    }
    CHECK(names(told([](StepPlan& plan) {
        PlanSegment* s = find_segment(plan, false);
        if (s == nullptr || s->samples) return false;
        s->samples = true;
        plan.padded_samples = std::max(plan.padded_samples, ++plan.num_samples);
        return true;
    }), 3));
    CHECK(names(told([](StepPlan& plan) {
        if (plan.segments.empty()) return false;
        plan.segments[0].request = 999;
        return true;
    }), 3));
}

TEST_CASE("4, 20: a step over its budget, an idle one longer than an arrival may wait") {
    CHECK(names(told([](StepPlan& plan) {
        if (plan.features.decode_rows == 0 || plan.features.prefill_segments == 0) return false;
        plan.budget_ns = 1'000'000;
        return true;
    }), 4));
    CHECK(names(told([](StepPlan& plan) {
        if (plan.features.decode_rows > 0 || plan.features.prefill_segments == 0) return false;
        plan.features.prefill_pairs = 1'000'000'000;
        return true;
    }), 20));
}

TEST_CASE("7, 8: a stream that is left out, a prompt that does not move, and no prompt that moves") {
    CHECK(names(told([](StepPlan& plan) {
        return leave_out(plan, [](const PlanSegment& s) { return s.request == 2 && s.is_decode; });
    }, true), 7));
    SimOptions o = two_tenants();
    std::vector<SimRequest> w = mixture();
    w.push_back(request_at(90, 60'000, 5));
    const auto document = static_cast<RequestId>(w.size());
    CHECK(names(told([&](StepPlan& plan) {
        return leave_out(plan, [&](const PlanSegment& s) { return s.request == document; });
    }, true, o, w), 8));
    CHECK(names(told([](StepPlan& plan) {
        return plan.features.decode_rows > 0 && leave_out(plan, [](const PlanSegment& s) { return !s.is_decode; });
    }, true, o, {request_at(0, 16, 300), request_at(50, 60'000, 5)}), 8));
}

TEST_CASE("10: who did not run is not preempted, nobody too often, and nobody comes in then") {
    CHECK(names(told([](StepPlan& plan) {
        plan.preempted.push_back(25);
        return true;
    }), 10));
    SimOptions o = two_tenants();
    o.scheduler.max_preemptions = 2;
    int round = 0;
    CHECK(names(told([&round](StepPlan& plan) {   // out and in again, three times, as nobody may be
        if (plan.segments.empty()) return false;
        (round % 2 == 0 ? plan.preempted : plan.admitted).push_back(1);
        plan.segments.clear();
        ++round;
        return true;
    }, true, o), 10));
    CHECK(names(told([](StepPlan& plan) {
        if (plan.admitted.empty() || plan.segments.empty() || !plan.segments[0].is_decode) return false;
        plan.preempted.push_back(plan.segments[0].request);
        return true;
    }), 10));
}

TEST_CASE("11: rows that read a block of somebody else give another text, rows without a block are told") {
    const std::vector<int32_t> tokens{5, 6, 7, 8, 9, 10, 11, 12}, others{5, 6, 7, 1, 2, 3, 4, 5};
    std::vector<uint64_t> chain;
    const int32_t expected = SimText::expected(tokens, chain);
    for (const bool is_shared : {false, true}) {
        SimText text(8, 4, 2);
        std::string wrong;
        const std::vector<int32_t> own{1, 2}, foreign{1, 3};
        text.run({1, 0, 0, 4, false, false}, own, tokens, wrong);
        text.run({2, 1, 0, 8, true, false}, is_shared ? foreign : std::vector<int32_t>{4, 5}, others, wrong);   // into the first's block
        CHECK((text.run({1, 0, 4, 4, true, false}, own, tokens, wrong) == expected) == !is_shared);
        CHECK(wrong.empty());
        text.run({1, 0, 8, 1, true, true}, own, tokens, wrong);
        CHECK_FALSE(wrong.empty());
    }
}

TEST_CASE("14: of two alike the one that is due later goes first") {
    SimOptions o = scene(40, 32, 6000);
    o.scheduler.classes[0].ttft_ns = 30'000'000'000;
    std::vector<SimRequest> w{request_at(0, 16, 600)};
    for (int i = 0; i < 2; ++i) {
        w.push_back(request_at(50, 20'000, 5));
        w.back().ttft_ns = (20 + 4 * static_cast<uint64_t>(i)) * 1'000'000'000;
    }
    CHECK(run(o, w).wrong.empty());
    const auto swap = [](StepPlan& plan) {
        bool any = false;
        const auto other = [&](RequestId& id) {
            if (id != 2 && id != 3) return;
            id = 5 - id;
            any = true;
        };
        for (PlanSegment& s : plan.segments) other(s.request);
        return any;
    };
    CHECK(names(told(swap, true, o, w), 14));
    o.scheduler.max_running = 2;   // one of them has to wait
    o.kv.max_running = 2;
    o.scheduler.row_ladder = h100_ladder(2);
    o.cost_table.clear();
    CHECK(run(o, w).wrong.empty());
    const auto swap_admitted = [&](StepPlan& plan) {
        bool any = swap(plan);
        for (RequestId& id : plan.admitted) {
            if (id == 2 || id == 3) id = 5 - id;
        }
        return any;
    };
    CHECK(names(told(swap_admitted, true, o, w), 14));
}

TEST_CASE("15: rows for a tenant that had much while one that had little waits") {
    SimOptions o = scene(40, 32, 9000);
    o.scheduler.tenants = {{"", 1, 0, 0}, {"a", 1, 0, 0}};
    std::vector<SimRequest> w{request_at(0, 16, 600)};
    for (int i = 0; i < 6; ++i) w.push_back(request_at(10, 30'000, 5));
    w.push_back(request_at(1500, 20'000, 5));   // the other tenant's, which had nothing
    w.back().tenant_index = 1;
    REQUIRE(run(o, w).wrong.empty());
    CHECK(names(told([](StepPlan& plan) {
        PlanSegment* s = find_segment(plan, false);
        if (s == nullptr || s->request != 8) return false;
        s->request = 7;   // of the six
        return true;
    }, true, o, w), 15));
}

TEST_CASE("16: a shape that nobody launches, samples that do not fit") {
    CHECK(names(told([](StepPlan& plan) { return plan.features.padded_rows++ > 0; }), 16));
    CHECK(names(told([](StepPlan& plan) {
        if (plan.num_samples < 2) return false;
        plan.padded_samples = 1;
        return true;
    }), 16));
}

TEST_CASE("18: a device that is slower than the loop was told, and a trim that swings") {
    SimOptions o = scene(40, 32, 14'000);
    std::vector<SimRequest> w;
    for (int i = 0; i < 8; ++i) w.push_back(request_at(0.1 * i, 1024, 900));
    for (int i = 0; i < 12; ++i) w.push_back(request_at(200 + i, 30'000, 1));
    o.scheduler.classes[0].ttft_ns = 600'000'000'000;
    const SimReport sound = run(o, w);
    INFO(sound.wrong);
    REQUIRE(sound.wrong.empty());
    o.tell_time = [](uint64_t ns) { return ns + ns / 4; };
    CHECK(names(run(o, w).wrong, 18));
}

TEST_CASE("19: infeasible and not said") {
    SimOptions o = scene(40, 32, 14'000);
    std::vector<SimRequest> w;
    for (int i = 0; i < 8; ++i) w.push_back(request_at(0.1 * i, 1024, 900));
    for (int i = 0; i < 12; ++i) w.push_back(request_at(200 + i, 30'000, 1));
    CHECK(names(told([](StepPlan& plan) {
        if (plan.features.decode_rows == 0) return false;
        plan.budget_ns = 1000;
        plan.at_floor = true;
        return true;
    }, true, o, w), 19));
    o.scheduler.classes[0].itl_ns = 3'000'000;   // and said where it is not
    const SimReport sound = run(o, w);
    INFO(sound.wrong);
    CHECK(sound.wrong.empty());
    CHECK(names(told([](StepPlan& plan) {
        if (plan.features.decode_rows == 0) return false;
        plan.budget_ns = 1'000'000'000;
        return true;
    }, true, o, w), 19));
}

TEST_CASE("21: another seed is another digest, the same is the same") {
    SimOptions o = two_tenants(), other = o;
    other.seed = 2;
    const uint64_t digest = run(o, mixture()).digest;
    CHECK(run(o, mixture()).digest == digest);
    CHECK(run(other, mixture()).digest != digest);
}
