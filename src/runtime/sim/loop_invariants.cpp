// LoopInvariants: see the header.
#include "runtime/sim/loop_invariants.h"

#include <cmath>

#include "runtime/budget.h"

namespace takt::sim {
namespace {

constexpr size_t kWindow = 64;           // steps between two updates of the trim
constexpr uint64_t kTurnsAllowed = 8;    // that a trim may turn before the share of turns says anything

}  // namespace

/// 19: the flag is that of the last whole window. Of any 128 steps one whole window is the latest: with at most 31 steps of others it
/// has more than half infeasible ones, with at most 32 infeasible ones it has no more than half.
void LoopInvariants::check_flag(bool infeasible, const Scheduler& scheduler) {
    infeasible_.push_back(infeasible);
    num_infeasible_ += infeasible ? 1 : 0;
    if (infeasible_.size() > 2 * kWindow) {
        num_infeasible_ -= infeasible_.front() ? 1 : 0;
        infeasible_.pop_front();
    }
    if (infeasible_.size() < 2 * kWindow) return;
    constexpr auto kHalf = static_cast<int32_t>(kWindow / 2);
    if (num_infeasible_ > 3 * kHalf && !scheduler.infeasible()) fail("invariant 19: infeasible for two windows and not said");
    if (num_infeasible_ <= kHalf && scheduler.infeasible()) fail("invariant 19: said to be infeasible and is not");
}

/// 18, 19: the trim holds still while decoding alone breaks the promise, and does not swing.
void LoopInvariants::check_trim(double trim) {
    const int direction = trim > trim_ ? 1 : trim < trim_ ? -1 : last_direction_;
    if (direction != last_direction_ && last_direction_ != 0) ++num_turns_;
    last_direction_ = direction;
    trim_ = trim;
    if (num_turns_ > kTurnsAllowed && num_turns_ * 4 > num_steps_ / kWindow) fail("invariant 18: the trim swings");
}

void LoopInvariants::planned(const StepPlan& plan, bool prompts_wait, const Scheduler& scheduler, const CostModel& cost) {
    if (plan.empty()) return;
    ++num_steps_;
    const bool moved = scheduler.budget_trim() != trim_;
    if (moved && scheduler.infeasible()) fail("invariant 19: the trim moves though decoding alone breaks the promise");
    check_trim(scheduler.budget_trim());
    StepFeatures decode;
    for (const PlanSegment& s : plan.segments) {
        if (s.is_decode) decode.add_decode(s.token_begin);
    }
    decode.one_off_ns = plan.features.one_off_ns;
    decode.padded_rows = decode.rows > 0 ? cost.padded_rows(decode.rows) : 0;
    check_flag(!fixed_chunk_ && prompts_wait && decode.rows > 0 && cost.bound_ns(decode) > plan.budget_ns, scheduler);
    steps_without_prompt_ = prompts_wait && plan.features.prefill_segments == 0 ? steps_without_prompt_ + 1 : 0;
    if (steps_without_prompt_ > most_duty_steps(cost)) {
        fail("invariant 8: no prompt has moved for " + std::to_string(steps_without_prompt_) + " steps");
    }
}

/// 18: once the loop has had its steps to follow, no more than two budgets in a hundred are missed; chance is given four deviations.
void LoopInvariants::applied(const StepPlan& plan, uint64_t device_ns) {
    const StepFeatures& f = plan.features;
    if (fixed_chunk_ || plan.at_floor || f.decode_rows == 0 || f.prefill_segments == 0 || device_ns == 0) return;
    if (++num_mixed_ <= kSettling) return;
    num_missed_ += device_ns > plan.budget_ns ? 1 : 0;
    const double fair = kMissShare * static_cast<double>(num_mixed_ - kSettling);
    if (static_cast<double>(num_missed_) > fair + 4 * std::sqrt(fair) + 2) {
        fail("invariant 18: " + std::to_string(num_missed_) + " of " + std::to_string(num_mixed_ - kSettling) + " budgets missed");
    }
}

}  // namespace takt::sim
