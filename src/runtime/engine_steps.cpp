// Steps of the EngineCore: plan and launch, completion, hand-over of turns, books. See engine_core.h's stage table.
#include "runtime/engine_core.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "kernels/assert.h"
#include "runtime/budget.h"

namespace takt {
namespace {

StepMode mode_of(const StepFeatures& f) {
    if (f.prefill_segments == 0) return StepMode::decode;
    return f.decode_rows == 0 ? StepMode::prefill : StepMode::mixed;
}

/// Most samples have no log-probabilities: their lists are left as they were.
void copy_sample(SampleResult& to, const SampleResult& from) {
    to.token = from.token;
    to.flags = from.flags;
    to.logprob = from.logprob;
    to.num_top = from.num_top;
    std::copy_n(from.top_tokens, from.num_top, to.top_tokens);
    std::copy_n(from.top_logprobs, from.num_top, to.top_logprobs);
}

}  // namespace

uint64_t EngineCore::earliest_end_ns(const InFlight& step) const {
    const uint64_t early = forecast_.early_ns(step.plan.features.prefill_segments > 0);
    return step.predicted_end_ns > early ? step.predicted_end_ns - early : 0;
}

uint64_t EngineCore::plan_due_ns() const {
    const uint64_t lead = static_cast<uint64_t>(host_ns_) + options_.wake_margin_ns;
    const uint64_t end = earliest_end_ns(*inflight_.back());
    return end > lead ? end - lead : 0;
}

bool EngineCore::try_launch() {
    if (failed_ || !dirty_ || inflight_.size() > static_cast<size_t>(options_.pipeline_depth)) return false;
    const uint64_t now = parts_.clock->now_ns();
    // Planned late, so that an arrival waits half a step and not one and a half.
    if (!inflight_.empty() && now < plan_due_ns()) return false;
    std::unique_ptr<InFlight> step;
    if (spare_.empty()) {
        step = std::make_unique<InFlight>();
    } else {
        step = std::move(spare_.back());
        spare_.pop_back();
    }
    const uint64_t start = inflight_.empty() ? now : std::max(now, inflight_.back()->predicted_end_ns);
    scheduler_->plan(start, step->plan);
    const uint64_t planned = parts_.clock->now_ns();
    for (RequestId id : step->plan.preempted) {
        metrics_.preemptions.fetch_add(1, std::memory_order_relaxed);
        ++requests_.at(id)->num_preemptions;
    }
    if (step->plan.empty()) {
        // Whoever lost his blocks now made room: the next plan may let somebody in.
        dirty_ = !step->plan.preempted.empty();
        if (dirty_ && on_plan) on_plan(step->plan);
        spare_.push_back(std::move(step));
        update_gauges();
        return dirty_;
    }
    step->plan.block_tokens = options_.runner.block_tokens;
    // A launch that failed stays in flight until its event all the same: the books of its plan are closed there.
    const Status status = runner_->launch(step->plan, *this, step->ticket);
    if (!status) fail_device(status.message);
    step->launched_ns = now;
    step->plan_ns = planned - now;
    step->predicted_end_ns = start + step->plan.predicted_ns;
    launched(std::move(step), now);
    return true;
}

void EngineCore::launched(std::unique_ptr<InFlight> step, uint64_t plan_begin_ns) {
    const uint64_t now = parts_.clock->now_ns();
    step->host_ns = now - plan_begin_ns;
    step->num_late = 0;
    step->late_ns = step->latest_ns = 0;
    host_ns_ += 0.1 * (static_cast<double>(step->host_ns) - host_ns_);
    for (const PlanSegment& segment : step->plan.segments) {
        SlotUse& slot = slots_[static_cast<size_t>(segment.slot)];
        if (slot.id != segment.request) take_slot(segment.slot, segment.request, now);
        slot.last_step = step->plan.step;
    }
    for (RequestId id : step->plan.admitted) {
        RequestState& state = *requests_.at(id);
        if (state.num_preemptions != 0) continue;
        state.cached_tokens = scheduler_->cached_tokens(id);
        metrics_.cached_prompt_tokens.fetch_add(static_cast<uint64_t>(state.cached_tokens), std::memory_order_relaxed);
    }
    expected_ns_.store(step->plan.predicted_ns);
    if (inflight_.empty()) inflight_since_ns_.store(now);
    step->is_untried = is_untried(step->plan.features);
    inflight_.push_back(std::move(step));
    note_untried();
    if (on_plan) on_plan(inflight_.back()->plan);
    update_gauges();
    if (inflight_.size() == 1) await_front();
}

namespace {

int64_t context_work(const StepFeatures& step) { return step.kv_read_tokens + step.prefill_pairs; }

}  // namespace

/// Twice as large as all before: one that grows with its contexts from step to step has been tried.
bool EngineCore::is_untried(const StepFeatures& step) const {
    return step.rows > 2 * tried_rows_ || context_work(step) > 2 * tried_context_;
}

void EngineCore::note_untried() {
    is_untried_.store(std::any_of(inflight_.begin(), inflight_.end(), [](const auto& step) { return step->is_untried; }));
}

/// The request's first rows in this slot are under way.
void EngineCore::take_slot(int32_t slot, RequestId id, uint64_t now_ns) {
    RequestState& state = *requests_.at(id);
    SlotUse& use = slots_[static_cast<size_t>(slot)];
    // Whoever had it was preempted; so was this one, if it had another.
    if (use.state != nullptr) use.state->last_launched_step = use.last_step;
    if (state.slot >= 0 && slots_[static_cast<size_t>(state.slot)].id == id) slots_[static_cast<size_t>(state.slot)] = {};
    use = {id, &state, 0};
    state.slot = slot;
    if (state.admitted_ns != 0) return;
    state.admitted_ns = now_ns;
    metrics_.queue.observe(static_cast<double>(state.admitted_ns - state.spec.arrival_ns) * 1e-9);
}

/// Null where the request has left.
RequestState* EngineCore::find(const PlanSegment& segment) const {
    const SlotUse& use = slots_[static_cast<size_t>(segment.slot)];
    if (use.id == segment.request) return use.state;
    const auto at = requests_.find(segment.request);   // it left, or was preempted since
    return at == requests_.end() ? nullptr : at->second.get();
}

/// A hint: `part` of the request that the segment's slot belongs to, if it is still there.
void EngineCore::prefetch(const PlanSegment& segment, void (RequestState::*part)() const) const {
    const SlotUse& use = slots_[static_cast<size_t>(segment.slot)];
    if (use.id == segment.request && use.state != nullptr) (use.state->*part)();
}

uint64_t EngineCore::last_launched_step(const RequestState& state) const {
    if (state.slot < 0) return 0;
    const SlotUse& use = slots_[static_cast<size_t>(state.slot)];
    return use.id == state.id ? use.last_step : state.last_launched_step;
}

/// One step at a time: a host that comes late may find two of them over, and the first must be applied before the second is seen.
void EngineCore::await_front() {
    events_.async_wait(inflight_.front()->ticket.event, [this](Status status) { complete(*inflight_.front(), status); });
}

void EngineCore::complete(InFlight& step, Status status) {
    const uint64_t now = parts_.clock->now_ns();
    progress_ns_.store(now);
    if (!status) fail_device(status.message);
    net::post(*parts_.io, [this, &step, now] {
        if (!failed_) deliver(step, now);
        apply(step, now);   // by now each request has said whether it goes on
    });
}

void EngineCore::resume_woken() {
    for (size_t i = 0; i < woken_.size(); ++i) {
        RequestState::Waiter waiter = std::move(woken_[i]);   // who runs may wake others
        std::move(waiter)();
    }
    woken_.clear();
}

/// Each request runs as soon as it has its turn: the first token of many leaves while the others wait for theirs. Most of a turn's time
/// would be waits for memory that nobody touched since the step before, so that of the requests some turns ahead is asked for now.
void EngineCore::deliver(const InFlight& step, uint64_t now_ns) {
    constexpr size_t kFar = 8, kNear = 4;   // turns ahead: the request itself, what it points to
    const std::vector<PlanSegment>& segments = step.plan.segments;
    const SampleResult* samples = runner_->samples(step.ticket);
    for (size_t i = 0; i < segments.size(); ++i) {
        const PlanSegment& segment = segments[i];
        if (i + kFar < segments.size()) prefetch(segments[i + kFar], &RequestState::prefetch);
        if (i + kNear < segments.size()) prefetch(segments[i + kNear], &RequestState::prefetch_parts);
        const SampleResult* sample = segment.samples ? samples++ : nullptr;
        RequestState* state = find(segment);
        if (state == nullptr || state->is_ending) continue;   // its row was computed for nobody
        Turn& turn = state->new_turn();
        turn.kind = sample != nullptr ? Turn::Kind::token : Turn::Kind::prefill;
        turn.step = step.plan.step;
        turn.seen_ns = now_ns;
        if (sample != nullptr) copy_sample(turn.sample, *sample);
        state->wake(woken_);
        resume_woken();
    }
}

void EngineCore::apply(InFlight& step, uint64_t now_ns) {
    const StepResultHeader& header = runner_->result_header(step.ticket);
    StepOutcome& outcome = outcome_;
    outcome.step = step.plan.step;
    outcome.failed = failed_;   // its results are nobody's, its blocks go back
    outcome.sampled.clear();
    // Stamps of the device's clock; a device with a coarse one may report none.
    outcome.device_ns = !failed_ && header.end_ns > header.begin_ns ? header.end_ns - header.begin_ns : 0;
    for (const PlanSegment& segment : step.plan.segments) {
        if (!segment.samples) continue;
        const bool finished = find(segment) == nullptr;
        outcome.sampled.push_back({segment.request, finished});
    }
    forecast_.observe(step.plan.features.prefill_segments > 0, step.plan.predicted_ns, outcome.device_ns,
                      outcome.device_ns != 0 ? header.end_ns : 0, now_ns);
    scheduler_->apply(outcome, now_ns);
    metrics_.set_cost(cost_->snapshot());
    if (!failed_) record(step, now_ns, outcome.device_ns);
    while (!freeing_.empty() && freeing_.front().step <= step.plan.step) {
        metrics_.cancel_to_free.observe(static_cast<double>(now_ns - freeing_.front().cancel_ns) * 1e-9);
        freeing_.pop_front();
    }
    dirty_ = true;
    std::unique_ptr<InFlight> done = std::move(inflight_.front());
    inflight_.pop_front();
    tried_rows_ = std::max(tried_rows_, done->plan.features.rows);
    tried_context_ = std::max(tried_context_, context_work(done->plan.features));
    note_untried();
    inflight_since_ns_.store(inflight_.empty() || failed_ ? 0 : now_ns);
    if (!inflight_.empty()) {
        // The next step was predicted to begin where this one was predicted to end: now it is known.
        inflight_.front()->predicted_end_ns = forecast_.last_end_ns() + inflight_.front()->plan.predicted_ns;
        await_front();
    }
    update_gauges();
    if (on_applied) on_applied(done->plan, outcome);
    spare_.push_back(std::move(done));
}

void EngineCore::record(const InFlight& step, uint64_t now_ns, uint64_t device_ns) {
    const StepFeatures& f = step.plan.features;
    const auto mode = static_cast<size_t>(mode_of(f));
    metrics_.steps[mode][step.ticket.replayed ? 1 : 0].fetch_add(1, std::memory_order_relaxed);
    metrics_.step_seconds[mode].observe(static_cast<double>(device_ns) * 1e-9);
    metrics_.step_prefill_tokens.observe(f.rows - f.decode_rows);
    if (f.padded_rows > 0) {
        metrics_.padding_ratio.observe(static_cast<double>(f.padded_rows - std::min(f.rows, f.padded_rows)) / f.padded_rows);
    }
    const StepResultHeader& header = runner_->result_header(step.ticket);
    const SchedulerCounts counts = scheduler_->counts();
    StepRecord r;
    r.step = step.plan.step;
    r.launched_ns = step.launched_ns;
    r.begin_ns = header.begin_ns;
    r.end_ns = header.end_ns;
    r.seen_ns = now_ns;
    r.host_ns = step.host_ns;
    r.plan_ns = step.plan_ns;
    r.num_decode_rows = f.decode_rows;
    r.num_prefill_rows = f.rows - f.decode_rows;
    r.padded_rows = f.padded_rows;
    r.num_samples = step.plan.num_samples;
    r.predicted_ms = static_cast<double>(step.plan.predicted_ns) * 1e-6;
    r.budget_ms = static_cast<double>(step.plan.budget_ns) * 1e-6;
    r.graph = step.ticket.replayed;
    r.num_running = counts.num_running;
    r.num_waiting = counts.num_waiting;
    r.num_preempted = static_cast<int32_t>(step.plan.preempted.size());
    r.kv_blocks_used = kv_->counts().num_used;
    r.num_late = step.num_late;
    r.late_ms = static_cast<double>(step.late_ns) * 1e-6;
    if (step.num_late > 0) r.late_cause = kLateCauseNames[static_cast<size_t>(step.latest_cause)];
    recorder_.add(r);
}

void EngineCore::fail_device(const char* why) {
    if (failed_) return;
    failed_ = true;
    lost_.store(true);
    failure_ = why;
    inflight_since_ns_.store(0);
    for (auto& [id, state] : requests_) end_request(*state, errc::device_lost);
}

void EngineCore::note_token(RequestState& state, const Turn& turn) {
    if (on_token) on_token(state);
    metrics_.generated_tokens.fetch_add(1, std::memory_order_relaxed);
    auto& per_class = metrics_.classes[static_cast<size_t>(state.spec.class_index)];
    const SchedulerClass& sla = options_.scheduler.classes[static_cast<size_t>(state.spec.class_index)];
    const uint64_t now = parts_.clock->now_ns();
    if (state.first_token_ns == 0) {
        state.first_token_ns = now;
        const uint64_t ttft = now - state.spec.arrival_ns;
        per_class.ttft.observe(static_cast<double>(ttft) * 1e-9);
        const auto& own = state.spec.request.ttft_ms;
        const uint64_t promised = own ? static_cast<uint64_t>(*own * 1e6) : sla.ttft_ns;
        if (ttft > promised) per_class.ttft_misses.fetch_add(1, std::memory_order_relaxed);
    } else {
        const uint64_t gap = now - state.last_token_ns;
        per_class.inter_token.observe(static_cast<double>(gap) * 1e-9);
        state.note_gap(gap);
        const auto& own = state.spec.request.itl_ms;
        uint64_t promised = own ? static_cast<uint64_t>(*own * 1e6) : sla.itl_ns;
        if (state.spec.request.envelope || sla.envelope) {
            const auto itl = static_cast<double>(promised);
            const double due = static_cast<double>(state.first_token_ns) + itl * (state.num_outputs() - 2);   // of the token before
            promised = static_cast<uint64_t>(envelope_gap_ns(itl, due - static_cast<double>(state.last_token_ns)));
        }
        if (gap > promised) {
            // A gap that its own reader made is no promise missed.
            if (!state.was_paused) per_class.itl_misses.fetch_add(1, std::memory_order_relaxed);
            count_late(state, turn, gap, promised);
        }
    }
    state.was_paused = false;
    state.preemptions_seen = state.num_preemptions;
    state.last_token_ns = now;
    scheduler_->emitted(state.id, now, state.tokens);
}

void EngineCore::count_late(RequestState& state, const Turn& turn, uint64_t gap_ns, uint64_t promised_ns) {
    LateFacts facts;
    facts.gap_ns = gap_ns;
    facts.promised_ns = promised_ns;
    facts.was_paused = state.was_paused;
    facts.was_preempted = state.num_preemptions > state.preemptions_seen;
    if (!inflight_.empty() && inflight_.front()->plan.step == turn.step) {
        const InFlight& step = *inflight_.front();
        const StepFeatures& f = step.plan.features;
        const StepResultHeader& header = runner_->result_header(step.ticket);
        facts.device_ns = header.end_ns > header.begin_ns ? header.end_ns - header.begin_ns : 0;
        facts.predicted_ns = step.plan.predicted_ns;
        facts.padding_ns = step.plan.padding_ns;
        facts.prefill_rows = f.rows - f.decode_rows;
    }
    const LateCause cause = late_cause(facts);
    metrics_.late_ns[static_cast<size_t>(cause)].fetch_add(gap_ns - promised_ns, std::memory_order_relaxed);
    if (inflight_.empty() || inflight_.front()->plan.step != turn.step) return;
    InFlight& step = *inflight_.front();
    ++step.num_late;
    step.late_ns += gap_ns - promised_ns;
    if (gap_ns - promised_ns < step.latest_ns) return;
    step.latest_ns = gap_ns - promised_ns;
    step.latest_cause = cause;
}

void EngineCore::emit(RequestState& state, Chunk chunk) {
    if (!state.stream->push(std::move(chunk)) || state.is_ending) return;
    state.is_paused = true;
    state.was_paused = true;
    scheduler_->set_paused(state.id, true);
    dirty_ = true;
}

}  // namespace takt
