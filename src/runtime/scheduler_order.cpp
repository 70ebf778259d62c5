// Scheduler: the order of prompts. A key is a deadline plus a share of the prompt's own cost, fixed at arrival, so that every
// later arrival is in the end behind it; short prompts pass long ones the more the larger the backlog is. scheduling.md 4.5.
#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/scheduler_state.h"

namespace takt {
namespace {

constexpr double kLeastTilt = 2.0, kMostTilt = 4.0;
constexpr double kUrgentSteps = 2;
constexpr double kBeginFactor = 1.25;
constexpr double kLateKey = 1e19;       // behind every key that can be kept

}  // namespace

double Scheduler::Impl::remaining_ns(const Record& r) const {
    const int32_t context = r.state == State::prefilling ? r.computed : r.expected_cached;
    const int32_t target = r.state == State::prefilling ? r.target : r.request.prompt_tokens + r.outputs;
    return cost.prefill_ns(context, std::max(target - context, 1));
}

/// Its first token cannot come in time any more, at the share of the device that prefills have now. Before a prompt is begun
/// there must be some room to spare.
bool Scheduler::Impl::is_late(const Record& r, uint64_t now_ns) const {
    if (r.num_emitted > 0) return false;
    double left = remaining_ns(r) / share;
    if (r.state == State::waiting) left = kBeginFactor * left + step_ns;
    return static_cast<double>(now_ns) + left > static_cast<double>(r.key_ns);
}

/// Who had more than another one that waits now does not buy urgency or floors with its own queue.
bool Scheduler::Impl::is_favoured(const Record& r) const {
    return config.tenants.size() <= 1 || shares.counter(r.request.tenant_index) <= lowest_counter + kEqualSharesMs;
}

Scheduler::Impl::Rank Scheduler::Impl::rank(const Record& r, uint64_t now_ns) const {
    const auto arrival = static_cast<double>(r.request.arrival_ns);
    // Recompute first: its tokens already flow.
    if (config.first_come || r.num_emitted > 0) return {0, 0.0, arrival, r.request.id};
    const bool tenants = config.tenants.size() > 1;
    const double tenant = is_favoured(r) ? 0.0 : shares.counter(r.request.tenant_index);
    // A promise that is lost makes room for those of its tenant that can be kept. It has a share of its own (late_credit_ns), by age.
    if (is_late(r, now_ns)) return {tenants ? 2 : 3, tenant, kLateKey + arrival, r.request.id};
    const double left = remaining_ns(r);
    const double slack = static_cast<double>(r.key_ns) - static_cast<double>(now_ns) - left;
    const double soon = kUrgentSteps * step_ns;
    const bool urgent = slack < soon && left <= soon && is_favoured(r);
    return {urgent ? 1 : 2, tenant, static_cast<double>(r.key_ns) + tilt * r.work_ns, r.request.id};
}

/// The tilt rises with the backlog: work that waits over the time in which it was promised.
void Scheduler::Impl::refresh_order() {
    share = prefill_share();
    double backlog_ns = 0;
    lowest_counter = 1e300;
    const auto add = [&](const Record& r, double ns) {
        backlog_ns += ns;
        lowest_counter = std::min(lowest_counter, shares.counter(r.request.tenant_index));
    };
    for (const int32_t i : waiting) add(at(i), at(i).work_ns);
    for (const int32_t i : running) {
        if (at(i).remaining_prefill() > 0) add(at(i), remaining_ns(at(i)));
    }
    uint64_t promise_ns = UINT64_MAX;
    for (const SchedulerClass& c : config.classes) promise_ns = std::min(promise_ns, c.ttft_ns);
    const double load = backlog_ns / static_cast<double>(std::max<uint64_t>(promise_ns, 1));
    tilt = std::clamp(kLeastTilt + load, kLeastTilt, kMostTilt);
}

void Scheduler::Impl::order_prefills(uint64_t now_ns) {
    candidates.clear();
    for (const int32_t i : running) {
        const Record& r = at(i);
        if (r.remaining_prefill() > 0 && !r.is_paused) candidates.emplace_back(rank(r, now_ns), i);
    }
    std::sort(candidates.begin(), candidates.end());
    prefills.clear();
    for (const auto& candidate : candidates) prefills.push_back(candidate.second);
}

/// How fast prefills go beside the running decodes, against steps of the largest shape that hold nothing else.
double Scheduler::Impl::prefill_share() const {
    int32_t streams = 0;
    int64_t context = 0;
    uint64_t tightest = UINT64_MAX;
    for (const int32_t i : running) {
        const Record& r = at(i);
        if (r.state != State::decoding) continue;
        ++streams;
        context += r.computed + 1;
        tightest = std::min(tightest, itl_ns(r));
    }
    if (streams == 0) return 1.0;
    const auto step = static_cast<double>(tightest);
    const double rest = step - host.ns() - cost.snapshot().kd_ns * static_cast<double>(context);
    const double rows = cost.rows_within(rest / cost.shared_margin()) - streams;
    const double full = cost.prefill_ns(0, config.row_ladder.back()) / config.row_ladder.back();
    return std::clamp(rows * full / step, 0.05, 1.0);
}

/// Work that stands before the request and its own, over the share of a step that prefills may take now; and where slots lack,
/// the time until enough of them are given up. Who would be late at its turn goes behind, and costs nothing here.
double Scheduler::Impl::wait_estimate_ns(const Record& r, uint64_t now_ns) const {
    double floor_ns = 0;
    const Rank own = rank(r, now_ns);
    std::vector<std::pair<Rank, int32_t>> before;
    for (const int32_t i : running) {
        const Record& other = at(i);
        if (other.remaining_prefill() == 0) continue;
        if (Rank its = rank(other, now_ns); its < own) {
            before.emplace_back(its, i);
        } else {
            floor_ns = std::max(floor_ns, std::min(remaining_ns(other), kFloorShare * r.work_ns));   // one of them is the oldest
        }
    }
    for (const int32_t i : waiting) {
        if (Rank its = rank(at(i), now_ns); its < own) before.emplace_back(its, i);
    }
    std::sort(before.begin(), before.end());
    double ahead = 0;
    int32_t num_ahead = 0;
    for (const auto& [its, i] : before) {
        const Record& other = at(i);
        const bool waits = other.state == State::waiting;
        const double left = waits ? other.work_ns : remaining_ns(other);
        const double end = static_cast<double>(now_ns) + (ahead + (waits ? kBeginFactor : 1.0) * left) / share;
        if (other.num_emitted == 0 && !config.first_come && end > static_cast<double>(other.key_ns)) continue;
        ahead += left;
        num_ahead += waits ? 1 : 0;
    }
    ahead += r.work_ns;
    double wait = (ahead + floor_ns) / share;
    const auto yields = [&](int32_t i) { return may_yield(at(i), class_of(r).weight); };
    const auto num_yielding = std::count_if(running.begin(), running.end(), yields);
    const int32_t lacking = num_ahead + 1 - static_cast<int32_t>(free_slots.size()) - static_cast<int32_t>(num_yielding);
    if (lacking > 0 && !running.empty()) {
        double tightest = 1e18;
        for (const int32_t i : running) tightest = std::min(tightest, static_cast<double>(itl_ns(at(i))));
        const double life = expected_outputs * std::min(tightest, std::max(step_ns, 1e6));   // in steps with prompt rows
        wait += life * lacking / static_cast<double>(config.max_running);
    }
    return wait;
}

}  // namespace takt
