// How a step is made does not show in any text: pipeline depth, recorded or eager steps, chunking, squeeze and cache are varied
// over whole random compositions; the shapes always hold max_running; and the metric of graph coverage tells the truth.
#include "catch.h"
#include "kernels/row_ladder.h"
#include "sim/engine_sim.h"

namespace {

using namespace takt;
using namespace takt::engine_sim;

/// A random composition that nothing disturbs: what is left of a seed's case without cancels, faults and refusals.
SimCase composition(uint64_t seed) {
    SimCase s = make_case(seed);
    s.device.fail_launch = s.device.nonfinite_samples = s.device.slow_launch = 0;
    s.drain_ns = 0;
    s.scheduler.max_waiting = 1000;
    for (SchedulerClass& c : s.scheduler.classes) c.on_miss = SchedulerClass::OnMiss::queue;
    for (SchedulerTenant& t : s.scheduler.tenants) t.max_waiting = 0;
    int32_t blocks = 1;
    for (SimClient& c : s.clients) {
        c.cancel_at = CancelAt::never;
        c.deadline_ms = 0;
        if (c.reading == Reading::leaves) c.reading = Reading::eager;
        blocks += (static_cast<int32_t>(c.prompt.size()) + c.max_tokens) / s.block_tokens + 1;
    }
    s.num_blocks = std::max(s.num_blocks, blocks);
    return s;
}

SimReport run_sound(const SimCase& s) {
    const SimReport report = EngineSim(s).run();
    INFO("seed " << s.seed << ": " << s.describe() << report.last_plans);
    REQUIRE(report.wrong == "");
    REQUIRE(report.num_whole == static_cast<int32_t>(s.clients.size()));
    return report;
}

}  // namespace

TEST_CASE("depth 1 gives what depth 0 gives, for whole random compositions") {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        SimCase s = composition(seed);
        s.pipeline_depth = 0;
        const SimReport zero = run_sound(s);
        s.pipeline_depth = 1;
        CHECK(run_sound(s).tokens == zero.tokens);
    }
}

TEST_CASE("replayed steps give what eager ones give, and the metric counts them") {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        SimCase s = composition(seed);
        s.graphs = false;
        const SimReport eager = run_sound(s);
        CHECK(eager.num_replayed == 0);
        s.graphs = true;
        const SimReport replayed = run_sound(s);
        CHECK(replayed.tokens == eager.tokens);
        CHECK(replayed.digest == eager.digest);             // the same plans, not only the same text
        CHECK(replayed.num_replayed == replayed.num_steps); // mixed steps and those beyond the ladder too
    }
}

TEST_CASE("chunking, cache and squeeze do not show in any text") {
    for (uint64_t seed = 1; seed <= 25; ++seed) {
        SimCase s = composition(seed);
        const SimReport base = run_sound(s);
        s.scheduler.fixed_chunk = !s.scheduler.fixed_chunk;
        s.scheduler.fixed_chunk_tokens = 17;
        s.prefix_cache = !s.prefix_cache;
        CHECK(run_sound(s).tokens == base.tokens);
        int32_t longest = 0;
        for (const SimClient& c : s.clients) {
            longest = std::max(longest, (static_cast<int32_t>(c.prompt.size()) + c.max_tokens) / s.block_tokens + 1);
        }
        s.num_blocks = longest + 2;
        CHECK(run_sound(s).tokens == base.tokens);
    }
}

TEST_CASE("a prompt of many launches is not overwritten by the step that is planned behind it") {
    SimCase s = quiet_case(4, 300, 20);
    s.pipeline_depth = 1;
    s.scheduler.fixed_chunk = true;
    s.scheduler.fixed_chunk_tokens = 256;
    s.max_rows = 16;           // 17 launches a step
    s.speed_guess = 0.2;       // a cold model that is too fast: the next step is planned as soon as the first runs
    for (size_t i = 0; i < s.clients.size(); ++i) s.clients[i].arrival_ns = i * 3'000'000;
    CHECK(EngineSim(s).run().wrong == "");
}

TEST_CASE("a host that sleeps over several steps books them in order") {
    for (const int32_t depth : {0, 1}) {
        SimCase s = quiet_case(6, 40, 60);
        s.pipeline_depth = depth;
        const SimReport awake = EngineSim(s).run();
        REQUIRE(awake.wrong == "");
        s.pauses_per_mille = 700;
        s.max_pause_ns = 50'000'000;
        const SimReport asleep = EngineSim(s).run();
        REQUIRE(asleep.wrong == "");
        CHECK(asleep.end_ns > awake.end_ns);
        CHECK(asleep.tokens == awake.tokens);
    }
}

TEST_CASE("every device's shapes hold exactly max_running and end where they may") {
    for (const int32_t step : {0, 1, 64, 128}) {
        for (int32_t max_running = 1; max_running <= 300; ++max_running) {
            for (const int32_t max_rows : {max_running, max_running + 1, 512, 4096}) {
                if (max_rows < max_running) continue;
                const std::vector<int32_t> ladder = make_row_ladder(step, max_running, max_rows);
                REQUIRE(std::binary_search(ladder.begin(), ladder.end(), max_running));
                REQUIRE(std::is_sorted(ladder.begin(), ladder.end()));
                REQUIRE(ladder.front() == 1);
                REQUIRE(ladder.back() == max_rows);
            }
        }
    }
}
