// Invariants: what every plan must keep (scheduling.md section 5), held against it after each step. It sees plans, outcomes and
// the scheduler's public face only, so that the scheduler's simulation and the whole engine's can share it. Pure; a wrong plan
// is told as text, with the last plans before it.
// Here: 1 books, 2 slots, 3 tokens, 4 budget, 7 and 8 progress, 10 preemption, 15 shares, 16 shapes, 17 model, 20 idle; in
// loop_invariants.h 18 and 19, in order_invariant.h 14; in sim_text.h 11, 12.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/cost_model.h"
#include "runtime/fairness.h"
#include "runtime/kv.h"
#include "runtime/scheduler.h"
#include "runtime/sim/loop_invariants.h"
#include "runtime/sim/order_invariant.h"

namespace takt::sim {

class Invariants {
public:
    /// The books are proved in every `books_stride`-th plan: with many blocks that proof is what costs.
    Invariants(const SchedulerConfig& config, const CostModel& cost, uint64_t books_stride = 1)
        : config_(config),
          cost_(cost),
          books_stride_(books_stride),
          shares_(weights_of(config)),
          loop_(config.fixed_chunk),
          order_(config) {}

    /// A request was accepted; `prompt_tokens` may be 0 where nothing is known of it. `cached`: as its admission told.
    void accepted(const SchedulerRequest& request, int32_t cached = 0);
    /// It left, however.
    void left(RequestId id);
    /// A reader stopped or went on: a paused request may be left out.
    void paused(RequestId id, bool is_paused);
    /// The scheduler decided this plan for `start_ns`, and nothing else since.
    void planned(const StepPlan& plan, uint64_t start_ns, const Scheduler& scheduler);
    /// Its outcome was applied.
    void applied(const StepPlan& plan, uint64_t device_ns, const Scheduler& scheduler);

    /// The first broken rule, with the plans up to it; empty: none.
    [[nodiscard]] const std::string& wrong() const { return wrong_; }
    void fail(const std::string& what);
    /// The device's speed changes from now on: 18 gives the loop its steps to follow.
    void disturbed() { loop_.disturbed(); }

private:
    struct Live {
        int32_t prompt = 0;
        int32_t tenant = 0;
        double class_weight = 1;
        bool has_sampled = false;    // ever
        int32_t next = -1;           // position of its next row; -1: not known (just admitted)
        int32_t num_preemptions = 0;
        int32_t left_out = 0;        // plans in a row without a row of it, though it decodes
        int32_t stalled = 0;         // plans in a row without a prefill row of it, though it is owed some
        bool decodes = false, runs = false, is_paused = false;
        bool has_row = false;        // in the plan at hand
    };
    struct Payer {
        int32_t tenant = 0;
        double class_weight = 1;
    };
    void fail(int number, const std::string& what);
    void check_shape(const StepPlan& plan);
    void check_budget(const StepPlan& plan);
    void check_segments(const StepPlan& plan);
    void check_progress(const StepPlan& plan);
    void check_shares(const StepPlan& plan);
    void check_model(const Scheduler& scheduler);
    static std::vector<double> weights_of(const SchedulerConfig& config);
    void remember(const StepPlan& plan);

    const SchedulerConfig& config_;
    const CostModel& cost_;
    const uint64_t books_stride_;
    FairShares shares_;              // the same rule, from plans and outcomes only
    LoopInvariants loop_;
    OrderInvariant order_;
    std::unordered_map<RequestId, Live> live_;   // looked up; iterated only to find what is wrong
    std::deque<std::vector<Payer>> payers_;      // of the steps in flight: who pays also when the request has left
    std::deque<std::string> last_plans_;
    uint64_t num_plans_ = 0;
    std::string wrong_;
};

/// One line of a plan, for people.
std::string describe(const StepPlan& plan);

}  // namespace takt::sim
