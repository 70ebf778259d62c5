// Scheduler: what each prompt is asked in each plan, waiting ones by the thousand: how long it takes yet, whether its promise is lost, its
// place in the order. Inline for that; scheduler_order.cpp says what the order is for.
#pragma once

#include <algorithm>

#include "runtime/scheduler_state.h"

namespace takt {

constexpr double kUrgentSteps = 2;
constexpr double kBeginFactor = 1.25;   // before a prompt is begun there must be some room to spare
constexpr double kLateKey = 1e19;       // behind every key that can be kept

inline double Scheduler::Impl::remaining_ns(const Record& r) const {
    const int32_t context = r.state == State::prefilling ? r.computed : r.expected_cached;
    const int32_t target = r.state == State::prefilling ? r.target : r.request.prompt_tokens + r.outputs;
    return cost.prefill_ns(context, std::max(target - context, 1));
}

/// Its first token cannot come in time any more, at the share of the device that prefills have now. `left_ns`: what it takes yet.
inline bool Scheduler::Impl::is_late(const Record& r, double left_ns, uint64_t now_ns) const {
    if (r.num_emitted > 0) return false;
    double left = left_ns / share;
    if (r.state == State::waiting) left = kBeginFactor * left + step_ns;
    return static_cast<double>(now_ns) + left > static_cast<double>(r.key_ns);
}

/// Who had more than another one that waits now does not buy urgency or floors with its own queue.
inline bool Scheduler::Impl::is_favoured(const Record& r) const {
    return config.tenants.size() <= 1 || shares.counter(r.request.tenant_index) <= lowest_counter + kEqualSharesMs;
}

/// Its place, where it is known what it takes yet and whether its promise is lost.
inline SchedulerRank Scheduler::Impl::rank(const Record& r, double left_ns, bool late, uint64_t now_ns) const {
    const auto arrival = static_cast<double>(r.request.arrival_ns);
    // Recompute first: its tokens already flow.
    if (config.first_come || r.num_emitted > 0) return {0, 0.0, arrival, r.request.id};
    const bool favoured = is_favoured(r);
    const double tenant = favoured ? 0.0 : shares.counter(r.request.tenant_index);
    // A promise that is lost makes room for those of its tenant that can be kept. It has a share of its own (late_credit_ns), by age.
    if (late) return {config.tenants.size() > 1 ? 2 : 3, tenant, kLateKey + arrival, r.request.id};
    const double slack = static_cast<double>(r.key_ns) - static_cast<double>(now_ns) - left_ns;
    const double soon = kUrgentSteps * step_ns;
    const bool urgent = slack < soon && left_ns <= soon && favoured;
    return {urgent ? 1 : 2, tenant, static_cast<double>(r.key_ns) + tilt * r.work_ns, r.request.id};
}

inline SchedulerRank Scheduler::Impl::rank(const Record& r, uint64_t now_ns) const {
    const double left = remaining_ns(r);
    return rank(r, left, is_late(r, left, now_ns), now_ns);
}

}  // namespace takt
