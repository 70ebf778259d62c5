// The books of the simulation; see plan_checker.h.
#include "sim/plan_checker.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "runtime/budget.h"

namespace takt::engine_sim {
namespace {

constexpr int32_t kMaxStepsLeftOut = 8;    // P_max and M of invariants 7 and 8; a decode may also have to wait for blocks
constexpr size_t kHistory = 50;

uint64_t mix(uint64_t state, uint64_t value) {
    uint64_t x = state ^ (value + 0x9e3779b97f4a7c15ull + (state << 6) + (state >> 2));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

}  // namespace

PlanChecker::PlanChecker(const SimCase& spec, EngineCore& core)
    : case_(spec),
      core_(core),
      requests_(1),
      kv_(static_cast<size_t>(spec.num_blocks) * static_cast<size_t>(spec.block_tokens), 0),
      owners_(static_cast<size_t>(spec.num_blocks), 0) {}

void PlanChecker::fail(int number, const std::string& what) {
    if (!wrong_.empty()) return;
    wrong_ = "invariant " + std::to_string(number) + " at step " + std::to_string(at_step_) + ": " + what;
}

void PlanChecker::add(RequestId id, const SimClient& client, const HashChain& chain, const TokenStream& stream) {
    if (requests_.size() <= id) requests_.resize(static_cast<size_t>(id) + 1);
    Shadow& r = requests_[static_cast<size_t>(id)];
    r.chain = &chain;
    r.stream = &stream;
    r.num_prompt = static_cast<int32_t>(client.prompt.size());
    r.max_tokens = client.max_tokens;
    r.is_cacheable = case_.prefix_cache && !client.has_penalties;
    live_.push_back(id);
}

void PlanChecker::take_preempted(const StepPlan& plan) {
    bool for_a_row = false;
    for (const RequestId id : plan.preempted) {
        Shadow& r = requests_[static_cast<size_t>(id)];
        const std::string who = "request " + std::to_string(id);
        if (!r.is_running) fail(10, who + " is preempted and was not running");
        r.is_running = r.is_decoding = false;
        r.computed = 0;
        if (core_.request(id).is_paused) continue;   // its reader is slower than any recompute
        for_a_row = true;
        most_preemptions_ = std::max(most_preemptions_, ++r.num_preemptions);
        if (r.num_preemptions > case_.scheduler.max_preemptions) {
            fail(10, who + " is preempted for the " + std::to_string(r.num_preemptions) + "th time");
        }
    }
    if (for_a_row && !plan.admitted.empty()) fail(10, "a step that throws somebody out also lets somebody in");
}

void PlanChecker::take_admitted(const StepPlan& plan) {
    for (const RequestId id : plan.admitted) {
        Shadow& r = requests_[static_cast<size_t>(id)];
        const std::string who = "request " + std::to_string(id);
        if (r.is_running) fail(3, who + " is admitted while it runs");
        const int32_t cached = core_.scheduler().cached_tokens(id);
        if (cached % case_.block_tokens != 0 || cached > r.num_prompt + r.outputs - 1) fail(3, who + " takes a strange cached prefix");
        if (cached != 0 && !r.is_cacheable) fail(3, who + " takes a cached prefix that it may not have");
        r.is_running = true;
        r.is_decoding = false;
        r.computed = cached;
        r.target = r.num_prompt + r.outputs;
        r.admission = next_admission_++;
        r.steps_left_out = 0;
    }
}

/// How many running tables name each block, and that every running request has a table that holds what it has computed.
void PlanChecker::map_owners() {
    std::fill(owners_.begin(), owners_.end(), 0);
    std::erase_if(live_, [&](RequestId id) { return !requests_[static_cast<size_t>(id)].is_live(); });
    for (const RequestId id : live_) {
        for (const int32_t block : core_.scheduler().block_table(id)) {
            if (block <= 0 || block >= case_.num_blocks) return fail(1, "a table names block " + std::to_string(block));
            ++owners_[static_cast<size_t>(block)];
        }
    }
}

void PlanChecker::check_reads(const PlanSegment& segment, std::span<const int32_t> table) {
    const Shadow& r = requests_[static_cast<size_t>(segment.request)];
    for (int32_t p = 0; p < segment.token_begin; ++p) {
        const int32_t slot = table[static_cast<size_t>(p / case_.block_tokens)] * case_.block_tokens + p % case_.block_tokens;
        if (kv_[static_cast<size_t>(slot)] == r.chain->hash(p)) continue;
        return fail(11, "request " + std::to_string(segment.request) + " reads position " + std::to_string(p) +
                            " from a slot that holds something else");
    }
}

void PlanChecker::check_writes(const PlanSegment& segment, std::span<const int32_t> table) {
    const Shadow& r = requests_[static_cast<size_t>(segment.request)];
    const std::string who = "request " + std::to_string(segment.request);
    for (int32_t p = segment.token_begin; p < segment.token_begin + segment.num_rows; ++p) {
        const int32_t block = table[static_cast<size_t>(p / case_.block_tokens)];
        kv_[static_cast<size_t>(block * case_.block_tokens + p % case_.block_tokens)] = r.chain->hash(p);
        if (p != segment.token_begin && p % case_.block_tokens != 0) continue;
        if (owners_[static_cast<size_t>(block)] != 1) fail(2, who + " writes into a block that another one's table names");
        for (const InFlight& step : inflight_) {
            for (const Named& named : step.blocks) {
                if (named.block != block || named.id == segment.request) continue;
                fail(2, who + " writes into block " + std::to_string(block) + ", which step " + std::to_string(step.step) +
                            " still names for request " + std::to_string(named.id));
            }
        }
    }
}

void PlanChecker::check_segment(const StepPlan& plan, const PlanSegment& segment, InFlight& step) {
    (void)plan;
    const std::string who = "request " + std::to_string(segment.request);
    if (segment.request >= requests_.size()) return fail(3, who + " is unknown");
    Shadow& r = requests_[static_cast<size_t>(segment.request)];
    if (!r.is_live() || !r.is_running) return fail(3, who + " has rows and does not run");
    if (segment.token_begin != r.computed) return fail(3, who + " leaves out or repeats positions");
    if (segment.is_decode != r.is_decoding) return fail(3, who + " decodes before its prompt is done, or the other way round");
    const int32_t end = segment.token_begin + segment.num_rows;
    if (segment.is_decode) {
        if (segment.num_rows != 1 || !segment.samples) return fail(3, who + " has a strange decode row");
    } else {
        if (segment.num_rows < 1 || end > r.target) return fail(3, who + " has a chunk beyond its prompt");
        if (segment.samples != (end == r.target)) return fail(3, who + " is sampled in the middle of its prompt, or not behind it");
    }
    const std::span<const int32_t> table = core_.scheduler().block_table(segment.request);
    if (static_cast<int32_t>(table.size()) * case_.block_tokens < end) return fail(2, who + " has rows without blocks");
    check_reads(segment, table);
    check_writes(segment, table);
    for (const int32_t block : table) step.blocks.push_back({block, segment.request});
    r.computed = end;
    if (!segment.samples) return;
    r.is_decoding = true;
    if (++r.outputs > r.max_tokens) fail(3, who + " is sampled beyond max_tokens");
}

void PlanChecker::check_features(const StepPlan& plan) {
    StepFeatures f;
    int32_t num_samples = 0;
    bool behind_prefill = false;
    std::vector<int32_t> slots;
    for (const PlanSegment& s : plan.segments) {
        f.rows += s.num_rows;
        num_samples += s.samples ? 1 : 0;
        slots.push_back(s.slot);
        if (s.is_decode) {
            ++f.decode_rows;
            f.kv_read_tokens += s.token_begin + 1;
            if (behind_prefill) fail(2, "a decode row stands behind prefill rows");
        } else {
            behind_prefill = true;
            ++f.prefill_segments;
            f.prefill_pairs += int64_t{s.num_rows} * s.token_begin + int64_t{s.num_rows} * (s.num_rows + 1) / 2;
        }
    }
    const StepFeatures& g = plan.features;
    if (f.rows != g.rows || f.decode_rows != g.decode_rows || f.prefill_segments != g.prefill_segments ||
        f.kv_read_tokens != g.kv_read_tokens || f.prefill_pairs != g.prefill_pairs || num_samples != plan.num_samples) {
        fail(2, "the plan's features are not those of its segments");
    }
    std::sort(slots.begin(), slots.end());
    if (std::adjacent_find(slots.begin(), slots.end()) != slots.end()) fail(2, "two segments of a step have one slot");
    if (!slots.empty() && (slots.front() < 0 || slots.back() >= case_.scheduler.max_running)) fail(2, "a slot is out of range");
}

void PlanChecker::check_shape(const StepPlan& plan) {
    const std::vector<int32_t>& ladder = core_.runner().options().row_ladder;
    const int32_t padded = plan.features.padded_rows;
    const int32_t largest = ladder.back();
    const int32_t beyond = plan.features.rows <= largest ? 0 : (plan.features.rows - 1) / largest * largest;
    if (plan.features.rows > padded) fail(16, "more rows than the shape holds");
    if (beyond > 0 && !case_.scheduler.fixed_chunk) fail(16, "a time-sliced step is larger than the largest shape");
    if (!std::binary_search(ladder.begin(), ladder.end(), padded - beyond)) fail(16, "the shape is not in the ladder");
    if (!std::binary_search(ladder.begin(), ladder.end(), case_.scheduler.max_running)) fail(16, "max_running is not in the ladder");
    const int32_t samples = plan.padded_samples;
    const bool is_shape = samples == 0 || samples == case_.scheduler.max_running || std::has_single_bit(static_cast<uint32_t>(samples));
    if (!is_shape || samples < plan.num_samples) fail(16, "the samples' shape is not one of 1, 2, 4 ... max_running");
}

void PlanChecker::check_budget(const StepPlan& plan) {
    const StepFeatures& f = plan.features;
    if (case_.scheduler.fixed_chunk || plan.at_floor || f.prefill_segments == 0) return;
    const uint64_t bound = core_.cost().bound_ns(f);
    if (f.decode_rows > 0 && bound > plan.budget_ns) {
        fail(4, "predicted " + std::to_string(bound) + " ns, budget " + std::to_string(plan.budget_ns) + " ns");
    }
    uint64_t idle_ns = 100'000'000;
    for (const SchedulerClass& c : case_.scheduler.classes) idle_ns = std::min(idle_ns, c.ttft_ns / 4);
    if (f.decode_rows == 0 && bound > idle_ns) fail(20, "an idle step is predicted to take " + std::to_string(bound) + " ns");
}

/// The next larger shape, filled by the dearest of the waiting prefills, must break the budget or move prompts no faster. Prompts of
/// tenants without rows in the step do not count: those who had more are held back.
void PlanChecker::check_work_conserving(const StepPlan& plan) {
    const StepFeatures& f = plan.features;
    if (case_.scheduler.fixed_chunk || plan.at_floor || f.prefill_segments == 0 || f.decode_rows == 0) return;
    std::vector<int32_t> tenants;
    for (const PlanSegment& s : plan.segments) {
        if (!s.is_decode) tenants.push_back(core_.request(s.request).spec.tenant_index);
    }
    int32_t pending = 0, dearest = 0, prefills = 0;
    for (const RequestId id : live_) {
        const Shadow& r = requests_[static_cast<size_t>(id)];
        if (!r.is_running || r.is_decoding || core_.request(id).is_paused) continue;
        const int32_t tenant = core_.request(id).spec.tenant_index;
        if (std::find(tenants.begin(), tenants.end(), tenant) == tenants.end()) continue;
        pending += r.target - r.computed;
        dearest = std::max(dearest, r.computed);
        ++prefills;
    }
    const std::vector<int32_t>& ladder = core_.runner().options().row_ladder;
    const auto next = std::upper_bound(ladder.begin(), ladder.end(), f.padded_rows);
    if (next == ladder.end() || *next - f.rows > pending) return;
    StepFeatures more = f;
    const int64_t extra = *next - f.rows;
    more.rows = more.padded_rows = *next;
    more.prefill_segments += prefills;
    more.prefill_pairs += extra * dearest + extra * (extra + 1) / 2 + extra * f.rows;
    const auto pace = [&](const StepFeatures& step) {
        return (step.rows - step.decode_rows) / static_cast<double>(core_.cost().predict_ns(step));
    };
    if (core_.cost().bound_ns(more) <= plan.budget_ns && pace(more) > pace(f)) {
        fail(6, "a shape of " + std::to_string(*next) + " rows would have fitted, " + std::to_string(f.rows) + " were taken");
    }
}

bool PlanChecker::lacks_blocks(RequestId id, const Shadow& r) const {
    const KvCounts counts = core_.kv().counts();
    const auto held = static_cast<int32_t>(core_.scheduler().block_table(id).size());
    return held * case_.block_tokens <= r.computed && counts.num_free + counts.num_idle == 0;
}

void PlanChecker::check_progress(const StepPlan& plan) {
    int32_t num_prefills = 0;
    auto waits = [&](const Shadow& r, const RequestState& state) {
        return r.is_running && !state.is_paused && !state.is_ending && r.outputs < r.max_tokens;
    };
    auto has_rows = [&](RequestId id) {
        return std::any_of(plan.segments.begin(), plan.segments.end(), [id](const PlanSegment& s) { return s.request == id; });
    };
    for (const RequestId id : live_) {
        const Shadow& r = requests_[static_cast<size_t>(id)];
        num_prefills += waits(r, core_.request(id)) && (!r.is_decoding || (has_rows(id) && r.outputs == 1)) ? 1 : 0;
    }
    const bool with_prefill = plan.features.prefill_segments > 0;
    steps_without_prefill_ = with_prefill || num_prefills == 0 ? 0 : steps_without_prefill_ + 1;
    if (steps_without_prefill_ > most_duty_steps(core_.cost())) {
        fail(8, "no prompt has moved for " + std::to_string(steps_without_prefill_) + " steps");
    }
    for (const RequestId id : live_) {
        Shadow& r = requests_[static_cast<size_t>(id)];
        if (has_rows(id) || !waits(r, core_.request(id))) {
            r.steps_left_out = 0;
        } else if (r.is_decoding && lacks_blocks(id, r)) {
            continue;   // those who were preempted often enough hold the pool until they end, and they move
        } else if (r.is_decoding) {
            if (++r.steps_left_out > 2 * kMaxStepsLeftOut) {
                fail(7, "request " + std::to_string(id) + " has had no row for " + std::to_string(r.steps_left_out) + " steps");
            }
        } else if (with_prefill && !case_.scheduler.fixed_chunk && ++r.steps_left_out > kMaxStepsLeftOut + num_prefills) {
            // Floors go to one prompt at a time, so that each comes to its own within as many steps more as there are prompts.
            fail(8, "request " + std::to_string(id) + " has moved in none of " + std::to_string(r.steps_left_out) + " steps of prompts");
        }
    }
}

void PlanChecker::planned(const StepPlan& plan) {
    at_step_ = plan.step;
    history_.push_back(plan);
    if (history_.size() > kHistory) history_.pop_front();
    take_preempted(plan);
    take_admitted(plan);
    map_owners();
    if (plan.empty()) {
        if (plan.preempted.empty() || !plan.admitted.empty()) fail(3, "a plan without rows that changes nothing, or lets somebody in");
        return;
    }
    InFlight step;
    step.step = plan.step;
    for (const PlanSegment& segment : plan.segments) check_segment(plan, segment, step);
    inflight_.push_back(std::move(step));
    if (!wrong_.empty()) return;
    check_features(plan);
    check_shape(plan);
    check_budget(plan);
    check_work_conserving(plan);
    check_progress(plan);
    add_to_digest(plan);
}

void PlanChecker::applied(const StepPlan& plan, const StepOutcome& outcome) {
    at_step_ = plan.step;
    if (inflight_.empty() || inflight_.front().step != plan.step) return fail(21, "steps are not applied in the order of their plans");
    inflight_.pop_front();
    if (outcome.step != plan.step) fail(3, "the outcome is of another step");
    if (outcome.sampled.size() != static_cast<size_t>(plan.num_samples)) fail(3, "not every sampled row has an outcome");
    if (const std::string books = core_.scheduler().check_integrity(); !books.empty()) fail(1, books);
    check_model();
    check_blocks();
}

void PlanChecker::check_model() {
    const CostSnapshot cost = core_.cost().snapshot();
    for (const double q : cost.margin) {
        if (!(q >= 1.0 && q <= 2.0)) fail(17, "a margin is out of [1, 2]");
    }
    for (const double slope : {cost.kd_ns, cost.ka_ns, cost.ks_ns}) {
        if (!std::isfinite(slope) || slope < 0) fail(17, "a slope is negative or not finite");
    }
    const double u = core_.scheduler().budget_trim();
    if (!(u >= 0.5 && u <= 1.0)) fail(17, "the trim is out of [0.5, 1]");
}

void PlanChecker::check_blocks() {
    if (!wrong_.empty()) return;
    map_owners();
    const KvCounts counts = core_.kv().counts();
    if (counts.num_free + counts.num_idle + counts.num_used != counts.num_total) fail(1, "free, cached and used are not all blocks");
    for (const InFlight& step : inflight_) {
        for (const Named& named : step.blocks) ++owners_[static_cast<size_t>(named.block)];
    }
    const auto named = std::count_if(owners_.begin(), owners_.end(), [](int32_t n) { return n > 0; });
    // A block that was taken for a row and given up again in the same plan goes with the others of its table.
    const int32_t waiting = inflight_.empty() ? 0 : counts.num_retiring;
    if (counts.num_used > named + waiting || (inflight_.empty() && counts.num_retiring > 0)) {
        fail(13, std::to_string(counts.num_used) + " blocks are held, running requests and launched steps name " +
                     std::to_string(named));
    }
}

void PlanChecker::check_empty() {
    if (!wrong_.empty()) return;
    if (const std::string books = core_.scheduler().check_integrity(); !books.empty()) return fail(1, books);
    const KvCounts counts = core_.kv().counts();
    if (counts.num_used != 0 || counts.num_retiring != 0) {
        fail(1, std::to_string(counts.num_used) + " blocks are not back at the end");
    }
    const SchedulerCounts left = core_.scheduler().counts();
    if (left.num_running != 0 || left.num_waiting != 0) fail(1, "the scheduler still has requests at the end");
}

void PlanChecker::add_to_digest(const StepPlan& plan) {
    auto add = [this](int64_t value) { digest_ = mix(digest_, static_cast<uint64_t>(value)); };
    add(static_cast<int64_t>(plan.step));
    add(plan.features.padded_rows);
    add(plan.padded_samples);
    add(plan.greedy);
    for (const PlanSegment& s : plan.segments) {
        add(static_cast<int64_t>(s.request));
        add(s.slot);
        add(s.token_begin);
        add(s.num_rows);
        add((s.samples ? 1 : 0) + (s.is_decode ? 2 : 0));
        for (const int32_t block : core_.scheduler().block_table(s.request)) add(block);
    }
    for (const RequestId id : plan.admitted) add(static_cast<int64_t>(id));
    add(-1);
    for (const RequestId id : plan.preempted) add(static_cast<int64_t>(id));
}

std::string PlanChecker::last_plans() const {
    std::ostringstream out;
    for (const StepPlan& plan : history_) {
        out << "  step " << plan.step << ": " << plan.features.rows << '/' << plan.features.padded_rows << " rows, budget "
            << plan.budget_ns / 1000 << " us, predicted " << plan.predicted_ns / 1000 << " us" << (plan.at_floor ? ", floor" : "");
        for (const RequestId id : plan.preempted) out << ", out " << id;
        for (const RequestId id : plan.admitted) out << ", in " << id;
        out << ':';
        for (const PlanSegment& s : plan.segments) {
            out << ' ' << s.request << (s.is_decode ? "d" : "p") << s.token_begin;
            if (!s.is_decode) out << '+' << s.num_rows << (s.samples ? "!" : "");
        }
        out << '\n';
    }
    return out.str();
}

}  // namespace takt::engine_sim
