// Faults and their reach: a row that is not finite, a full KV pool, a slow reader and a deadline end or pause just their own
// request; a failed operation is the whole device's and ends each request once. Blocks come back in every case.
#include <algorithm>
#include <exception>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "catch.h"
#include "model/model_file.h"
#include "sim/engine_sim.h"

namespace {

using namespace takt;
using namespace takt::engine_sim;

}  // namespace

TEST_CASE("a row that is not finite ends its own request and no other") {
    for (const int32_t depth : {0, 1}) {
        SimCase s = quiet_case(12, 30, 40);
        s.pipeline_depth = depth;
        const SimReport sound = EngineSim(s).run();
        REQUIRE(sound.wrong == "");
        CHECK(sound.num_whole == 12);
        s.device.nonfinite_samples = 150;
        const SimReport report = EngineSim(s).run();
        REQUIRE(report.wrong == "");
        CHECK(report.num_errors > 0);
        CHECK(report.num_whole > 0);
        CHECK(report.num_whole + report.num_errors == 12);
        for (size_t i = 0; i < 12; ++i) {
            if (report.errors[i] == errc::ok) CHECK(report.tokens[i] == sound.tokens[i]);
            else CHECK(report.errors[i] == errc::internal);
        }
    }
}

TEST_CASE("an exception in one request ends that request alone, whenever it comes") {
    for (const int32_t depth : {0, 1}) {
        SimCase s = quiet_case(4, 60, 20);
        s.pipeline_depth = depth;
        const SimReport sound = EngineSim(s).run();
        REQUIRE(sound.wrong == "");
        for (int32_t token = 1; token <= 20; ++token) {
            s.clients[1].throws_at = token;
            EngineSim sim(s);
            std::vector<RequestId> reported;
            sim.core().on_token = [token](const RequestState& request) {
                if (request.id != 2 || request.num_outputs() != token) return;
                if (token % 2 == 0) throw std::bad_alloc();   // no memory is such an exception
                throw std::runtime_error("injected");
            };
            sim.core().on_exception = [&](RequestId id, const std::exception_ptr& problem) {
                CHECK(problem != nullptr);
                reported.push_back(id);
            };
            const SimReport report = sim.run();   // it checks that blocks are back and every end comes once
            INFO("depth " << depth << ", token " << token);
            REQUIRE(report.wrong == "");
            CHECK_FALSE(report.device_was_lost);
            CHECK(reported == std::vector<RequestId>{2});
            CHECK(report.errors[1] == errc::internal);
            for (const size_t i : {size_t{0}, size_t{2}, size_t{3}}) CHECK(report.tokens[i] == sound.tokens[i]);
        }
    }
}

TEST_CASE("a failed operation ends every request once as device_lost, whenever it comes") {
    for (const int32_t depth : {0, 1}) {
        SimCase s = quiet_case(4, 60, 20);
        s.pipeline_depth = depth;
        s.clients[3].arrival_ns = 60'000'000;
        s.clients[3].reading = Reading::slow;
        s.clients[3].read_chunks = 1;
        s.clients[3].read_period_ns = 9'000'000;
        const SimReport sound = EngineSim(s).run();
        REQUIRE(sound.wrong == "");
        for (uint64_t step = 1; step <= sound.num_steps; ++step) {
            s.device.fail_launch = step;
            const SimReport report = EngineSim(s).run();   // it checks that blocks are back and every end comes once
            INFO("depth " << depth << ", step " << step);
            REQUIRE(report.wrong == "");
            REQUIRE(report.device_was_lost);
            for (size_t i = 0; i < 4; ++i) {
                const bool is_whole = report.errors[i] == errc::ok;
                REQUIRE((is_whole || report.errors[i] == errc::device_lost));
                if (is_whole) REQUIRE(report.tokens[i] == sound.tokens[i]);
            }
        }
    }
}

TEST_CASE("a device that hangs is seen by health, and its requests can still be cancelled") {
    SimCase s = quiet_case(2, 30, 20);
    s.device.stall_launch = 5;
    EngineSim sim(s);
    bool was_well = false, was_ill = false;
    sim.at(sim.now_ns() + 20'000'000, [&] { was_well = sim.core().health(sim.now_ns()).progressing; });
    sim.at(sim.now_ns() + 60'000'000'000, [&] {
        was_ill = !sim.core().health(sim.now_ns()).progressing;
        sim.core().cancel_all();
    });
    const SimReport report = sim.run();
    // The step never ends, so the engine is never idle: what is left is exactly that.
    CHECK(report.wrong == "invariant 9: nothing will ever happen again, and somebody waits");
    CHECK(was_well);
    CHECK(was_ill);
    CHECK(report.reasons[0] == FinishReason::cancelled);
    CHECK(report.reasons[1] == FinishReason::cancelled);
    CHECK(sim.core().num_requests() == 0);
}

