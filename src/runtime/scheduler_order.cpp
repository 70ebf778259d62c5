// Scheduler: the order of prompts. A key is a deadline plus a share of the prompt's own cost, fixed at arrival, so that every
// later arrival is in the end behind it; short prompts pass long ones the more the larger the backlog is. scheduling.md 4.5.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "runtime/scheduler_rank.h"

namespace takt {
namespace {

constexpr double kLeastTilt = 2.0, kMostTilt = 4.0;
constexpr double kSlotDoubt = 0.8;    // standard deviations of how many answers have ended by some time

}  // namespace

/// The tilt rises with the backlog: work that waits over the time in which it was promised.
void Scheduler::Impl::refresh_order() {
    share = prefill_share();
    uint64_t promise_ns = UINT64_MAX;
    for (const SchedulerClass& c : config.classes) promise_ns = std::min(promise_ns, c.ttft_ns);
    const auto promise = static_cast<double>(std::max<uint64_t>(promise_ns, 1));
    lowest_counter = 1e300;
    for (size_t t = 0; t < tenant_waiting.size(); ++t) {
        if (tenant_waiting[t] > 0) lowest_counter = std::min(lowest_counter, shares.counter(static_cast<int32_t>(t)));
    }
    double backlog_ns = 0;
    for (const int32_t i : waiting) {
        backlog_ns += at(i).work_ns;
        if (kLeastTilt + backlog_ns / promise >= kMostTilt) break;   // more work makes no more of it
    }
    for (const int32_t i : running) {
        const Record& r = at(i);
        if (r.remaining_prefill() == 0) continue;
        backlog_ns += remaining_ns(r);
        lowest_counter = std::min(lowest_counter, shares.counter(r.request.tenant_index));
    }
    tilt = std::clamp(kLeastTilt + backlog_ns / promise, kLeastTilt, kMostTilt);
}

void Scheduler::Impl::order_prefills(uint64_t now_ns) {
    candidates.clear();
    for (const int32_t i : running) {
        const Record& r = at(i);
        if (r.remaining_prefill() > 0 && !r.is_paused) candidates.push_back({rank(r, now_ns), i});
    }
    std::sort(candidates.begin(), candidates.end());
    prefills.clear();
    for (const SchedulerCandidate& candidate : candidates) prefills.push_back(candidate.record);
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
    std::vector<SchedulerCandidate> before;
    for (const int32_t i : running) {
        const Record& other = at(i);
        if (other.remaining_prefill() == 0) continue;
        if (Rank its = rank(other, now_ns); its < own) {
            before.push_back({its, i});
        } else {
            floor_ns = std::max(floor_ns, std::min(remaining_ns(other), kFloorShare * r.work_ns));   // one of them is the oldest
        }
    }
    for (const int32_t i : waiting) {
        if (Rank its = rank(at(i), now_ns); its < own) before.push_back({its, i});
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
        // So many answers end by chance, the first of them soon: what is sure is by a deviation or so less than the mean.
        const double sure = std::max(0.0, lacking - kSlotDoubt * std::sqrt(lacking));
        wait += answer_ns() * sure / static_cast<double>(config.max_running);
    }
    return wait;
}

}  // namespace takt
