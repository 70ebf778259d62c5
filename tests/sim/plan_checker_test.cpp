// Each check of the whole engine's simulation can fail: a second checker is told altered plans beside the true ones, and names the
// invariant that they break.
#include "sim/plan_checker.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "catch.h"
#include "sim/engine_sim.h"

namespace {

using namespace takt;
using namespace takt::engine_sim;

using Alter = std::function<bool(StepPlan&)>;

/// Two streams that decode and two prompts beside them.
SimCase mixture() {
    SimCase s = quiet_case(4, 40, 60);
    Random random(9);
    for (size_t i = 2; i < 4; ++i) {
        s.clients[i].arrival_ns = 30'000'000;
        for (int k = 0; k < 1500; ++k) s.clients[i].prompt.push_back(random.between(32, 126));
    }
    // The last one begins as the first did, whose blocks it finds.
    s.clients[3].prompt = s.clients[0].prompt;
    for (int k = 0; k < 1500; ++k) s.clients[3].prompt.push_back(random.between(32, 126));
    s.scheduler.max_context = 2000;
    s.num_blocks = 400;
    return s;
}

/// What a checker says that is told plans altered by `alter`, in every step where `always`, else until it did once; it knows of the
/// requests but `hidden`, and takes the prompt of `other_text_of` for another.
std::string told(const Alter& alter, bool always = false, RequestId hidden = 0, int32_t other_text_of = -1) {
    const SimCase spec = mixture();
    EngineSim sim(spec);
    PlanChecker checker(spec, sim.core());
    std::vector<std::unique_ptr<HashChain>> chains;
    std::map<RequestId, std::shared_ptr<TokenStream>> streams;
    int num_altered = 0;
    sim.on_plan = [&](const StepPlan& plan) {
        for (const RequestId id : plan.admitted) {
            if (id == hidden || streams.contains(id)) continue;
            const SimClient& client = spec.clients[id - 1];
            std::vector<int32_t> prompt = client.prompt;
            if (static_cast<int32_t>(id) == other_text_of) prompt[0] += 1;
            chains.push_back(std::make_unique<HashChain>(prompt, client.max_tokens, 256, -1));
            streams[id] = sim.core().request(id).stream;
            checker.add(id, client, *chains.back(), *streams[id]);
        }
        StepPlan altered = plan;
        if ((always || num_altered == 0) && alter(altered)) ++num_altered;
        checker.planned(altered);
    };
    sim.on_applied = [&](const StepPlan& plan, const StepOutcome& outcome) { checker.applied(plan, outcome); };
    const SimReport report = sim.run();
    REQUIRE(report.wrong == "");   // the plans themselves are sound
    REQUIRE(num_altered > 0);
    REQUIRE((checker.wrong().empty() || !checker.last_plans().empty()));
    return checker.wrong();
}

bool names(const std::string& wrong, int number) {
    INFO(wrong);
    return wrong.rfind("invariant " + std::to_string(number) + " ", 0) == 0;
}

PlanSegment* find_segment(StepPlan& plan, bool is_decode) {
    const auto at = std::find_if(plan.segments.begin(), plan.segments.end(),
                                 [&](const PlanSegment& s) { return s.is_decode == is_decode; });
    return at == plan.segments.end() ? nullptr : &*at;
}

void write_features(StepPlan& plan, int32_t padded_rows) {
    StepFeatures f;
    plan.num_samples = 0;
    for (const PlanSegment& s : plan.segments) {
        if (s.is_decode) {
            f.add_decode(s.token_begin);
        } else {
            f.add_slice(s.num_rows, s.token_begin);
        }
        plan.num_samples += s.samples ? 1 : 0;
    }
    f.padded_rows = padded_rows;
    plan.features = f;
}

Alter on_segment(bool is_decode, const std::function<void(PlanSegment&)>& change) {
    return [=](StepPlan& plan) {
        PlanSegment* s = find_segment(plan, is_decode);
        if (s != nullptr) change(*s);
        return s != nullptr;
    };
}

}  // namespace

TEST_CASE("true plans pass") { CHECK(told([](StepPlan&) { return true; }, true) == ""); }

TEST_CASE("2, 3: rows without a place, twice or left out") {
    CHECK(names(told(on_segment(true, [](PlanSegment& s) { s.slot = -1; })), 2));
    CHECK(names(told(on_segment(true, [](PlanSegment& s) { s.token_begin += 1; })), 3));
    CHECK(names(told(on_segment(false, [](PlanSegment& s) { s.num_rows = 3000; })), 3));
    CHECK(names(told(on_segment(false, [](PlanSegment& s) { s.samples = !s.samples; })), 3));
    CHECK(names(told(on_segment(true, [](PlanSegment& s) { s.num_rows = 2; })), 3));
}