TEST_CASE("a first forward far longer than its guess is no false alarm, and one that never ends is seen") {
    SimCase s = quiet_case(1, 2000, 20);
    s.max_rows = 2048;
    s.scheduler.fixed_chunk = true;
    s.scheduler.fixed_chunk_tokens = 2000;
    s.device.slow_launch = 1;
    s.device.scale = 30;
    const bool hangs = GENERATE(false, true);
    if (hangs) s.device.stall_launch = 1;
    EngineSim sim(s);
    double longest_s = 0;
    sim.on_applied = [&](const StepPlan& plan, const StepOutcome& outcome) {
        if (plan.step == 1) longest_s = static_cast<double>(outcome.device_ns) * 1e-9;
    };
    const uint64_t begin = sim.now_ns();
    std::vector<bool> was_well;
    for (const uint64_t second : {2u, 6u, 12u, 30u, 70u}) {
        sim.at(begin + second * 1'000'000'000, [&] { was_well.push_back(sim.core().health(sim.now_ns()).progressing); });
    }
    double expected_s = 0;
    sim.at(begin + 1'000'000'000, [&] { expected_s = sim.core().health(sim.now_ns()).expected_step_seconds; });
    sim.at(begin + 100'000'000'000, [&] { sim.core().cancel_all(); });
    const SimReport report = sim.run();
    INFO("took " << longest_s << " s, expected " << expected_s);
    if (hangs) {
        CHECK(was_well == std::vector<bool>{true, true, true, true, false});
    } else {
        REQUIRE(report.wrong == "");
        CHECK(longest_s > std::max(12.0, 10 * expected_s));     // or this shows nothing
        CHECK(was_well == std::vector<bool>(3, true));          // it is over before the other two looks
    }
}

TEST_CASE("a step like others before that hangs is seen after five seconds") {
    SimCase s = quiet_case(2, 30, 20);
    s.device.stall_launch = 8;
    EngineSim sim(s);
    bool was_well = false, was_ill = false;
    sim.at(sim.now_ns() + 3'000'000'000, [&] { was_well = sim.core().health(sim.now_ns()).progressing; });
    sim.at(sim.now_ns() + 7'000'000'000, [&] {
        was_ill = !sim.core().health(sim.now_ns()).progressing;
        sim.core().cancel_all();
    });
    static_cast<void>(sim.run());
    CHECK(was_well);
    CHECK(was_ill);
}

TEST_CASE("an allocation that fails while the engine is built is an error, not an engine") {
    VirtualClock clock;
    int32_t num_failed = 0;
    for (uint64_t n = 1;; ++n) {
        SimDeviceOptions options;
        options.fail_alloc = n;
        auto device = make_sim_device(options, clock.source()).value();
        const Tokenizer tokenizer = make_tokenizer(byte_tokenizer_spec()).value();
        SimModel model(*device, tokenizer.vocab_size(), 256, tokenizer.eos());
        net::io_context io;
        CoreOptions core;
        core.scheduler.max_running = 4;
        core.scheduler.max_context = 256;
        core.scheduler.row_ladder = device->row_ladder(4, 64);
        core.scheduler.classes.push_back({});
        core.scheduler.tenants.push_back({});
        core.runner.row_ladder = core.scheduler.row_ladder;
        core.runner.max_plan_rows = 64;
        core.runner.max_running = 4;
        core.runner.max_context = 256;
        core.runner.num_blocks = 8;
        EngineParts parts{&clock, device.get(), &model, &tokenizer, &io, io.get_executor()};
        const Result<std::unique_ptr<EngineCore>> made = EngineCore::create(parts, core);
        if (made) break;   // there is no n-th allocation
        ++num_failed;
        CHECK(made.error().find("memory") != std::string::npos);
    }
    CHECK(num_failed >= 5);
}

TEST_CASE("a full pool preempts and resumes without a change in any text") {
    for (const int32_t depth : {0, 1}) {
        for (const bool cached : {false, true}) {
            SimCase s = quiet_case(6, 50, 80);
            s.pipeline_depth = depth;
            s.prefix_cache = cached;
            const SimReport roomy = EngineSim(s).run();
            REQUIRE(roomy.wrong == "");
            CHECK(roomy.num_preemptions == 0);
            s.num_blocks = 1 + 6 * 5;   // the prompts fit with a block to spare, the answers do not
            const SimReport tight = EngineSim(s).run();
            INFO("depth " << depth << ", cache " << cached);
            REQUIRE(tight.wrong == "");
            CHECK(tight.num_preemptions > 0);
            CHECK(tight.num_whole == 6);
            CHECK(tight.tokens == roomy.tokens);
        }
    }
}

TEST_CASE("a reader that does not read pauses its own request, within a bound, and slows nobody else") {
    for (const int32_t depth : {0, 1}) {
        SimCase s = quiet_case(4, 20, 600);
        s.pipeline_depth = depth;
        const SimReport eager = EngineSim(s).run();
        REQUIRE(eager.wrong == "");
        s.clients[1].reading = Reading::stalls;
        s.clients[1].read_chunks = 3;
        s.clients[1].read_period_ns = 30'000'000'000;
        EngineSim sim(s);
        int64_t most_ahead = 0;
        sim.on_applied = [&](const StepPlan&, const StepOutcome&) {
            if (sim.now_ns() > 10'000'000'000 && sim.now_ns() < 30'000'000'000 && sim.core().num_requests() > 0) {
                most_ahead = std::max<int64_t>(most_ahead, sim.core().request(2).num_outputs());
            }
        };
        const SimReport report = sim.run();
        INFO("depth " << depth);
        REQUIRE(report.wrong == "");
        CHECK(report.num_paused == 1);
        CHECK(report.tokens == eager.tokens);
        CHECK(most_ahead < TokenStream::kPauseTokens + 10);   // ... and it does not run on without bound
        for (const size_t i : {size_t{0}, size_t{2}, size_t{3}}) CHECK(report.end_of_client_ns[i] <= eager.end_of_client_ns[i]);
        CHECK(report.end_of_client_ns[1] > 30'000'000'000);
    }
}

TEST_CASE("the blocks of a paused reader are the first to go when others lack some, and it resumes with the same text") {
    for (const int32_t depth : {0, 1}) {
        for (const size_t paused : {size_t{0}, size_t{1}}) {   // the oldest request too
            SimCase s = quiet_case(2, 20, 600);
            s.pipeline_depth = depth;
            s.prefix_cache = false;
            const SimReport eager = EngineSim(s).run();
            REQUIRE(eager.wrong == "");
            s.clients[paused].reading = Reading::stalls;
            s.clients[paused].read_chunks = 2;
            s.clients[paused].read_period_ns = 60'000'000'000;
            s.num_blocks = 1 + (20 + 600) / s.block_tokens + 5;   // one answer and a little
            EngineSim sim(s);
            std::set<RequestId> out;
            sim.on_plan = [&](const StepPlan& plan) { out.insert(plan.preempted.begin(), plan.preempted.end()); };
            const SimReport report = sim.run();
            INFO("depth " << depth << ", paused " << paused);
            REQUIRE(report.wrong == "");
            CHECK(report.tokens == eager.tokens);
            CHECK(report.end_of_client_ns[1 - paused] < 20'000'000'000);   // it did not wait for the other's reader
        }
    }
}

TEST_CASE("readers that do not read keep neither slots nor blocks from a newcomer") {
    for (const int32_t depth : {0, 1}) {
        for (const bool lacks_slots : {false, true}) {
            SimCase s = quiet_case(4, 20, 600);
            s.pipeline_depth = depth;
            const SimReport eager = EngineSim(s).run();
            REQUIRE(eager.wrong == "");
            for (size_t i = 0; i < 3; ++i) {
                s.clients[i].reading = Reading::stalls;
                s.clients[i].read_chunks = 2;
                s.clients[i].read_period_ns = 60'000'000'000;
            }
            s.clients[3].arrival_ns = 10'000'000'000;   // the others have paused by then
            if (lacks_slots) s.scheduler.max_running = 3;
            else s.num_blocks = 1 + (20 + 600) / s.block_tokens + 20;
            const SimReport report = EngineSim(s).run();
            INFO("depth " << depth << ", lacks slots " << lacks_slots);
            REQUIRE(report.wrong == "");
            CHECK(report.tokens == eager.tokens);
            CHECK(report.end_of_client_ns[3] < 20'000'000'000);   // 600 tokens of 6 ms and its prompt
            CHECK(report.end_of_client_ns[0] > 60'000'000'000);
        }
    }
}

TEST_CASE("a request ends at its deadline wherever it stands, and the others go on") {
    SimCase s = quiet_case(3, 400, 40);
    s.scheduler.max_running = 1;
    const SimReport free = EngineSim(s).run();
    REQUIRE(free.wrong == "");
    for (const double deadline_ms : {0.001, 5.0, 50.0, 120.0, 400.0}) {
        s.clients[1].deadline_ms = deadline_ms;
        const SimReport report = EngineSim(s).run();
        INFO("deadline " << deadline_ms);
        REQUIRE(report.wrong == "");
        CHECK(report.errors[1] == errc::deadline_exceeded);
        CHECK(report.tokens[0] == free.tokens[0]);
        CHECK(report.tokens[2] == free.tokens[2]);
    }
}
