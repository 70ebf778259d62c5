// Scheduler: who gets a slot and blocks, and who loses them. Whole prompts only, with blocks kept free for the answers that run;
// a request that was preempted N_max times comes back with all the blocks it can ever need, so that nobody has to take them
// from it and it never has to ask again. Slots and blocks go from a lighter class to a heavier one that would be late. scheduling.md 4.4.
#include <algorithm>
#include <tuple>
#include <utility>

#include "runtime/scheduler_rank.h"

namespace takt {
namespace {

constexpr double kReserveDecay = 0.999;      // an admission without a squeeze
constexpr double kReserveRise = 1.3;         // a preemption
constexpr double kLeastReserve = 0.1, kMostReserve = 2.0;
constexpr int32_t kMostLateBegun = 2;
constexpr int32_t kLeastOutputs = 16;        // an answer that outgrew what was expected needs some more
constexpr uint64_t kSoonShare = 4;           // a fourth of its TTFT promise before the last moment a request asks lighter classes to yield
constexpr size_t kSortedAtOnce = 8;          // of those that may come in
constexpr double kOwedFactor = 10;           // of its TTFT promise: then nobody passes a request that lacks room beside others

}  // namespace

bool Scheduler::Impl::make_room(int32_t index_of, StepPlan& plan) {
    Record& r = at(index_of);
    while (!kv.reserve(r.slot, int64_t{r.computed} + 1)) {
        if (kv.num_retiring() > 0) return false;   // blocks are on their way back: wait a step rather than throw out more
        const int32_t victim = choose_victim(index_of);
        if (victim < 0) return false;
        preempt(victim, plan);
        if (r.state == State::waiting) return false;   // it was itself the cheapest to give up
    }
    return true;
}

/// Paused readers first, then the lowest class, prefills before decodes, the least to compute again. Of those whose reader reads
/// never one that was preempted N_max times, and never the oldest for another, so that somebody always advances.
int32_t Scheduler::Impl::choose_victim(int32_t requester) const {
    auto order = [&](const Record& r) {
        const int reading = r.is_paused ? 0 : 1;
        const int decoding = r.state == State::decoding ? 1 : 0;
        return std::tuple(reading, class_of(r).weight, decoding, r.computed - r.cached, ~r.admission);
    };
    int32_t best = -1;
    for (size_t i = 0; i < running.size(); ++i) {
        const Record& r = at(running[i]);
        if (running[i] == requester || (requester < 0 && !r.is_paused)) continue;
        if (!r.is_paused && (i == 0 || r.num_preemptions >= config.max_preemptions)) continue;
        if (best < 0 || order(r) < order(at(best))) best = running[i];
    }
    if (requester < 0) return best;
    const Record& own = at(requester);
    // The oldest too, where a pinned one holds the blocks that it lacks: that one advances.
    const auto is_pinned = [&](int32_t i) { return at(i).num_preemptions >= config.max_preemptions && !at(i).is_paused; };
    const bool others_advance = requester != running.front() || std::any_of(running.begin(), running.end(), is_pinned);
    const bool may_yield = others_advance && own.num_preemptions < config.max_preemptions;
    if (may_yield && (best < 0 || order(own) < order(at(best)))) return requester;
    return best;
}

/// KV waits in the host's memory where its way out and back is shorter than to compute it again.
void Scheduler::Impl::swap_out(Record& r, StepPlan& plan) {
    const double way_ns = config.swap_ns_per_token * r.computed;
    if (r.computed > swap_left || r.computed <= r.cached) return;
    if (2 * way_ns >= cost.prefill_ns(r.cached, r.computed - r.cached)) return;
    const std::span<const int32_t> table = kv.table(r.slot);
    plan.copies.push_back({r.request.id, true, 0, r.computed, {table.begin(), table.end()}});
    r.swapped = r.computed;
    swap_left -= r.swapped;
    one_off_ns += static_cast<uint64_t>(way_ns);
}

/// What the prefix cache does not hold comes back.
void Scheduler::Impl::swap_in(Record& r, StepPlan& plan) {
    if (r.swapped > r.cached) {
        const std::span<const int32_t> table = kv.table(r.slot);
        plan.copies.push_back({r.request.id, false, r.cached, r.swapped - r.cached, {table.begin(), table.end()}});
        one_off_ns += static_cast<uint64_t>(config.swap_ns_per_token * (r.swapped - r.cached));
        r.computed = r.swapped;
    }
    swap_left += r.swapped;
    r.swapped = 0;
}

void Scheduler::Impl::preempt(int32_t index_of, StepPlan& plan) {
    Record& r = at(index_of);
    swap_out(r, plan);
    leave_slot(r);
    running.erase(std::find(running.begin(), running.end(), index_of));
    if (r.state == State::decoding) shares.enter(r.request.tenant_index);
    r.state = State::waiting;
    r.computed = 0;
    r.pending_gap_ns = 0;
    waiting.push_back(index_of);
    ++tenant_waiting[static_cast<size_t>(r.request.tenant_index)];
    if (!r.is_paused) {   // else its own reader's doing
        ++r.num_preemptions;
        reserve = std::min(reserve * kReserveRise + 0.05, kMostReserve);
    }
    plan.preempted.push_back(r.request.id);
}

Scheduler::Impl::AdmissionLoad Scheduler::Impl::admission_load() const {
    AdmissionLoad load;
    StepFeatures f;
    for (const int32_t i : running) {
        load.num_reading += at(i).is_paused ? 0 : 1;
        f.kv_read_tokens += std::max(at(i).computed, at(i).target) + 1;   // it will decode one day
    }
    f.rows = f.decode_rows = f.padded_rows = static_cast<int32_t>(running.size());
    // Where each row has its price keeping others out does not mend what those who run break by themselves.
    const double usual_ns = cost.rows_are_data() ? static_cast<double>(cost.predict_ns(f)) + host.ns() : 0.0;
    for (const int32_t i : running) {
        if (static_cast<double>(promised_ns(at(i))) >= usual_ns) load.tightest_ns = std::min(load.tightest_ns, itl_ns(at(i)));
    }
    f.decode_rows = static_cast<int32_t>(running.size()) + 1;
    f.rows = f.decode_rows + least_slice(cost);
    f.prefill_segments = 1;
    f.padded_rows = cost.padded_rows(f.rows);
    // For life: where others share the cores the margin is the doubt of one step, and half of steps are shorter than predicted.
    const bool shared = cost.rows_are_data();
    load.bound_ns = static_cast<double>(shared ? cost.predict_ns(f) : cost.bound_ns(f));
    load.context_ns = cost.snapshot().kd_ns * (shared ? 1.0 : cost.margin(f));
    load.trim = shared ? 1.0 : trim.trim();
    StepFeatures alone;
    alone.rows = alone.decode_rows = 1;
    alone.padded_rows = cost.padded_rows(1);
    load.alone_ns = static_cast<double>(shared ? cost.predict_ns(alone) : cost.bound_ns(alone));
    return load;
}

bool Scheduler::Impl::at_tenant_limit(const Record& r) const {
    const auto tenant = static_cast<size_t>(r.request.tenant_index);
    const int32_t limit = config.tenants.empty() ? 0 : config.tenants[tenant].max_running;
    return limit > 0 && tenant_running[tenant] >= limit;
}

bool Scheduler::Impl::may_admit(const Record& r, const AdmissionLoad& load) const {
    if (r.is_paused || r.last_step > applied_step) return false;   // its last sampled token is not known yet
    if (at_tenant_limit(r)) return false;
    if (load.num_reading == 0 || load.tightest_ns == UINT64_MAX || config.fixed_chunk) return true;
    if (r.outputs + 1 >= r.request.max_tokens) return true;   // its only token comes with its prompt: it never decodes
    // Decode floor: one more stream for life must leave room for a slice of prefill within the tightest promise.
    const double promise = static_cast<double>(std::min(load.tightest_ns, itl_ns(r))) * load.trim - host.ns();
    const double own_ns = load.context_ns * r.request.prompt_tokens;
    // Where one stream alone breaks it the promise cannot be kept by keeping others out.
    return load.bound_ns + own_ns <= promise || load.alone_ns + own_ns > promise;
}

/// A prompt that would only stand behind more than a step's work of others keeps its slot and blocks for somebody else.
bool Scheduler::Impl::is_worth_starting(const Record& r, const Rank& own, uint64_t start_ns) const {
    const int32_t enough = config.fixed_chunk ? std::max(config.fixed_chunk_tokens, config.lone_chunk_tokens) : config.row_ladder.back();
    int64_t ahead = 0;
    int32_t num_late = 0;
    for (const int32_t i : running) {
        const Record& other = at(i);
        if (other.remaining_prefill() == 0 || other.is_paused) continue;
        const double left_ns = remaining_ns(other);
        const bool late = is_late(other, left_ns, start_ns);
        if (rank(other, left_ns, late, start_ns) < own) ahead += other.remaining_prefill();
        num_late += late ? 1 : 0;
        if (ahead >= enough) return false;
    }
    // What was begun and lost its promise holds slots and blocks: before more of the long ones come in it is ended.
    const bool is_long = r.request.prompt_tokens > enough / 4;
    return config.first_come || !is_long || num_late < std::max(kMostLateBegun, config.max_running / 4);
}

/// Blocks that the answers of running requests are expected to need yet.
int32_t Scheduler::Impl::reserved_blocks() const {
    double tokens = 0;
    for (const int32_t i : running) {
        const Record& r = at(i);
        if (r.is_paused) continue;   // it gives way itself
        const int64_t held = int64_t{kv.num_blocks_of(r.slot)} * kv.block_tokens();
        const int64_t most = int64_t{r.request.prompt_tokens} + r.request.max_tokens - held;
        if (most <= 0) continue;
        const double expected = std::max(expected_outputs - r.outputs, double{kLeastOutputs});
        tokens += std::min(static_cast<double>(most), reserve * expected);
    }
    return kv.blocks_for(static_cast<int64_t>(tokens));
}

bool Scheduler::Impl::admit_one(int32_t index_of, StepPlan& plan) {
    Record& r = at(index_of);
    const int32_t target = r.request.prompt_tokens + r.outputs;
    const bool pinned = r.num_preemptions >= config.max_preemptions;
    const int64_t hold = pinned ? int64_t{r.request.prompt_tokens} + r.request.max_tokens : int64_t{target} + 1;
    const int32_t watermark = running.empty() || pinned ? 0 : reserved_blocks() + kv.num_usable() / 64;
    const int32_t need = kv.blocks_for(hold) + watermark;
    // The cache is asked only where its answer could matter.
    if (need - kv.blocks_for(target) > kv.num_available()) return false;
    if (need > kv.num_available()) {
        const int32_t cached = r.request.tokens.empty() ? 0 : kv.match(r.request.cache_domain, r.request.tokens);
        r.expected_cached = cached;
        // Cached blocks that nobody holds are counted as available too.
        if (need - cached / kv.block_tokens() > kv.num_available() - cached / kv.block_tokens()) return false;
    }
    const int32_t slot = free_slots.back();
    const int32_t cached = kv.open(slot, r.request.cache_domain, r.request.tokens);
    if (!kv.reserve(slot, hold)) {
        kv.release(slot, applied_step);
        return false;
    }
    free_slots.pop_back();
    slot_records[static_cast<size_t>(slot)] = index_of;
    waiting.erase(std::find(waiting.begin(), waiting.end(), index_of));
    running.push_back(index_of);
    --tenant_waiting[static_cast<size_t>(r.request.tenant_index)];
    ++tenant_running[static_cast<size_t>(r.request.tenant_index)];
    r.slot = slot;
    r.state = State::prefilling;
    r.cached = r.expected_cached = cached;
    r.computed = cached;
    swap_in(r, plan);
    r.target = target;
    r.stalled_steps = 0;
    r.admission = next_admission++;
    reserve = std::max(reserve * kReserveDecay, kLeastReserve);
    plan.admitted.push_back(r.request.id);
    return true;
}

/// The last step had no slot or no blocks for somebody: where that is a request whose first token is about to be late, the lightest of the
/// classes that weigh less gives up its own, before the step has rows. One a step, and none where all together would not be enough.
void Scheduler::Impl::let_yield(uint64_t start_ns, StepPlan& plan) {
    if (!std::exchange(lacks_room, false) || config.classes.size() < 2) return;
    if (!free_slots.empty() && kv.num_retiring() > 0) return;   // blocks are on their way back
    double heaviest = 0;
    const auto yields = [&](int32_t i) { return may_yield(at(i), heaviest); };
    for (const SchedulerClass& c : config.classes) heaviest = std::max(heaviest, c.weight);
    if (std::none_of(running.begin(), running.end(), yields)) return;   // whoever waits: they may be thousands
    heaviest = 0;
    for (const int32_t i : waiting) heaviest = std::max(heaviest, class_of(at(i)).weight);
    if (std::none_of(running.begin(), running.end(), yields)) return;
    const AdmissionLoad load = admission_load();
    int32_t asking = -1;
    for (const int32_t i : waiting) {
        const Record& r = at(i);
        const auto order = [&](const Record& other) { return std::pair(-class_of(other).weight, other.key_ns); };
        if (r.num_emitted > 0 || (asking >= 0 && order(at(asking)) <= order(r))) continue;
        if (is_late(r, start_ns + ttft_ns(r) / kSoonShare) && is_favoured(r) && may_admit(r, load)) asking = i;
    }
    if (asking < 0) return;
    const Record& r = at(asking);
    const int32_t need = kv.blocks_for(int64_t{r.request.prompt_tokens} + 1);
    if (!free_slots.empty() && need + reserved_blocks() + kv.num_usable() / 64 <= kv.num_available()) return;   // it waits for its turn
    int32_t victim = -1;
    int64_t room = kv.num_available();
    const auto order = [&](const Record& other) {
        return std::tuple(class_of(other).weight, other.state == State::decoding, other.computed - other.cached, ~other.admission);
    };
    for (const int32_t i : running) {
        if (!may_yield(at(i), class_of(r).weight)) continue;
        room += kv.num_blocks_of(at(i).slot);
        if (victim < 0 || order(at(i)) < order(at(victim))) victim = i;
    }
    if (victim < 0 || room < need) return;
    preempt(victim, plan);
    yielded_to = r.request.id;
}

/// Who may come in, in no order, and among them who is owed: the oldest prompt past its promise, if its share of the device can pay for it
/// by now. Thousands may wait: each is looked at once a plan. False where somebody waits for the others to become fewer.
bool Scheduler::Impl::list_candidates(const AdmissionLoad& load, uint64_t start_ns) {
    candidates.clear();
    owed = -1;
    uint64_t oldest_ns = UINT64_MAX;
    size_t owed_at = 0;
    for (const int32_t i : waiting) {
        const Record& r = at(i);
        const double left_ns = remaining_ns(r);
        const bool late = is_late(r, left_ns, start_ns);
        const bool may = may_admit(r, load);
        if (late && r.request.arrival_ns < oldest_ns && is_favoured(r)) {
            oldest_ns = r.request.arrival_ns;
            owed = i;
            owed_at = may ? candidates.size() : SIZE_MAX;
        }
        if (may) {
            // Who was made room for, before all others.
            candidates.push_back({r.request.id == yielded_to ? Rank{0, 0.0, 0.0, 0} : rank(r, left_ns, late, start_ns), i});
            continue;
        }
        const double patience = kOwedFactor * static_cast<double>(ttft_ns(r));
        const bool lacks = !r.is_paused && r.last_step <= applied_step && !at_tenant_limit(r);
        if (lacks && static_cast<double>(start_ns) > static_cast<double>(r.request.arrival_ns) + patience) return false;
    }
    if (owed < 0 || config.first_come || at(owed).work_ns > late_credit_ns) {
        owed = -1;
    } else if (owed_at < candidates.size() && at(owed).request.id != yielded_to) {
        candidates[owed_at].rank = {0, 1.0, 0.0, 0};   // behind those whose tokens flow
    }
    return true;
}

void Scheduler::Impl::admit(uint64_t start_ns, StepPlan& plan) {
    if (waiting.empty()) return;
    lacks_room = free_slots.empty() && choose_victim(-1) < 0;
    if (lacks_room) return;
    AdmissionLoad load = admission_load();
    if (!list_candidates(load, start_ns)) return;
    size_t num_sorted = 0;
    for (size_t next = 0; next < candidates.size(); ++next) {
        if (next == num_sorted) {   // a few come in at most: the others need no order
            num_sorted = std::min(candidates.size(), next + std::max(kSortedAtOnce, next));
            const auto begin = candidates.begin();
            std::partial_sort(begin + static_cast<ptrdiff_t>(next), begin + static_cast<ptrdiff_t>(num_sorted), candidates.end());
        }
        const auto& [own, index_of] = candidates[next];
        if (!may_admit(at(index_of), load)) continue;   // those before it changed the load
        if (at(index_of).request.id != yielded_to && !is_worth_starting(at(index_of), own, start_ns)) return;
        // The first in line keeps its place, so that nobody passes it for ever; paused readers make room for it.
        while (free_slots.empty() || !admit_one(index_of, plan)) {
            const int32_t victim = choose_victim(-1);
            lacks_room = victim < 0;
            if (victim < 0) return;
            preempt(victim, plan);
        }
        if (index_of == owed) late_credit_ns -= at(index_of).work_ns;
        load = admission_load();
    }
}

}  // namespace takt
