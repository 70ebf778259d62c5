// Scheduler: requests in and out, outcomes, books. Planning is scheduler_plan.cpp.
#include "runtime/scheduler.h"

#include <algorithm>

#include "kernels/assert.h"
#include "runtime/scheduler_state.h"

namespace takt {
namespace {

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
}

SchedulerRecord* Scheduler::Impl::find(RequestId id) {
    const int32_t at = index.find(id);
    return at < 0 ? nullptr : &records[static_cast<size_t>(at)];
}

const SchedulerRecord* Scheduler::Impl::find(RequestId id) const {
    const int32_t at = index.find(id);
    return at < 0 ? nullptr : &records[static_cast<size_t>(at)];
}

uint64_t Scheduler::Impl::itl_ns(const Record& r) const {
    return r.request.itl_ns != 0 ? r.request.itl_ns : config.classes[static_cast<size_t>(r.request.class_index)].itl_ns;
}

uint64_t Scheduler::Impl::ttft_ns(const Record& r) const {
    return r.request.ttft_ns != 0 ? r.request.ttft_ns : config.classes[static_cast<size_t>(r.request.class_index)].ttft_ns;
}

/// Work that stands before the request and its own, over the share of a step that prefills may take now.
double Scheduler::Impl::wait_estimate_ns(const Record& r) const {
    const int32_t rows = config.row_ladder.back();
    StepFeatures full;
    full.rows = full.padded_rows = rows;
    full.prefill_segments = 1;
    const double row_ns = static_cast<double>(cost.bound_ns(full)) / rows;
    double ahead = r.request.prompt_tokens;
    StepFeatures decode;
    uint64_t tightest = UINT64_MAX;
    for (int32_t i : running) {
        const Record& other = records[static_cast<size_t>(i)];
        ahead += other.remaining_prefill();
        if (other.state != State::decoding) continue;
        ++decode.decode_rows;
        decode.kv_read_tokens += other.computed + 1;
        tightest = std::min(tightest, itl_ns(other));
    }
    for (int32_t i : waiting) {
        const Record& other = records[static_cast<size_t>(i)];
        if (other.key_ns <= r.key_ns) ahead += other.request.prompt_tokens;
    }
    double share = 1.0;
    if (decode.decode_rows > 0) {
        decode.rows = decode.decode_rows;
        decode.padded_rows = cost.padded_rows(decode.rows);
        share = 1.0 - static_cast<double>(cost.predict_ns(decode)) / static_cast<double>(tightest);
        share = std::clamp(share, 0.125, 1.0);
    }
    return ahead * row_ns / share;
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
        Record probe;
        probe.request = request;
        probe.key_ns = UINT64_MAX;
        out.retry_after_ns = static_cast<uint64_t>(std::max(1e6, wait_estimate_ns(probe)));
        return out;
    }
    Record r;
    r.request = request;
    r.state = State::waiting;
    r.key_ns = request.arrival_ns + ttft_ns(r);
    const SchedulerClass& sla = config.classes[static_cast<size_t>(request.class_index)];
    if (sla.on_miss != SchedulerClass::OnMiss::queue) {
        const double wait = wait_estimate_ns(r);
        if (static_cast<double>(now_ns) + wait > static_cast<double>(r.key_ns)) {
            if (sla.on_miss == SchedulerClass::OnMiss::refuse) {
                out.verdict = Admission::Verdict::deadline_unreachable;
                out.retry_after_ns = now_ns + static_cast<uint64_t>(wait) - r.key_ns;
                return out;
            }
            r.key_ns = request.arrival_ns + std::max<uint64_t>(600'000'000'000, ttft_ns(r));   // finite: still served
            r.was_demoted = true;
        }
    }
    out.cached_tokens = request.tokens.empty() ? 0 : kv.match(request.cache_domain, request.tokens);
    const int32_t at = free_records.back();
    free_records.pop_back();
    records[static_cast<size_t>(at)] = r;
    index.insert(request.id, at);
    waiting.push_back(at);
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
    const int32_t at = index.find(id);
    if (r->state == State::waiting) {
        waiting.erase(std::find(waiting.begin(), waiting.end(), at));
        --tenant_waiting[static_cast<size_t>(r->request.tenant_index)];
    } else {
        leave_slot(*r);
        running.erase(std::find(running.begin(), running.end(), at));
    }
    shares.leave(r->request.tenant_index);
    index.erase(id);
    *r = Record{};
    free_records.push_back(at);
}

void Scheduler::Impl::publish(Record& r, int32_t computed) {
    // Only the prompt's tokens are known here; its whole blocks that have been computed may serve others.
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
    for (const Launched::Part& part : step.parts) {
        const Record& r = records[static_cast<size_t>(part.record)];
        if (r.request.id != part.id) continue;   // it has left
        const SchedulerClass& sla = config.classes[static_cast<size_t>(r.request.class_index)];
        shares.charge(r.request.tenant_index, row_ms * part.num_rows, sla.weight);
    }
}

void Scheduler::Impl::apply(const StepOutcome& outcome, uint64_t now_ns) {
    (void)now_ns;
    TAKT_ASSERT(!launched.empty() && launched.front().step == outcome.step);
    Launched step = std::move(launched.front());
    launched.pop_front();
    applied_step = step.step;
    if (!outcome.failed && outcome.device_ns > 0) cost.observe(step.features, outcome.device_ns);
    charge(step, outcome.device_ns);
    for (const Launched::Part& part : step.parts) {
        Record& r = records[static_cast<size_t>(part.record)];
        if (r.request.id == part.id && r.admission == part.admission && r.slot >= 0) publish(r, part.computed);
    }
    kv.retire(step.step);
    step.parts.clear();
    spare.push_back(std::move(step));
}

void Scheduler::Impl::emitted(RequestId id, uint64_t now_ns) {
    Record* r = find(id);
    if (r == nullptr) return;
    if (r->first_emit_ns == 0) {
        r->first_emit_ns = now_ns;
    } else {
        const bool with_prefill = !launched.empty() && launched.front().features.prefill_segments > 0;
        trim.gap(static_cast<double>(now_ns - r->last_emit_ns) / static_cast<double>(itl_ns(*r)), with_prefill);
    }
    r->last_emit_ns = now_ns;
    ++r->num_emitted;
}

std::string Scheduler::Impl::check_integrity() const {
    if (std::string wrong = kv.check_integrity(); !wrong.empty()) return wrong;
    size_t live = 0;
    for (size_t i = 0; i < records.size(); ++i) {
        const Record& r = records[i];
        if (r.state == State::free) continue;
        ++live;
        const std::string who = "request " + std::to_string(r.request.id) + ": ";
        const bool runs = r.state != State::waiting;
        if (runs != (r.slot >= 0)) return who + "state and slot disagree";
        if (runs && slot_records[static_cast<size_t>(r.slot)] != static_cast<int32_t>(i)) return who + "its slot is another's";
        if (runs && kv.blocks_for(r.computed) > static_cast<int32_t>(kv.table(r.slot).size())) return who + "rows without blocks";
        if (r.outputs > r.request.max_tokens) return who + "more outputs than max_tokens";
        if (r.num_preemptions > config.max_preemptions + static_cast<int32_t>(running.size()) + 1) return who + "preempted without end";
    }
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
void Scheduler::emitted(RequestId id, uint64_t now_ns) { impl_->emitted(id, now_ns); }
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

bool Scheduler::has_work() const {
    if (!impl_->waiting.empty() || !impl_->launched.empty()) return true;
    return std::any_of(impl_->running.begin(), impl_->running.end(), [&](int32_t i) {
        const SchedulerRecord& r = impl_->records[static_cast<size_t>(i)];
        return !r.is_paused && (r.remaining_prefill() > 0 || r.can_decode());
    });
}

std::string Scheduler::check_integrity() const { return impl_->check_integrity(); }
double Scheduler::budget_trim() const { return impl_->trim.trim(); }
bool Scheduler::infeasible() const { return impl_->trim.infeasible(); }

}  // namespace takt
