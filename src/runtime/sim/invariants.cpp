// Invariants: see the header. Numbers in comments are those of scheduling.md section 5.
#include "runtime/sim/invariants.h"

#include <algorithm>

#include "runtime/budget.h"

namespace takt::sim {
namespace {

constexpr size_t kRemembered = 50;
constexpr int32_t kMaxLeftOut = 16;     // 7: skip credits end after 8 steps; a wait for blocks on their way back adds a few
constexpr int32_t kLeastSlice = 16;     // 15: what a prompt gets that had nothing for long
constexpr uint64_t kMostIdleNs = 100'000'000;   // 20
constexpr int32_t kMaxStalled = 32;     // 8: in floors, which go to one prefill at a time

std::string name_of(RequestId id) { return "request " + std::to_string(id); }

}  // namespace

std::string describe(const StepPlan& plan) {
    std::string out = "step " + std::to_string(plan.step) + ": " + std::to_string(plan.features.decode_rows) + " decode rows";
    for (const PlanSegment& s : plan.segments) {
        if (s.is_decode) continue;
        out += ", " + std::to_string(s.request) + "[" + std::to_string(s.token_begin) + "+" + std::to_string(s.num_rows) +
               (s.samples ? " last]" : "]");
    }
    out += ", shape " + std::to_string(plan.features.padded_rows) + ", budget " + std::to_string(plan.budget_ns / 1000) +
           " us, predicted " + std::to_string(plan.predicted_ns / 1000) + " us" + (plan.at_floor ? ", floor" : "");
    for (const RequestId id : plan.admitted) out += ", admits " + std::to_string(id);
    for (const RequestId id : plan.preempted) out += ", preempts " + std::to_string(id);
    return out;
}

void Invariants::fail(const std::string& what) {
    if (!wrong_.empty()) return;
    wrong_ = what + "\nlast plans:";
    for (const std::string& plan : last_plans_) wrong_ += "\n  " + plan;
}

void Invariants::fail(int number, const std::string& what) { fail("invariant " + std::to_string(number) + ": " + what); }

std::vector<double> Invariants::weights_of(const SchedulerConfig& config) {
    std::vector<double> weights;
    for (const SchedulerTenant& tenant : config.tenants) weights.push_back(tenant.weight);
    return weights;
}

void Invariants::accepted(const SchedulerRequest& request, int32_t cached) {
    Live& live = live_[request.id];
    live = Live{};
    live.prompt = request.prompt_tokens;
    live.tenant = request.tenant_index;
    live.class_weight = config_.classes[static_cast<size_t>(request.class_index)].weight;
    shares_.enter(live.tenant);
    order_.accepted(request, cached);
}

void Invariants::left(RequestId id) {
    order_.left(id);
    const auto at = live_.find(id);
    if (at == live_.end()) return;
    if (!at->second.decodes) shares_.leave(at->second.tenant);
    live_.erase(at);
}

void Invariants::paused(RequestId id, bool is_paused) {
    order_.disturbed(id);
    const auto at = live_.find(id);
    if (at != live_.end()) at->second.is_paused = is_paused;
}

void Invariants::remember(const StepPlan& plan) {
    last_plans_.push_back(describe(plan));
    if (last_plans_.size() > kRemembered) last_plans_.pop_front();
}

void Invariants::check_shape(const StepPlan& plan) {   // 16
    const StepFeatures& f = plan.features;
    int32_t rows = 0, decodes = 0, segments = 0, samples = 0;
    for (const PlanSegment& s : plan.segments) {
        rows += s.num_rows;
        decodes += s.is_decode ? 1 : 0;
        segments += s.is_decode ? 0 : 1;
        samples += s.samples ? 1 : 0;
    }
    if (rows != f.rows || decodes != f.decode_rows || segments != f.prefill_segments) fail(2, "rows and features disagree");
    if (samples != plan.num_samples || plan.padded_samples < samples) fail(16, "samples and features disagree");
    if (f.padded_rows < rows || cost_.padded_rows(rows) != f.padded_rows) fail(16, "the shape is not one of the ladder");
}

void Invariants::check_budget(const StepPlan& plan) {   // 4, 20
    const StepFeatures& f = plan.features;
    if (config_.fixed_chunk || plan.at_floor || f.prefill_segments == 0) return;
    if (f.decode_rows == 0) {
        uint64_t idle_ns = kMostIdleNs;
        for (const SchedulerClass& c : config_.classes) idle_ns = std::min(idle_ns, c.ttft_ns / 4);
        if (cost_.bound_ns(f) > idle_ns) fail(20, "a step without decode rows lasts longer than an arrival may wait");
        return;
    }
    if (cost_.bound_ns(f) > plan.budget_ns) fail(4, "the plan breaks its budget and does not say so");
}

void Invariants::check_model(const Scheduler& scheduler) {   // 17
    const CostSnapshot cost = cost_.snapshot();
    for (const double q : cost.margin) {
        if (!(q >= 1 && q <= 2)) fail(17, "a margin is out of [1, 2]");
    }
    for (const double slope : {cost.kd_ns, cost.ka_ns, cost.ks_ns}) {
        if (!(slope >= 0 && slope < 1e12)) fail(17, "a slope is negative or not finite");
    }
    if (!(scheduler.budget_trim() >= 0.5 && scheduler.budget_trim() <= 1)) fail(17, "the trim is out of [0.5, 1]");
}

void Invariants::check_segments(const StepPlan& plan) {   // 2, 3
    std::vector<uint8_t> slots(static_cast<size_t>(config_.max_running), 0);
    bool seen_prefill = false;
    for (const PlanSegment& s : plan.segments) {
        if (s.slot < 0 || s.slot >= config_.max_running || slots[static_cast<size_t>(s.slot)]++ != 0) fail(2, "a slot twice");
        seen_prefill = seen_prefill || !s.is_decode;
        if (s.is_decode && seen_prefill) fail(2, "a decode row behind prefill rows");
        const auto at = live_.find(s.request);
        if (at == live_.end()) {
            fail(3, "a row of " + name_of(s.request) + ", which is not live");
            continue;
        }
        Live& live = at->second;
        live.has_row = true;
        if (live.is_paused) fail(3, name_of(s.request) + " is paused and has a row");
        if (live.next >= 0 && s.token_begin != live.next) fail(3, name_of(s.request) + ": rows are not consecutive");
        if (s.is_decode && (s.num_rows != 1 || !live.decodes)) fail(3, name_of(s.request) + " decodes before its prompt is done");
        if (!s.is_decode && live.decodes) fail(3, name_of(s.request) + ": prefill rows after its prompt was done");
        live.next = s.token_begin + s.num_rows;
        if (s.samples && !s.is_decode && live.prompt > 0 && live.next < live.prompt) fail(3, "a prompt is sampled before its end");
        if (s.samples && !live.decodes) shares_.leave(live.tenant);
        live.has_sampled = live.has_sampled || s.samples;
        live.decodes = live.decodes || s.samples;
    }
}

/// 15: no rows but a least slice for a tenant that had more, while a prompt of one that had less waits for some.
void Invariants::check_shares(const StepPlan& plan) {
    if (config_.tenants.size() < 2 || config_.first_come) return;
    double lowest = 1e300;
    for (int32_t t = 0; t < shares_.num_tenants(); ++t) {
        if (shares_.is_active(t)) lowest = std::min(lowest, shares_.counter(t));
    }
    const double equal = lowest + kEqualSharesMs;
    const auto left_out = [&](const auto& entry) {
        const Live& live = entry.second;
        const bool has_row = std::any_of(plan.segments.begin(), plan.segments.end(),
                                         [&](const PlanSegment& s) { return s.request == entry.first; });
        return live.runs && !live.decodes && !live.is_paused && !has_row && shares_.counter(live.tenant) <= equal;
    };
    for (const PlanSegment& s : plan.segments) {
        const auto at = live_.find(s.request);
        if (s.is_decode || s.num_rows <= kLeastSlice || at == live_.end() || at->second.has_sampled) continue;   // recompute goes first
        if (shares_.counter(at->second.tenant) <= equal + 1) continue;
        if (std::any_of(live_.begin(), live_.end(), left_out)) fail(15, name_of(s.request) + " has rows that are a poorer tenant's");
    }
}

void Invariants::check_progress(const StepPlan& plan) {   // 7, 8
    (void)plan;
    const int32_t most_stalled = kMaxStalled * (config_.rows_are_data ? kLateSliceSteps : kMaxDutySteps);
    for (auto& [id, live] : live_) {
        const bool waits = live.runs && !live.is_paused && !live.has_row;
        live.left_out = waits && live.decodes ? live.left_out + 1 : 0;
        live.stalled = waits && !live.decodes ? live.stalled + 1 : 0;
        if (live.left_out > kMaxLeftOut) fail(7, name_of(id) + " decodes and is left out");
        if (live.stalled > most_stalled && !config_.fixed_chunk) fail(8, name_of(id) + " is admitted and does not advance");
        live.has_row = false;
    }
}

void Invariants::planned(const StepPlan& plan, uint64_t start_ns, const Scheduler& scheduler) {
    ++num_plans_;
    remember(plan);
    bool squeezed = false;
    for (const RequestId id : plan.preempted) {
        const auto at = live_.find(id);
        if (at == live_.end() || !at->second.runs) {
            fail(10, name_of(id) + " is preempted and did not run");
            continue;
        }
        if (at->second.decodes) shares_.enter(at->second.tenant);
        at->second.runs = at->second.decodes = false;
        at->second.next = -1;
        if (at->second.is_paused) continue;   // its own reader's doing: it counts for nothing
        squeezed = true;
        if (++at->second.num_preemptions > config_.max_preemptions) fail(10, name_of(id) + " is preempted too often");   // 10
    }
    for (const RequestId id : plan.admitted) {
        const auto at = live_.find(id);
        if (at == live_.end() || at->second.runs) {
            fail(3, name_of(id) + " is admitted twice or not live");
            continue;
        }
        at->second.runs = true;
        at->second.decodes = false;
        at->second.next = scheduler.cached_tokens(id);
        for (const KvCopy& copy : plan.copies) {   // its KV came back from the host's memory
            if (copy.request == id && !copy.is_out) at->second.next = copy.first_token + copy.num_tokens;
        }
    }
    if (squeezed && !plan.admitted.empty()) fail(10, "an admission in a step that preempted");
    order_.planned(plan, start_ns, cost_);
    if (!order_.wrong().empty()) fail(order_.wrong());
    if (plan.empty()) return;
    const auto waits = [](const auto& entry) { return entry.second.runs && !entry.second.decodes && !entry.second.is_paused; };
    loop_.planned(plan, std::any_of(live_.begin(), live_.end(), waits), scheduler, cost_);
    if (!loop_.wrong().empty()) fail(loop_.wrong());
    check_shape(plan);
    check_budget(plan);
    check_model(scheduler);
    check_shares(plan);
    payers_.emplace_back();
    for (const PlanSegment& s : plan.segments) {
        const auto at = live_.find(s.request);
        payers_.back().push_back(at == live_.end() ? Payer{} : Payer{at->second.tenant, at->second.class_weight});
    }
    check_segments(plan);
    check_progress(plan);
    if (num_plans_ % books_stride_ != 0) return;
    if (std::string books = scheduler.check_integrity(); !books.empty()) fail(1, books);   // 1
}

void Invariants::applied(const StepPlan& plan, uint64_t device_ns, const Scheduler& scheduler) {
    const double row_ms = static_cast<double>(device_ns) * 1e-6 / std::max(plan.features.rows, 1);
    for (size_t i = 0; i < plan.segments.size() && i < payers_.front().size(); ++i) {
        const Payer& payer = payers_.front()[i];
        shares_.charge(payer.tenant, row_ms * plan.segments[i].num_rows, payer.class_weight);
    }
    payers_.pop_front();
    loop_.applied(plan, device_ns);
    if (!loop_.wrong().empty()) fail(loop_.wrong());
    if (num_plans_ % books_stride_ != 0) return;
    if (std::string books = scheduler.check_integrity(); !books.empty()) fail(1, books);
}

}  // namespace takt::sim
