// OrderInvariant: see the header.
#include "runtime/sim/order_invariant.h"

#include <algorithm>
#include <cmath>

namespace takt::sim {
namespace {

constexpr int32_t kLeastSlice = 16;       // what a prompt gets that had nothing for long
constexpr double kFloorShare = 0.25;      // of a step's prompt rows that are the oldest prompt's
constexpr double kLeastShare = 0.05;      // of the device that prompts have, as the scheduler judges lateness
constexpr double kTiltDoubt = 1.0;        // key against key: the same work, weighed by a tilt of up to 4, costed a little later
constexpr double kSpareNs = 200e6;

}  // namespace

void OrderInvariant::accepted(const SchedulerRequest& request, int32_t cached) {
    const SchedulerClass& sla = config_.classes[static_cast<size_t>(request.class_index)];
    if (config_.first_come || sla.on_miss == SchedulerClass::OnMiss::demote) return;   // a demoted one has another deadline
    Prompt prompt;
    prompt.class_index = request.class_index;
    prompt.tenant_index = request.tenant_index;
    prompt.size = request.prompt_tokens;
    prompt.cached = cached;
    prompt.key_ns = request.arrival_ns + (request.ttft_ns != 0 ? request.ttft_ns : sla.ttft_ns);
    prompt.itl_ns = request.itl_ns;
    prompt.arrival_ns = request.arrival_ns;
    prompt.is_single = request.max_tokens <= 1;
    prompts_[request.id] = prompt;
}

/// The order of a and b can be no other: equals in all but the deadline, and a's promise can be kept whatever share prompts have.
bool OrderInvariant::must_precede(const Prompt& a, const Prompt& b, uint64_t start_ns, const CostModel& cost) const {
    if (a.class_index != b.class_index || a.tenant_index != b.tenant_index || a.size != b.size || a.cached != b.cached) return false;
    if (a.itl_ns != b.itl_ns || a.is_single != b.is_single || a.computed != b.computed) return false;
    const double left = cost.prefill_ns(a.computed, std::max(a.size - a.computed, 1));
    const auto key = static_cast<double>(a.key_ns);
    if (key + kTiltDoubt * left >= static_cast<double>(b.key_ns)) return false;
    return key > static_cast<double>(start_ns) + 1.25 * left / kLeastShare + kSpareNs;
}

void OrderInvariant::judge(RequestId later, bool was_admitted, int32_t floor, uint64_t start_ns, const CostModel& cost) {
    const Prompt& b = prompts_.at(later);
    for (const auto& [id, a] : prompts_) {
        if (id == later || !must_precede(a, b, start_ns, cost)) continue;
        if (was_admitted && !a.is_in) {
            wrong_ = "invariant 14: request " + std::to_string(later) + " is let in before " + std::to_string(id) + ", due earlier";
        } else if (!was_admitted && a.is_in && b.rows > floor && a.rows < std::min(b.rows, a.size - a.computed)) {
            wrong_ = "invariant 14: request " + std::to_string(later) + " gets " + std::to_string(b.rows) + " rows, " + std::to_string(id) +
                     ", due earlier, " + std::to_string(a.rows);
        }
    }
}

void OrderInvariant::planned(const StepPlan& plan, uint64_t start_ns, const CostModel& cost) {
    if (!wrong_.empty()) return;
    for (const RequestId id : plan.preempted) disturbed(id);
    for (const RequestId id : plan.admitted) {
        const auto at = prompts_.find(id);
        if (at == prompts_.end()) continue;
        at->second.is_in = true;
        at->second.computed = at->second.cached;
    }
    int32_t rows = 0;
    for (const PlanSegment& s : plan.segments) {
        if (s.is_decode) continue;
        rows += s.num_rows;
        const auto at = prompts_.find(s.request);
        if (at == prompts_.end()) continue;
        // Its cache holds more or less by now: another size than the others'.
        if (s.token_begin != at->second.computed) {
            prompts_.erase(at);
        } else {
            at->second.rows = s.num_rows;
        }
    }
    for (const RequestId id : plan.admitted) {
        if (prompts_.contains(id)) judge(id, true, 0, start_ns, cost);
    }
    const int32_t floor = std::max(kLeastSlice, static_cast<int32_t>(std::ceil(kFloorShare * rows)));
    for (const PlanSegment& s : plan.segments) {
        if (!s.is_decode && prompts_.contains(s.request)) judge(s.request, false, floor, start_ns, cost);
    }
    for (const PlanSegment& s : plan.segments) {
        const auto at = prompts_.find(s.request);
        if (at == prompts_.end()) continue;
        at->second.computed += at->second.rows;
        at->second.rows = 0;
        if (s.samples) prompts_.erase(at);
    }
}

}  // namespace takt::sim
