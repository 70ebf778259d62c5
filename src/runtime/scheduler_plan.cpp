// Scheduler: one step's decision. Every decodable row first; what is left of the tightest running gap buys prefill rows; with no
// decode running a step is as large as a new arrival may wait for. Order, admission and preemption as scheduling.md 4.2 to 4.5.
#include <algorithm>
#include <bit>
#include <tuple>

#include "kernels/assert.h"
#include "runtime/scheduler_state.h"

namespace takt {
namespace {

// Host time between a step's end and its tokens at the writer: wake-up, sampling results, detokenising, hand-over.
constexpr uint64_t kHostNs = 200'000;
constexpr uint64_t kMaxIdleStepNs = 100'000'000;   // what a new arrival may have to wait when nothing decodes
constexpr uint64_t kUrgentNs = 50'000'000;
constexpr double kEnvelopeCredit = 2.0;            // gaps that a stream ahead of its envelope may spend at once

}  // namespace

void Scheduler::Impl::plan(uint64_t start_ns, StepPlan& plan) {
    plan.step = 0;
    plan.segments.clear();
    plan.admitted.clear();
    plan.preempted.clear();
    plan.features = StepFeatures{};
    plan.num_samples = plan.padded_samples = 0;
    plan.greedy = true;
    plan.at_floor = false;
    plan.budget_ns = plan.predicted_ns = 0;
    place_decodes(plan);
    if (plan.preempted.empty()) admit(start_ns, plan);   // no newcomer in a step that threw somebody out
    place_prefills(start_ns, plan);
    if (!plan.segments.empty()) close_plan(start_ns, plan);
}

// ---- decode rows and room for them

void Scheduler::Impl::place_decodes(StepPlan& plan) {
    decodes.clear();
    const int32_t most = config.row_ladder.back();
    prefills = running;   // a copy: making room may take requests out of the list
    for (const int32_t at : prefills) {
        Record& r = records[static_cast<size_t>(at)];
        if (!r.can_decode() || static_cast<int32_t>(decodes.size()) == most) continue;
        if (!make_room(at, plan)) continue;
        decodes.push_back(at);
    }
    // A later request's need may have thrown out an earlier one's row.
    std::erase_if(decodes, [&](int32_t at) { return records[static_cast<size_t>(at)].state != State::decoding; });
    for (int32_t at : decodes) add_segment(plan, records[static_cast<size_t>(at)], 1);
}

bool Scheduler::Impl::make_room(int32_t at, StepPlan& plan) {
    Record& r = records[static_cast<size_t>(at)];
    while (!kv.reserve(r.slot, int64_t{r.computed} + 1)) {
        if (kv.num_retiring() > 0) return false;   // blocks are on their way back: wait a step rather than throw out more
        const int32_t victim = choose_victim(at);
        if (victim < 0) return false;
        preempt(victim, plan);
        if (r.state == State::waiting) return false;   // it was itself the cheapest to give up
    }
    return true;
}

/// Paused readers first, then the latest admitted; one that was preempted often only if there is nobody else. The oldest running
/// request is never a victim of another, so that somebody always advances.
int32_t Scheduler::Impl::choose_victim(int32_t requester) const {
    int32_t best = -1;
    auto rank = [&](const Record& r) {
        const int pinned = r.num_preemptions >= config.max_preemptions ? 1 : 0;
        const int reading = r.is_paused ? 0 : 1;
        const int decoding = r.state == State::decoding ? 1 : 0;
        return std::tuple(pinned, reading, decoding, ~r.admission);
    };
    for (size_t i = 1; i < running.size(); ++i) {
        const Record& r = records[static_cast<size_t>(running[i])];
        if (running[i] == requester) continue;
        if (best < 0 || rank(r) < rank(records[static_cast<size_t>(best)])) best = running[i];
    }
    const Record& own = records[static_cast<size_t>(requester)];
    // The youngest gives way itself, unless it is the oldest that asks.
    if (requester != running.front() && (best < 0 || rank(own) < rank(records[static_cast<size_t>(best)]))) return requester;
    return best;
}

void Scheduler::Impl::preempt(int32_t at, StepPlan& plan) {
    Record& r = records[static_cast<size_t>(at)];
    leave_slot(r);
    running.erase(std::find(running.begin(), running.end(), at));
    r.state = State::waiting;
    r.computed = 0;
    ++r.num_preemptions;
    waiting.push_back(at);
    ++tenant_waiting[static_cast<size_t>(r.request.tenant_index)];
    plan.preempted.push_back(r.request.id);
}

// ---- admission

Scheduler::Impl::AdmissionLoad Scheduler::Impl::admission_load() const {
    AdmissionLoad load;
    load.decode.decode_rows = load.decode.rows = static_cast<int32_t>(running.size()) + 1;
    load.decode.padded_rows = cost.padded_rows(load.decode.rows);
    for (const int32_t at : running) {
        const Record& r = records[static_cast<size_t>(at)];
        load.tightest_ns = std::min(load.tightest_ns, itl_ns(r));
        load.decode.kv_read_tokens += std::max(r.computed, r.target) + 1;   // it will decode one day
    }
    return load;
}

bool Scheduler::Impl::may_admit(const Record& r, const AdmissionLoad& load, uint64_t start_ns) const {
    if (r.is_paused || r.last_step > applied_step) return false;   // its last sampled token is not known yet
    const int32_t limit = config.tenants.empty() ? 0 : config.tenants[static_cast<size_t>(r.request.tenant_index)].max_running;
    if (limit > 0 && tenant_running[static_cast<size_t>(r.request.tenant_index)] >= limit) return false;
    // Decode floor: one more stream for life must not break the tightest promise; but nobody waits beyond his own TTFT for it.
    if (running.empty() || start_ns >= r.request.arrival_ns + ttft_ns(r)) return true;
    StepFeatures f = load.decode;
    f.kv_read_tokens += r.request.prompt_tokens;
    return cost.bound_ns(f) <= std::min(load.tightest_ns, itl_ns(r));
}

/// Preempted ones first, then deadline with a shortest-first tilt that grows with the backlog; tenants by their counters.
int32_t Scheduler::Impl::next_waiting(uint64_t start_ns) const {
    const double tilt = std::min(2.0, static_cast<double>(waiting.size()) / std::max(1, config.max_running));
    const int32_t rows = config.row_ladder.back();
    StepFeatures full;
    full.rows = full.padded_rows = rows;
    full.prefill_segments = 1;
    const double row_ns = static_cast<double>(cost.predict_ns(full)) / rows;
    const AdmissionLoad load = admission_load();
    int32_t best = -1;
    auto best_rank = std::tuple(2, 0.0, 0.0, uint64_t{0});
    for (int32_t at : waiting) {
        const Record& r = records[static_cast<size_t>(at)];
        if (!may_admit(r, load, start_ns)) continue;
        const double key = static_cast<double>(r.key_ns) + tilt * row_ns * r.request.prompt_tokens;
        const bool late = static_cast<double>(start_ns) > static_cast<double>(r.key_ns);
        // Whoever is past its promise goes by age alone, so that every later arrival is behind it.
        const int group = r.num_preemptions > 0 ? 0 : 1;
        const double tenant = late ? -1.0 : shares.counter(r.request.tenant_index);
        const auto rank = std::tuple(group, config.tenants.size() > 1 ? tenant : 0.0, late ? static_cast<double>(r.key_ns) : key,
                                     r.request.id);
        if (best < 0 || rank < best_rank) {
            best = at;
            best_rank = rank;
        }
    }
    return best;
}

bool Scheduler::Impl::admit_one(int32_t at, StepPlan& plan) {
    Record& r = records[static_cast<size_t>(at)];
    const int32_t target = r.request.prompt_tokens + r.outputs;
    // Whole prompt and one more token, and a block each for the streams that run: half-prefilled victims help nobody.
    const int32_t lookup = r.request.tokens.empty() ? 0 : kv.match(r.request.cache_domain, r.request.tokens);
    const int32_t need = kv.blocks_for(int64_t{target} + 1) - lookup / kv.block_tokens();
    const int32_t watermark = running.empty() ? 0 : static_cast<int32_t>(running.size()) + kv.num_usable() / 64;
    if (need + watermark > kv.num_available() - lookup / kv.block_tokens()) return false;
    const int32_t slot = free_slots.back();
    const int32_t cached = kv.open(slot, r.request.cache_domain, r.request.tokens);
    if (!kv.reserve(slot, int64_t{target} + 1)) {
        kv.release(slot, applied_step);
        return false;
    }
    free_slots.pop_back();
    slot_records[static_cast<size_t>(slot)] = at;
    waiting.erase(std::find(waiting.begin(), waiting.end(), at));
    running.push_back(at);
    --tenant_waiting[static_cast<size_t>(r.request.tenant_index)];
    ++tenant_running[static_cast<size_t>(r.request.tenant_index)];
    r.slot = slot;
    r.state = State::prefilling;
    r.cached = cached;
    r.computed = cached;
    r.target = target;
    r.admission = next_admission++;
    plan.admitted.push_back(r.request.id);
    return true;
}

void Scheduler::Impl::admit(uint64_t start_ns, StepPlan& plan) {
    while (!free_slots.empty() && !waiting.empty()) {
        const int32_t at = next_waiting(start_ns);
        if (at < 0 || !admit_one(at, plan)) return;   // the first in line keeps its place: nobody passes it for ever
    }
}

// ---- prefill rows

/// Milliseconds until the first running stream must have its next token.
uint64_t Scheduler::Impl::gap_budget_ns(uint64_t start_ns) const {
    double tightest = 1e18;
    for (int32_t at : decodes) {
        const Record& r = records[static_cast<size_t>(at)];
        const double itl = static_cast<double>(itl_ns(r));
        const bool envelope = r.request.envelope || config.classes[static_cast<size_t>(r.request.class_index)].envelope;
        // A token that is still in flight comes out at the running step's end: the gap begins there.
        const bool pending = r.num_emitted < r.outputs;
        const double last = static_cast<double>(pending || r.last_emit_ns == 0 ? start_ns : r.last_emit_ns);
        double allowed = itl - (static_cast<double>(start_ns) - last);
        if (envelope && r.first_emit_ns != 0) {
            const double due = static_cast<double>(r.first_emit_ns) + itl * (r.outputs);
            allowed = std::min(due - static_cast<double>(start_ns), (1.0 + kEnvelopeCredit) * itl);
        }
        tightest = std::min(tightest, allowed);
    }
    const double left = tightest * trim.factor() - static_cast<double>(kHostNs);
    return left > 0 ? static_cast<uint64_t>(left) : 0;
}

void Scheduler::Impl::order_prefills(uint64_t start_ns) {
    prefills.clear();
    for (int32_t at : running) {
        const Record& r = records[static_cast<size_t>(at)];
        if (r.remaining_prefill() > 0 && !r.is_paused) prefills.push_back(at);
    }
    if (config.fixed_chunk || prefills.size() < 2) return;   // the baseline is first come, first served
    const int32_t rows = config.row_ladder.back();
    StepFeatures full;
    full.rows = full.padded_rows = rows;
    full.prefill_segments = 1;
    const double row_ns = static_cast<double>(cost.predict_ns(full)) / rows;
    auto rank = [&](int32_t at) {
        const Record& r = records[static_cast<size_t>(at)];
        const double key = static_cast<double>(r.key_ns) + row_ns * r.remaining_prefill();
        const bool urgent = static_cast<double>(start_ns) + row_ns * r.remaining_prefill() + kUrgentNs > static_cast<double>(r.key_ns);
        const double tenant = urgent || config.tenants.size() < 2 ? 0.0 : shares.counter(r.request.tenant_index);
        return std::tuple(urgent ? 0 : 1, tenant, key, r.request.id);
    };
    std::sort(prefills.begin(), prefills.end(), [&](int32_t a, int32_t b) { return rank(a) < rank(b); });
}

void Scheduler::Impl::place_prefills(uint64_t start_ns, StepPlan& plan) {
    order_prefills(start_ns);
    DecodeLoad load;
    load.rows = static_cast<int32_t>(decodes.size());
    uint64_t idle_ns = kMaxIdleStepNs;
    for (int32_t at : decodes) load.context_tokens += records[static_cast<size_t>(at)].computed + 1;
    for (const SchedulerClass& c : config.classes) idle_ns = std::min(idle_ns, c.ttft_ns / 4);
    plan.budget_ns = load.rows > 0 ? gap_budget_ns(start_ns) : 0;
    last_constrained = last_infeasible = false;
    if (prefills.empty()) {
        steps_without_prefill = 0;
        return;
    }
    needs.clear();
    uint64_t oldest = UINT64_MAX;
    for (int32_t at : prefills) oldest = std::min(oldest, records[static_cast<size_t>(at)].admission);
    for (int32_t at : prefills) {
        const Record& r = records[static_cast<size_t>(at)];
        needs.push_back({r.remaining_prefill(), r.computed, r.admission == oldest && !config.fixed_chunk, 0});
    }
    RowChoice choice;
    if (config.fixed_chunk) {
        int32_t left = 0;
        for (const PrefillNeed& need : needs) left += need.remaining;
        choice.prefill_rows = std::min(left, config.fixed_chunk_tokens);
    } else {
        const RowBudget budget{load.rows > 0 ? plan.budget_ns : idle_ns, config.row_ladder.back(), steps_without_prefill};
        choice = choose_rows(cost, load, needs, budget);
    }
    plan.at_floor = choice.at_floor;
    last_constrained = choice.at_floor || choice.infeasible;
    last_infeasible = choice.infeasible;
    steps_without_prefill = choice.prefill_rows > 0 ? 0 : steps_without_prefill + 1;
    share_rows(needs, choice.prefill_rows);
    for (size_t i = 0; i < needs.size(); ++i) {
        if (needs[i].rows > 0) add_segment(plan, records[static_cast<size_t>(prefills[i])], needs[i].rows);
    }
}

// ---- writing it down

void Scheduler::Impl::add_segment(StepPlan& plan, Record& r, int32_t rows) {
    PlanSegment s;
    s.request = r.request.id;
    s.slot = r.slot;
    s.token_begin = r.computed;
    s.num_rows = rows;
    s.is_decode = r.state == State::decoding;
    s.samples = s.is_decode || r.computed + rows == r.target;
    StepFeatures& f = plan.features;
    f.rows += rows;
    if (s.is_decode) {
        ++f.decode_rows;
        f.kv_read_tokens += r.computed + 1;
    } else {
        ++f.prefill_segments;
        f.prefill_pairs += int64_t{rows} * r.computed + int64_t{rows} * (rows + 1) / 2;
    }
    if (s.samples) {
        ++plan.num_samples;
        plan.greedy = plan.greedy && r.request.greedy;
    }
    plan.segments.push_back(s);
}

void Scheduler::Impl::close_plan(uint64_t start_ns, StepPlan& plan) {
    (void)start_ns;
    plan.step = next_step++;
    plan.features.padded_rows = cost.padded_rows(plan.features.rows);
    if (plan.num_samples > 0) {
        const auto padded = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(plan.num_samples)));
        plan.padded_samples = std::min(padded, config.max_running);
    }
    plan.predicted_ns = cost.predict_ns(plan.features);
    if (spare.empty()) spare.emplace_back();
    launched.push_back(std::move(spare.back()));
    spare.pop_back();
    Launched& step = launched.back();
    step.step = plan.step;
    step.features = plan.features;
    for (const PlanSegment& s : plan.segments) {
        const int32_t at = slot_records[static_cast<size_t>(s.slot)];
        Record& r = records[static_cast<size_t>(at)];
        r.computed += s.num_rows;
        r.last_step = plan.step;
        if (s.samples) {
            ++r.outputs;
            r.state = State::decoding;
        }
        step.parts.push_back({at, s.request, r.admission, r.computed, s.num_rows});
    }
    trim.step(plan.features.prefill_segments > 0, last_constrained, last_infeasible);
}

}  // namespace takt
