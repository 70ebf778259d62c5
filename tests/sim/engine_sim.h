// EngineSim: the server's own EngineCore on the virtual clock and the sim device, cranked by hand, with the clients of a case.
// Handlers run one at a time, so that a cancel can come between any two of them. Single-threaded; the same case gives the same
// plans, bit for bit.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/sim_model.h"
#include "runtime/clock.h"
#include "runtime/engine_core.h"
#include "runtime/sim/random.h"
#include "sim/plan_checker.h"
#include "sim/sim_case.h"
#include "sim/sim_reader.h"

namespace takt::engine_sim {

using sim::Random;

struct SimReport {
    std::string wrong;               ///< the first broken invariant; empty: none
    std::string last_plans;          ///< if something is wrong
    uint64_t digest = 0;             ///< of all plans and of how every request ended
    uint64_t num_steps = 0, num_replayed = 0;
    uint64_t num_handlers = 0;       ///< gaps between handlers: the places where a cancel may come
    uint64_t end_ns = 0;
    int32_t num_refused = 0, num_cancelled = 0, num_errors = 0, num_whole = 0;
    int32_t num_preemptions = 0, most_preemptions = 0, num_paused = 0;
    int64_t num_cached_tokens = 0;
    bool device_was_lost = false;
    std::vector<std::vector<int32_t>> tokens;      ///< by client
    std::vector<std::optional<FinishReason>> reasons;
    std::vector<errc> errors;
    std::vector<uint64_t> end_of_client_ns;        ///< when it saw its end; 0: never
};

class EngineSim {
public:
    /// `spec` outlives the simulation.
    explicit EngineSim(const SimCase& spec);
    ~EngineSim();
    EngineSim(const EngineSim&) = delete;
    EngineSim& operator=(const EngineSim&) = delete;

    /// From the first arrival until everybody has left and the device is still. Once.
    SimReport run();

    // For the readers.
    [[nodiscard]] EngineCore& core() { return *core_; }
    [[nodiscard]] PlanChecker& checker() { return *checker_; }
    [[nodiscard]] net::io_context& io() { return io_; }
    [[nodiscard]] const SimCase& spec() const { return spec_; }
    [[nodiscard]] uint64_t now_ns() const { return clock_.now_ns(); }
    /// Runs `event` when the clock has come to `ns`.
    void at(uint64_t ns, std::function<void()> event) { events_.emplace(std::pair(ns, next_event_++), std::move(event)); }

    /// Beside the checks: called after every step was planned, and after it was applied.
    std::function<void(const StepPlan&)> on_plan;
    std::function<void(const StepPlan&, const StepOutcome&)> on_applied;
    /// Proof that the readers' checks can fail: a chunk as they are told it; false: it is lost on its way.
    std::function<bool(RequestId, Chunk&)> tell_chunk;

private:
    void build();
    [[nodiscard]] CoreOptions options() const;
    void planned(const StepPlan& plan);
    void applied(const StepPlan& plan, const StepOutcome& outcome);
    bool turn();
    bool run_events();
    void run_handlers(bool& progressed);
    void check_cancelled();
    bool advance();
    [[nodiscard]] bool is_over() const;
    void fail(const std::string& what) { if (wrong_.empty()) wrong_ = what; }
    void check_end();
    SimReport report();

    const SimCase& spec_;
    VirtualClock clock_;
    net::io_context io_{1};
    net::executor_work_guard<net::io_context::executor_type> work_{io_.get_executor()};
    std::optional<Tokenizer> tokenizer_;
    std::unique_ptr<Device> device_;
    std::unique_ptr<SimModel> model_;
    std::unique_ptr<EngineCore> core_;
    std::unique_ptr<PlanChecker> checker_;
    std::vector<std::unique_ptr<SimReader>> readers_;
    std::map<std::pair<uint64_t, uint64_t>, std::function<void()>> events_;
    uint64_t next_event_ = 0;
    Random random_;
    uint64_t num_steps_ = 0, num_handlers_ = 0;
    int32_t num_paused_ = 0;
    int32_t num_idle_turns_ = 0;
    bool drain_began_ = false, drain_ended_ = false;
    std::string wrong_;
};

}  // namespace takt::engine_sim