TEST_CASE("4, 16, 20: over the budget, a shape that is none, a step that is too long") {
    const auto is_mixed = [](const StepPlan& plan) { return plan.features.decode_rows > 0 && plan.features.prefill_segments > 0; };
    CHECK(names(told([&](StepPlan& plan) {
        if (!is_mixed(plan)) return false;
        plan.budget_ns = 1000;
        return true;
    }), 4));
    CHECK(names(told([](StepPlan& plan) { return ++plan.features.padded_rows > 1; }), 16));
    CHECK(names(told([](StepPlan& plan) { return --plan.padded_samples >= 0; }), 16));
}

TEST_CASE("6: a step that leaves prompts undone though there was time") {
    CHECK(names(told([](StepPlan& plan) {
        PlanSegment* s = find_segment(plan, false);
        if (s == nullptr || s->num_rows < 64 || plan.features.decode_rows == 0) return false;
        std::erase_if(plan.segments, [&](const PlanSegment& other) { return !other.is_decode && other.request != s->request; });
        s = find_segment(plan, false);
        s->num_rows = 16 - plan.features.decode_rows;
        s->samples = false;
        write_features(plan, 16);
        return true;
    }), 6));
}

TEST_CASE("7, 8: a stream that is left out, prompts that stand still") {
    CHECK(names(told([](StepPlan& plan) {
        const size_t before = plan.segments.size();
        std::erase_if(plan.segments, [](const PlanSegment& s) { return s.is_decode && s.request == 1; });
        write_features(plan, plan.features.padded_rows);
        return plan.segments.size() < before;
    }, true), 7));
    CHECK(names(told([](StepPlan& plan) {
        const size_t before = plan.segments.size();
        std::erase_if(plan.segments, [](const PlanSegment& s) { return s.request > 2; });
        write_features(plan, plan.features.padded_rows);
        plan.at_floor = true;
        return plan.segments.size() < before;
    }, true), 8));
}

TEST_CASE("10: somebody is thrown out while another comes in") {
    CHECK(names(told([](StepPlan& plan) {
        if (plan.admitted.empty() || plan.admitted.back() < 3) return false;   // the streams run by then
        plan.preempted.push_back(1);
        return true;
    }), 10));
}

TEST_CASE("11: a slot that holds another text than the request's own") {
    // The first client's prompt is known under another beginning: who finds it in the cache reads what is not its own.
    CHECK(names(told([](StepPlan&) { return true; }, true, 0, 1), 11));
}

TEST_CASE("12: a stream that loses, repeats or renumbers what it had") {
    // What readers are told of the second client's chunks; the engine's own are sound, or the last case would fail too.
    const auto read = [](const std::function<bool(Chunk&)>& tell) {
        const SimCase spec = mixture();
        EngineSim sim(spec);
        sim.tell_chunk = [&](RequestId id, Chunk& chunk) { return id != 2 || tell(chunk); };
        return sim.run().wrong;
    };
    const auto is_broken = [](const std::string& wrong) { return wrong.find("invariant 12") != std::string::npos; };
    int64_t last = -1;
    CHECK(read([&](Chunk& chunk) { last = chunk.index; return true; }) == "");
    REQUIRE(last > 10);
    CHECK(is_broken(read([](Chunk& chunk) { return chunk.index != 10; })));
    CHECK(read([&](Chunk& chunk) { return chunk.index != last; }).find("tokens, 59 were read") != std::string::npos);
    CHECK(is_broken(read([](Chunk& chunk) { chunk.index += chunk.index >= 10 ? 1 : 0; return true; })));
    CHECK(is_broken(read([](Chunk& chunk) { chunk.index -= chunk.index == 10 ? 1 : 0; return true; })));
    CHECK(is_broken(read([](Chunk& chunk) { if (chunk.index == 10) chunk.tokens.push_back(chunk.tokens.back()); return true; })));
}

TEST_CASE("13: blocks that nobody is known to hold") {
    CHECK(names(told([](StepPlan& plan) {
        std::erase(plan.admitted, RequestId{2});
        const size_t before = plan.segments.size();
        std::erase_if(plan.segments, [](const PlanSegment& s) { return s.request == 2; });
        write_features(plan, plan.features.padded_rows);
        return plan.segments.size() < before;
    }, true, 2), 13));
}
