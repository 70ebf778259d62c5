// Scheduler: one step's decision. Every decodable row first; what is left of the tightest running gap buys prefill rows; with no
// decode running a step is as large as a new arrival may wait for. scheduling.md 4.2; order and admission have files of their own.
#include <algorithm>
#include <bit>

#include "kernels/assert.h"
#include "runtime/scheduler_rank.h"

namespace takt {
namespace {

constexpr uint64_t kMaxIdleStepNs = 100'000'000;   // what a new arrival may have to wait when nothing decodes
constexpr int32_t kMaxSkippedSteps = 8;            // P_max: longest run of steps that leaves a decodable request out
constexpr int32_t kStalledSteps = 8;               // M: an admitted prefill is owed a slice after that many steps without one
constexpr int32_t kWindowSteps = 64;

}  // namespace

void Scheduler::Impl::plan(uint64_t start_ns, StepPlan& plan) {
    plan.step = 0;
    plan.segments.clear();
    plan.admitted.clear();
    plan.preempted.clear();
    plan.copies.clear();
    plan.features = StepFeatures{};
    plan.num_samples = plan.padded_samples = 0;
    plan.greedy = true;
    plan_start_ns = start_ns;
    plan.at_floor = false;
    plan.budget_ns = plan.predicted_ns = plan.padding_ns = 0;
    one_off_ns = 0;
    refresh_order();
    let_yield(start_ns, plan);
    place_decodes(start_ns, plan);
    if (plan.preempted.empty()) admit(start_ns, plan);   // no newcomer in a step that threw somebody out
    place_prefills(start_ns, plan);
    if (!plan.segments.empty()) close_plan(plan);
}

// ---- decode rows

void Scheduler::Impl::place_decodes(uint64_t start_ns, StepPlan& plan) {
    decodes.clear();
    const int32_t most = config.row_ladder.back();
    for (const int32_t i : running) {
        if (at(i).can_decode() && static_cast<int32_t>(decodes.size()) < most) decodes.push_back(i);
    }
    spend_skip_credits(start_ns);
    for (const int32_t i : decodes) {
        if (at(i).state == State::decoding) make_room(i, plan);
    }
    // Room for a later one may have thrown out an earlier one; who got no room has no row.
    std::erase_if(decodes, [&](int32_t i) {
        const Record& r = at(i);
        return r.state != State::decoding || kv.blocks_for(int64_t{r.computed} + 1) > kv.num_blocks_of(r.slot);
    });
    for (const int32_t i : decodes) add_segment(plan, at(i), 1);
}

/// A stream whose promise allows it stands back while tighter ones run and prefill waits, for at most P_max steps. Only where a
/// row costs something: within the flat part of the device it would give nothing.
void Scheduler::Impl::spend_skip_credits(uint64_t start_ns) {
    if (config.fixed_chunk || decodes.size() < 2) return;
    const bool wanted = std::any_of(running.begin(), running.end(), [&](int32_t i) { return at(i).remaining_prefill() > 0; });
    uint64_t tightest = UINT64_MAX, loosest = 0;
    StepFeatures all;
    for (const int32_t i : decodes) {
        tightest = std::min(tightest, itl_ns(at(i)));
        loosest = std::max(loosest, itl_ns(at(i)));
        all.kv_read_tokens += at(i).computed + 1;
    }
    if (!wanted || loosest < 2 * tightest) return;
    all.rows = all.decode_rows = static_cast<int32_t>(decodes.size());
    all.padded_rows = cost.padded_rows(all.rows);
    const double context_ns = cost.snapshot().kd_ns * static_cast<double>(all.kv_read_tokens);
    const bool is_flat = cost.floor_rows(1) >= all.rows;
    if (is_flat && context_ns < 0.1 * static_cast<double>(tightest)) return;
    std::erase_if(decodes, [&](int32_t i) {
        Record& r = at(i);
        // It must fit into the step after this one, whatever this one takes.
        const bool can_wait = itl_ns(r) >= 2 * tightest && r.first_emit_ns != 0 && r.skipped_steps < kMaxSkippedSteps &&
                              allowed_gap_ns(r, start_ns) > 2.2 * static_cast<double>(tightest);
        r.skipped_steps = can_wait ? r.skipped_steps + 1 : 0;
        return can_wait;
    });
}

// ---- prefill rows

/// Of the request's gap, what lies before the step's start.
uint64_t Scheduler::Impl::waited_ns(const Record& r, uint64_t start_ns) {
    // A token that is still in flight comes out at the running step's end: the gap begins there.
    const bool pending = r.num_emitted < r.outputs || r.last_emit_ns == 0;
    return pending || start_ns < r.last_emit_ns ? 0 : start_ns - r.last_emit_ns;
}

/// Time that the request's next token may take from the step's start, its promise's trim and the host's part aside.
double Scheduler::Impl::allowed_gap_ns(const Record& r, uint64_t start_ns) const {
    const auto itl = static_cast<double>(itl_ns(r));
    const double allowed = itl - static_cast<double>(waited_ns(r, start_ns));
    if (!is_envelope(r) || r.first_emit_ns == 0) return allowed;
    const double due = static_cast<double>(r.first_emit_ns) + itl * r.outputs;
    return std::min(due - static_cast<double>(start_ns), (1.0 + kEnvelopeCredit) * itl);
}

/// Milliseconds until the first running stream must have its next token.
uint64_t Scheduler::Impl::gap_budget_ns(uint64_t start_ns) const {
    double tightest = 1e18;
    for (const int32_t i : decodes) tightest = std::min(tightest, allowed_gap_ns(at(i), start_ns));
    const double left = tightest * trim.factor() - host.ns();
    return left > 0 ? static_cast<uint64_t>(left) : 0;
}

void Scheduler::Impl::fill_needs() {
    needs.clear();
    uint64_t oldest = UINT64_MAX;
    int32_t most_stalled = kStalledSteps - 1, stalled = -1;
    for (const int32_t i : prefills) {
        const Record& r = at(i);
        oldest = std::min(oldest, r.admission);
        if (r.stalled_steps > most_stalled) {
            most_stalled = r.stalled_steps;
            stalled = i;
        }
    }
    for (const int32_t i : prefills) {
        const Record& r = at(i);
        PrefillNeed need;
        need.remaining = r.remaining_prefill();
        need.context = r.computed;
        // The oldest moves however short the others are; not at the cost of promises that can still be kept, if its own is lost, and
        // not at the cost of tenants that had less.
        const bool is_owed = r.admission == oldest && !config.first_come && is_favoured(r);
        if (is_owed) need.floor_share = is_late(r, plan_start_ns) ? kLateShare : kFloorShare;
        need.is_stalled = i == stalled && !config.first_come;
        needs.push_back(need);
    }
}

DecodeLoad Scheduler::Impl::decode_load() const {
    DecodeLoad load;
    load.rows = static_cast<int32_t>(decodes.size());
    load.one_off_ns = one_off_ns;
    for (const int32_t i : decodes) load.context_tokens += at(i).computed + 1;
    return load;
}

/// The gap of a step that holds the decode rows and the floor's slice of the prompts: the tightest that a request may ask for. Where
/// each row has its price, of the decode rows alone: prompts then go by late slices.
void Scheduler::Impl::note_least_step(uint64_t start_ns) {
    const bool wanted = std::any_of(decodes.begin(), decodes.end(), [&](int32_t i) { return at(i).request.itl_ns != 0; });
    if (!wanted || config.fixed_chunk) return;
    const DecodeLoad load = decode_load();
    int64_t left = 0;
    uint64_t waited = 0;
    for (const PrefillNeed& need : needs) left += need.remaining;
    for (const int32_t i : decodes) waited = std::max(waited, waited_ns(at(i), start_ns));
    const auto most = static_cast<int32_t>(std::min<int64_t>(left, std::max(0, config.row_ladder.back() - load.rows)));
    if (most == 0) return;
    const int32_t slice = cost.rows_are_data() ? 0 : floor_slice(cost, load, most);
    const StepFeatures features = mixed_features(cost, load, needs, slice);
    const double step = (static_cast<double>(cost.bound_ns(features)) + host.ns()) / trim.factor() + 1e3;
    least_itl_ns = static_cast<uint64_t>(step) + std::min<uint64_t>(waited, static_cast<uint64_t>(step));
}

/// Tells promises that decoding alone breaks, also those of single requests, from the others.
void Scheduler::Impl::note_lost_promises(const DecodeLoad& load, RowBudget& budget) {
    const double usual_ns = static_cast<double>(cost.predict_ns(mixed_features(cost, load, needs, 0))) + host.ns();
    for (const int32_t i : decodes) {
        if (static_cast<double>(promised_ns(at(i))) < usual_ns) {
            budget.is_late_anyway = true;
        } else {
            const double left = allowed_gap_ns(at(i), plan_start_ns) * trim.factor() - host.ns();
            budget.kept_ns = std::min(budget.kept_ns, static_cast<uint64_t>(std::max(left, 0.0)));
        }
    }
}

RowChoice Scheduler::Impl::choose(uint64_t budget_ns) {
    const DecodeLoad load = decode_load();
    if (!config.fixed_chunk) {
        RowBudget budget{budget_ns, config.row_ladder.back(), steps_without_prefill, gap_credit > 0, decode_late > kLateAnyway};
        if (cost.rows_are_data()) note_lost_promises(load, budget);
        return choose_rows(cost, load, needs, budget);
    }
    const bool alone = needs.size() + waiting.size() < 2 || load.rows == 0;   // who stands behind a whole step's work is not let in yet
    int32_t chunk = alone && config.lone_chunk_tokens > 0 ? config.lone_chunk_tokens : config.fixed_chunk_tokens;
    if (config.chunk_holds_decodes) chunk = std::max(chunk - load.rows, 1);
    int64_t left = 0;
    for (const PrefillNeed& need : needs) left += need.remaining;
    RowChoice choice;
    choice.prefill_rows = static_cast<int32_t>(std::min<int64_t>(left, chunk));
    return choice;
}

void Scheduler::Impl::note_infeasible(uint64_t start_ns, bool infeasible) {
    if (infeasible) {
        StepFeatures f;
        f.rows = f.decode_rows = static_cast<int32_t>(decodes.size());
        for (const int32_t i : decodes) f.kv_read_tokens += at(i).computed + 1;
        f.padded_rows = cost.padded_rows(f.rows);
        const auto alone_ns = static_cast<double>(cost.bound_ns(f)) + host.ns();
        for (const int32_t i : decodes) {
            if (allowed_gap_ns(at(i), start_ns) < alone_ns) ++infeasible_steps[static_cast<size_t>(at(i).request.class_index)];
        }
    }
    if (++window_steps < kWindowSteps) return;
    for (size_t c = 0; c < infeasible_steps.size(); ++c) {
        is_infeasible[c] = infeasible_steps[c] * 2 > window_steps ? 1 : 0;
        infeasible_steps[c] = 0;
    }
    window_steps = 0;
}

/// A step that works for a tenant that had little is not filled up with prompts of one that had more: it would end later for that,
/// and with it the first one's prompt.
void Scheduler::Impl::hold_back() {
    if (prefills.empty() || !is_favoured(at(prefills.front()))) return;
    std::erase_if(prefills, [&](int32_t i) { return !is_favoured(at(i)) && ++at(i).stalled_steps < kStalledSteps; });
}

void Scheduler::Impl::place_prefills(uint64_t start_ns, StepPlan& plan) {
    order_prefills(start_ns);
    hold_back();
    const bool decoding = !decodes.empty();
    uint64_t idle_ns = kMaxIdleStepNs;
    for (const SchedulerClass& c : config.classes) idle_ns = std::min(idle_ns, c.ttft_ns / 4);
    plan.budget_ns = decoding ? gap_budget_ns(start_ns) : 0;
    last_constrained = last_infeasible = false;
    if (prefills.empty()) {
        steps_without_prefill = 0;
        note_infeasible(start_ns, false);
        return;
    }
    fill_needs();
    if (decoding) {
        note_least_step(start_ns);
        plan.budget_ns = gap_budget_ns(start_ns);
    }
    const uint64_t budget_ns = decoding ? plan.budget_ns : idle_ns;
    const RowChoice choice = choose(budget_ns);
    step_ns = static_cast<double>(budget_ns);
    plan.at_floor = choice.at_floor;
    last_constrained = choice.at_floor || choice.infeasible || choice.saves_up;
    last_infeasible = choice.infeasible;
    note_infeasible(start_ns, choice.infeasible);
    steps_without_prefill = choice.prefill_rows > 0 ? 0 : steps_without_prefill + 1;
    share_rows(needs, choice.prefill_rows);
    for (size_t i = 0; i < needs.size(); ++i) {
        Record& r = at(prefills[i]);
        r.stalled_steps = needs[i].rows > 0 ? 0 : r.stalled_steps + 1;
        if (needs[i].rows > 0) add_segment(plan, r, needs[i].rows);
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
    if (s.is_decode) {
        plan.features.add_decode(r.computed);
    } else {
        plan.features.add_slice(rows, r.computed);
    }
    if (s.samples) {
        ++plan.num_samples;
        plan.greedy = plan.greedy && r.request.greedy;
    }
    plan.segments.push_back(s);
}

void Scheduler::Impl::close_plan(StepPlan& plan) {
    plan.step = next_step++;
    plan.features.one_off_ns = one_off_ns;
    plan.features.padded_rows = cost.padded_rows(plan.features.rows);
    if (plan.num_samples > 0) {
        const auto padded = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(plan.num_samples)));
        plan.padded_samples = std::min(padded, config.max_running);
    }
    plan.predicted_ns = cost.predict_ns(plan.features);
    plan.padding_ns = cost.padding_ns(plan.features);
    if (spare.empty()) spare.emplace_back();
    launched.push_back(std::move(spare.back()));
    spare.pop_back();
    Launched& step = launched.back();
    step.step = plan.step;
    step.features = plan.features;
    step.at_floor = plan.at_floor;
    for (const PlanSegment& s : plan.segments) {
        const int32_t place = slot_records[static_cast<size_t>(s.slot)];
        Record& r = at(place);
        const uint64_t waited = waited_ns(r, plan_start_ns);
        r.computed += s.num_rows;
        r.last_step = plan.step;
        r.skipped_steps = 0;
        if (s.samples) {
            ++r.outputs;
            if (r.state != State::decoding) shares.leave(r.request.tenant_index);
            r.state = State::decoding;
        }
        step.parts.push_back({place, s.request, r.admission, r.computed, s.num_rows, s.is_decode, r.request.tenant_index,
                              class_of(r).weight, waited});
    }
    const double late_share_ns = kLateShare * static_cast<double>(plan.predicted_ns);
    if (!waiting.empty()) late_credit_ns = std::min(late_credit_ns + late_share_ns, kMostLateCreditNs);
    trim.step(plan.features.prefill_segments > 0, last_constrained, last_infeasible);
}

}  // namespace takt
