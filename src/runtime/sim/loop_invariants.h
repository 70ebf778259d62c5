// LoopInvariants: what the closed loop must keep (scheduling.md section 5, numbers 8, 18 and 19), held against it after each step from
// plans, device times and the scheduler's public face only. Pure; any thread that owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "runtime/cost_model.h"
#include "runtime/scheduler.h"

namespace takt::sim {

class LoopInvariants {
public:
    explicit LoopInvariants(bool fixed_chunk) : fixed_chunk_(fixed_chunk) {}

    /// The scheduler decided this plan, and nothing else since. `prompts_wait`: an admitted prompt of somebody who reads is unfinished.
    void planned(const StepPlan& plan, bool prompts_wait, const Scheduler& scheduler, const CostModel& cost);
    /// The step took so long on the device.
    void applied(const StepPlan& plan, uint64_t device_ns);
    /// The device's speed changes now: the loop has kSettling steps to follow.
    void disturbed() { num_mixed_ = num_missed_ = 0; }

    /// The first broken rule; empty: none.
    [[nodiscard]] const std::string& wrong() const { return wrong_; }

    static constexpr uint64_t kSettling = 300;   ///< mixed steps until the share of missed budgets is judged
    static constexpr double kMissShare = 0.02;

private:
    void fail(const std::string& what) { if (wrong_.empty()) wrong_ = what; }
    void check_flag(bool infeasible, const Scheduler& scheduler);
    void check_trim(double trim);

    const bool fixed_chunk_;
    double trim_ = 1;
    int last_direction_ = 0;
    uint64_t num_steps_ = 0, num_turns_ = 0;
    std::deque<bool> infeasible_;        // of the last two windows' steps
    int32_t num_infeasible_ = 0;
    int32_t steps_without_prompt_ = 0;
    uint64_t num_mixed_ = 0, num_missed_ = 0;
    std::string wrong_;
};

}  // namespace takt::sim
