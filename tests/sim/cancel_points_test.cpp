// A cancel at every point of a request's life: between any two handlers of the engine, one run a point. Wherever it comes, the
// request ends once, its blocks are back within a step, and nobody else gets another token (invariant 13).
#include "catch.h"
#include "sim/engine_sim.h"

namespace {

using namespace takt;
using namespace takt::engine_sim;

/// Three streams; the middle one's prompt takes several chunks beside the first one's tokens.
SimCase three_streams(int32_t depth, bool is_squeezed) {
    SimCase s = quiet_case(3, 40, 12);
    s.pipeline_depth = depth;
    s.scheduler.fixed_chunk = true;
    s.scheduler.fixed_chunk_tokens = 16;
    s.clients[1].arrival_ns = 8'000'000;
    s.clients[2].arrival_ns = 9'000'000;
    s.block_tokens = 4;
    s.num_blocks = 1 + 3 * 13 + 1;
    if (is_squeezed) s.num_blocks = 1 + 24;   // two of them at most, and somebody has to give way
    return s;
}

void cancel_everywhere(int32_t depth, bool is_squeezed, size_t who) {
    SimCase s = three_streams(depth, is_squeezed);
    const SimReport whole = EngineSim(s).run();
    REQUIRE(whole.wrong == "");
    CHECK(whole.num_whole == 3);
    CHECK((whole.num_preemptions > 0) == is_squeezed);
    s.clients[who].cancel_at = CancelAt::gap;
    int32_t num_cut = 0;
    for (uint64_t gap = 1; gap <= whole.num_handlers; ++gap) {
        INFO("depth " << depth << ", squeezed " << is_squeezed << ", client " << who << ", gap " << gap);
        s.clients[who].cancel_count = gap;
        const SimReport report = EngineSim(s).run();
        REQUIRE(report.wrong == "");
        if (report.reasons[who] == FinishReason::cancelled) ++num_cut;
        for (size_t i = 0; i < 3; ++i) {
            if (i != who) REQUIRE(report.tokens[i] == whole.tokens[i]);
        }
    }
    CHECK(num_cut > 20);   // the points were in its life, not behind it
}

}  // namespace

TEST_CASE("a cancel between any two handlers ends just its own request") {
    for (const int32_t depth : {0, 1}) {
        for (size_t who = 0; who < 3; ++who) cancel_everywhere(depth, false, who);
    }
}

TEST_CASE("a cancel between any two handlers while others are preempted ends just its own request") {
    for (const int32_t depth : {0, 1}) {
        for (size_t who = 0; who < 3; ++who) cancel_everywhere(depth, true, who);
    }
}

TEST_CASE("a reader that leaves between any two handlers ends just its own request") {
    for (const int32_t depth : {0, 1}) {
        SimCase s = three_streams(depth, false);
        const SimReport whole = EngineSim(s).run();
        REQUIRE(whole.wrong == "");
        s.clients[1].cancel_at = CancelAt::gone;
        int32_t num_cut = 0;
        for (uint64_t gap = 1; gap <= whole.num_handlers; ++gap) {
            s.clients[1].cancel_count = gap;
            const SimReport report = EngineSim(s).run();
            INFO("depth " << depth << ", gap " << gap);
            REQUIRE(report.wrong == "");
            REQUIRE(report.tokens[0] == whole.tokens[0]);
            REQUIRE(report.tokens[2] == whole.tokens[2]);
            num_cut += report.tokens[1].size() < whole.tokens[1].size() ? 1 : 0;
        }
        CHECK(num_cut > 20);
    }
}

TEST_CASE("a reader that leaves after any chunk ends just its own request") {
    for (const int32_t depth : {0, 1}) {
        SimCase s = three_streams(depth, false);
        const SimReport whole = EngineSim(s).run();
        REQUIRE(whole.wrong == "");
        s.clients[1].reading = Reading::leaves;
        for (int32_t chunks = 1; chunks <= 12; ++chunks) {
            s.clients[1].read_chunks = chunks;
            const SimReport report = EngineSim(s).run();
            INFO("depth " << depth << ", after " << chunks << " chunks");
            REQUIRE(report.wrong == "");
            REQUIRE(report.tokens[0] == whole.tokens[0]);
            REQUIRE(report.tokens[2] == whole.tokens[2]);
        }
    }
}
