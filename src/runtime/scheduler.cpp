// Scheduler: requests in and out, outcomes, books. Planning is scheduler_plan.cpp.
#include "runtime/scheduler.h"

#include <algorithm>
#include <cmath>

#include "kernels/assert.h"
#include "runtime/scheduler_state.h"

namespace takt {
namespace {

constexpr double kSureShare = 0.9;
constexpr double kOfferedNs = 5e9;     // what came in is counted over about so long
constexpr double kLeastDrain = 0.25;    // of the device or the slots, that is left to what waits already

std::vector<double> tenant_weights(const SchedulerConfig& config) {
    std::vector<double> weights;
    for (const SchedulerTenant& t : config.tenants) weights.push_back(t.weight);
    if (weights.empty()) weights.push_back(1.0);
    return weights;
}

}  // namespace

Scheduler::Impl::Impl(const SchedulerConfig& c, CostModel& cost_model, KvManager& kv_manager)
    : config(c),
      cost(cost_model),
      kv(kv_manager),
      shares(tenant_weights(c)),
      index(static_cast<size_t>(c.max_running + c.max_waiting + 1)) {
    const auto most = static_cast<size_t>(c.max_running + c.max_waiting + 1);
    records.resize(most);
    for (size_t i = most; i-- > 0;) free_records.push_back(static_cast<int32_t>(i));
    for (int32_t i = c.max_running; i-- > 0;) free_slots.push_back(i);
    slot_records.assign(static_cast<size_t>(c.max_running), -1);
    running.reserve(static_cast<size_t>(c.max_running));
    waiting.reserve(most);
    decodes.reserve(static_cast<size_t>(c.max_running));
    prefills.reserve(static_cast<size_t>(c.max_running));
    needs.reserve(static_cast<size_t>(c.max_running));
    tenant_running.assign(tenant_weights(c).size(), 0);
    tenant_waiting.assign(tenant_weights(c).size(), 0);
    candidates.reserve(most);
    launched.reserve(8);
    spare.reserve(8);
    infeasible_steps.assign(c.classes.size(), 0);
    is_infeasible.assign(c.classes.size(), 0);
    swap_left = c.swap_tokens;
}

SchedulerRecord* Scheduler::Impl::find(RequestId id) {
    const int32_t at = index.find(id);
    return at < 0 ? nullptr : &records[static_cast<size_t>(at)];
}

const SchedulerRecord* Scheduler::Impl::find(RequestId id) const {
    const int32_t at = index.find(id);
    return at < 0 ? nullptr : &records[static_cast<size_t>(at)];
}

Admission Scheduler::Impl::submit(const SchedulerRequest& request, uint64_t now_ns) {
    Admission out;
    const auto tenant = static_cast<size_t>(request.tenant_index);
    // Alone in the pool it must fit to its last token, else it would wait for blocks that never come.
    if (kv.blocks_for(int64_t{request.prompt_tokens} + request.max_tokens) > kv.num_usable()) {
        out.verdict = Admission::Verdict::too_long_for_kv;
        return out;
    }
    const int32_t limit = config.tenants.empty() ? 0 : config.tenants[tenant].max_waiting;
    // Requests that could start at once do not count as waiting.
    const bool starts = waiting.empty() && !free_slots.empty();
    const bool full = static_cast<int32_t>(waiting.size()) >= config.max_waiting && !starts;
    if (free_records.empty() || full || (limit > 0 && tenant_waiting[tenant] >= limit)) {
        out.verdict = Admission::Verdict::queue_full;
        out.retry_after_ns = static_cast<uint64_t>(room_ns(request));
        return out;
    }
    Record r;
    r.request = request;
    r.state = State::waiting;
    r.key_ns = request.arrival_ns + ttft_ns(r);
    out.cached_tokens = request.tokens.empty() ? 0 : kv.match(request.cache_domain, request.tokens);
    r.expected_cached = out.cached_tokens;
    r.work_ns = cost.prefill_ns(r.expected_cached, request.prompt_tokens - r.expected_cached);
    refresh_order();
    const SchedulerClass& sla = class_of(r);
    if (sla.on_miss != SchedulerClass::OnMiss::queue) {
        // Only what is clearly too late is turned away: the estimate is no better than that.
        const double wait = kSureShare * wait_estimate_ns(r, now_ns);
        if (static_cast<double>(now_ns) + wait > static_cast<double>(r.key_ns)) {
            if (sla.on_miss == SchedulerClass::OnMiss::refuse) {
                out.verdict = Admission::Verdict::deadline_unreachable;
                // Whose own prompt takes longer alone is never let in: no time is told.
                if (kSureShare * r.work_ns > static_cast<double>(ttft_ns(r))) return out;
                out.retry_after_ns = static_cast<uint64_t>(retry_ns(static_cast<double>(now_ns) + wait - static_cast<double>(r.key_ns)));
                return out;
            }
            r.key_ns = request.arrival_ns + std::max<uint64_t>(600'000'000'000, ttft_ns(r));   // finite: still served
            r.was_demoted = true;
        }
    }
    const int32_t place = free_records.back();
    free_records.pop_back();
    at(place) = r;
    index.insert(request.id, place);
    note_offered(r, now_ns);
    waiting.push_back(place);
    ++tenant_waiting[tenant];
    shares.enter(request.tenant_index);
    return out;
}

void Scheduler::Impl::leave_slot(Record& r) {
    kv.release(r.slot, r.last_step);
    slot_records[static_cast<size_t>(r.slot)] = -1;
    free_slots.push_back(r.slot);
    r.slot = -1;
    --tenant_running[static_cast<size_t>(r.request.tenant_index)];
}

void Scheduler::Impl::finish(RequestId id) {
    Record* r = find(id);
    if (r == nullptr) return;
    const int32_t place = index.find(id);
    if (r->state == State::waiting) {
        waiting.erase(std::find(waiting.begin(), waiting.end(), place));
        --tenant_waiting[static_cast<size_t>(r->request.tenant_index)];
    } else {
        // All tokens before the last one that is known have rows, and later readers' steps follow theirs in the stream. Not so while a
        // preempted request is computed again: its new blocks hold what their last owner left; its slices publish as they end.
        if (r->state == State::decoding && r->num_emitted > 0 &&
            r->request.tokens.size() > static_cast<size_t>(r->request.prompt_tokens)) {
            publish(*r, std::min(static_cast<int32_t>(r->request.tokens.size()) - 1, r->computed));
        }
        leave_slot(*r);
        running.erase(std::find(running.begin(), running.end(), place));
    }
    swap_left += r->swapped;
    if (r->num_emitted > 0) learn_output(*r);
    if (r->state != State::decoding) shares.leave(r->request.tenant_index);
    index.erase(id);
    *r = Record{};
    free_records.push_back(place);
}

// Until the queue gives a place up: a prompt's work is done, or an answer ends, of its own tenant's where that has a limit.
double Scheduler::Impl::room_ns(const SchedulerRequest& request) const {
    const int32_t own_slots = config.tenants.empty() ? 0 : config.tenants[static_cast<size_t>(request.tenant_index)].max_running;
    const double prompt = cost.prefill_ns(0, request.prompt_tokens) / prefill_share();
    const double answer = answer_ns() / (own_slots > 0 ? std::min(own_slots, config.max_running) : config.max_running);
    return std::max({1e6, prompt, free_slots.empty() || own_slots > 0 ? answer : 0.0});
}

/// What an answer takes from its first token to its last; as long as none has ended, a token a step with prompt rows.
double Scheduler::Impl::answer_ns() const {
    return expected_outputs * (expected_gap_ns > 0 ? expected_gap_ns : std::max(step_ns, 1e6));
}

void Scheduler::Impl::note_offered(const Record& r, uint64_t now_ns) {
    const double kept = std::exp(-static_cast<double>(now_ns - std::min(offered_ns, now_ns)) / kOfferedNs);
    offered_work = offered_work * kept + r.work_ns / kOfferedNs;
    offered_life = offered_life * kept + answer_ns() / config.max_running / kOfferedNs;
    offered_ns = now_ns;
}

/// As much less work must stand before it. Others go on coming meanwhile: of what is ended in a second only what exceeds theirs is gone.
/// The least that is worth a new try is a step.
double Scheduler::Impl::retry_ns(double excess_ns) const {
    const double load = std::max(offered_work / share, offered_life);
    return std::max(excess_ns / std::clamp(1.0 - load, kLeastDrain, 1.0), 10e6);
}

void Scheduler::Impl::learn_output(const Record& r) {
    // The first ones weigh more: what is believed before any was seen would refuse or reserve wrongly for hundreds of requests.
    const double gain = std::max(0.02, 1.0 / (2 + num_outputs_seen++));
    expected_outputs += gain * (std::max(1, r.num_emitted) - expected_outputs);
    if (r.num_emitted < 2) return;
    const double gap = static_cast<double>(r.last_emit_ns - r.first_emit_ns) / (r.num_emitted - 1);
    expected_gap_ns += (expected_gap_ns > 0 ? gain : 1.0) * (gap - expected_gap_ns);
}

void Scheduler::Impl::publish(Record& r, int32_t computed) {
    // Whole blocks that have been computed and whose tokens are known may serve others.
    const std::span<const int32_t> tokens = r.request.tokens;
    const auto width = static_cast<size_t>(kv.block_tokens());
    const size_t valid = std::min(static_cast<size_t>(computed), tokens.size());
    for (auto n = static_cast<size_t>(kv.num_published(r.slot)); (n + 1) * width <= valid; ++n) {
        kv.publish(r.slot, tokens.subspan(n * width, width));
    }
}

void Scheduler::Impl::charge(const Launched& step, uint64_t device_ns) {
    if (step.features.rows <= 0) return;
    const double row_ms = static_cast<double>(device_ns) * 1e-6 / step.features.rows;
    for (const Launched::Part& part : step.parts) shares.charge(part.tenant, row_ms * part.num_rows, part.weight);
}

/// Whether the step was planned longer than promised, to move a prompt that no step in time could (budget.h).
bool Scheduler::Impl::is_late_slice(const Launched& step) const {
    return cost.rows_are_data() && step.at_floor && step.features.rows - step.features.decode_rows > least_slice(cost);
}

/// What the gap that the request's last token ended was promised to take at most.
double Scheduler::Impl::promised_ns(const Record& r, uint64_t gap_ns) const {
    const auto itl = static_cast<double>(itl_ns(r));
    if (!is_envelope(r)) return itl;
    const double due = static_cast<double>(r.first_emit_ns) + itl * (r.num_emitted - 2);   // of the token before
    return envelope_gap_ns(itl, due - static_cast<double>(r.last_emit_ns - gap_ns));
}

/// The gaps that the step ended, in a device part, which the trim answers for, and a host part, which the budget sets aside.
void Scheduler::Impl::note_gaps(const Launched& step, uint64_t device_ns, CostVerdict verdict) {
    const bool with_prefill = step.features.prefill_segments > 0;
    // Where rows are data and cores shared: the floor's slice breaks the budget knowingly, and a stall of the machine strikes steps of
    // any length. Smaller budgets would only make more of either.
    const bool counts = !cost.rows_are_data() || (!step.at_floor && verdict == CostVerdict::learned);
    int32_t num_gaps = 0, num_late = 0;
    for (const Launched::Part& part : step.parts) {
        Record& r = at(part.record);
        if (r.request.id != part.id || r.pending_gap_ns == 0) continue;
        const auto gap = static_cast<double>(r.pending_gap_ns);
        const double promised = promised_ns(r, r.pending_gap_ns);
        r.pending_gap_ns = 0;
        if (!part.is_decode || r.is_paused) continue;
        ++num_gaps;
        num_late += gap > promised ? 1 : 0;
        const double counted = static_cast<double>(part.waited_ns) + static_cast<double>(device_ns);
        const double host_ns = std::max(gap - counted, 0.0);
        host.observe(host_ns);
        const double device_part = std::min(gap, counted + host.ns());
        if (counts) trim.gap(device_part / promised, with_prefill);
    }
    if (num_gaps == 0 || is_late_slice(step)) return;   // that one is late by intent
    const double late = static_cast<double>(num_late) / num_gaps;
    if (!with_prefill) decode_late += (late - decode_late) / kLateSliceSteps;
    gap_credit = std::clamp(gap_credit + 1.0 / kLateSliceSteps - late, -kMostGapCredit, kMostGapCredit);
}

void Scheduler::Impl::apply(const StepOutcome& outcome, uint64_t now_ns) {
    (void)now_ns;
    TAKT_ASSERT(!launched.empty() && launched.front().step == outcome.step);
    Launched step = std::move(launched.front());
    launched.erase(launched.begin());
    applied_step = step.step;
    if (!outcome.failed && outcome.device_ns > 0) {
        note_gaps(step, outcome.device_ns, cost.observe(step.features, outcome.device_ns));
    }
    charge(step, outcome.device_ns);
    for (const Launched::Part& part : step.parts) {
        Record& r = at(part.record);
        const bool holds = r.request.id == part.id && r.admission == part.admission && r.slot >= 0;
        if (holds && !outcome.failed) publish(r, part.computed);
    }
    kv.retire(step.step);
    step.parts.clear();
    spare.push_back(std::move(step));
}

void Scheduler::Impl::emitted(RequestId id, uint64_t now_ns, std::span<const int32_t> tokens) {
    Record* r = find(id);
    if (r == nullptr) return;
    if (r->first_emit_ns == 0) {
        r->first_emit_ns = now_ns;
    } else {
        r->pending_gap_ns = std::max<uint64_t>(now_ns - r->last_emit_ns, 1);
    }
    r->last_emit_ns = now_ns;
    ++r->num_emitted;
    if (!r->request.tokens.empty() && tokens.size() > r->request.tokens.size()) r->request.tokens = tokens;
}

std::string Scheduler::Impl::check_integrity() const {
    if (std::string wrong = kv.check_integrity(); !wrong.empty()) return wrong;
    size_t live = 0;
    int64_t swapped = 0;
    for (size_t i = 0; i < records.size(); ++i) {
        const Record& r = records[i];
        if (r.state == State::free) continue;
        ++live;
        swapped += r.swapped;
        const std::string who = "request " + std::to_string(r.request.id) + ": ";
        const bool runs = r.state != State::waiting;
        if (runs && r.swapped != 0) return who + "it runs and its KV waits in the host's memory";
        if (runs != (r.slot >= 0)) return who + "state and slot disagree";
        if (runs && slot_records[static_cast<size_t>(r.slot)] != static_cast<int32_t>(i)) return who + "its slot is another's";
        if (runs && kv.blocks_for(r.computed) > static_cast<int32_t>(kv.table(r.slot).size())) return who + "rows without blocks";
        if (r.outputs > r.request.max_tokens) return who + "more outputs than max_tokens";
        if (r.num_preemptions > config.max_preemptions) return who + "preempted too often";
    }
    if (swapped + swap_left != config.swap_tokens) return "the host's memory and what waits in it disagree";
    if (live != running.size() + waiting.size()) return "records and lists disagree";
    if (live + free_records.size() != records.size()) return "free records and live ones disagree";
    if (running.size() + free_slots.size() != slot_records.size()) return "slots are lost";
    if (running.empty() && launched.empty() && kv.counts().num_used != 0) return "blocks are held by nobody";
    return {};
}

Scheduler::Scheduler(const SchedulerConfig& config, CostModel& cost, KvManager& kv)
    : impl_(std::make_unique<Impl>(config, cost, kv)) {}
Scheduler::~Scheduler() = default;

Admission Scheduler::submit(const SchedulerRequest& request, uint64_t now_ns) { return impl_->submit(request, now_ns); }
void Scheduler::finish(RequestId id) { impl_->finish(id); }
void Scheduler::emitted(RequestId id, uint64_t now_ns, std::span<const int32_t> tokens) { impl_->emitted(id, now_ns, tokens); }
void Scheduler::plan(uint64_t start_ns, StepPlan& plan) { impl_->plan(start_ns, plan); }
void Scheduler::apply(const StepOutcome& outcome, uint64_t now_ns) { impl_->apply(outcome, now_ns); }

void Scheduler::set_paused(RequestId id, bool paused) {
    if (SchedulerRecord* r = impl_->find(id)) r->is_paused = paused;
}

std::span<const int32_t> Scheduler::block_table(RequestId id) const {
    const SchedulerRecord* r = impl_->find(id);
    if (r == nullptr || r->slot < 0) return {};
    return impl_->kv.table(r->slot);
}

int32_t Scheduler::cached_tokens(RequestId id) const {
    const SchedulerRecord* r = impl_->find(id);
    return r == nullptr ? 0 : r->cached;
}

SchedulerCounts Scheduler::counts() const {
    SchedulerCounts c;
    c.num_running = static_cast<int32_t>(impl_->running.size());
    c.num_waiting = static_cast<int32_t>(impl_->waiting.size());
    for (int32_t i : impl_->running) {
        const SchedulerRecord& r = impl_->records[static_cast<size_t>(i)];
        c.num_paused += r.is_paused ? 1 : 0;
        (r.state == SchedulerRecord::State::decoding ? c.num_decoding : c.num_prefilling) += 1;
    }
    return c;
}

std::string Scheduler::check_integrity() const { return impl_->check_integrity(); }
double Scheduler::budget_trim() const { return impl_->trim.trim(); }
bool Scheduler::infeasible() const { return impl_->trim.infeasible(); }
bool Scheduler::infeasible(int32_t class_index) const { return impl_->is_infeasible[static_cast<size_t>(class_index)] != 0; }
double Scheduler::reserve_factor() const { return impl_->reserve; }
double Scheduler::share_gap_ms() const { return impl_->shares.greatest_gap(); }

}  // namespace takt
