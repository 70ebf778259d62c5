// Admission, the crank, and the end of requests; see engine_core.h. Steps' completion is in engine_steps.cpp.
#include "runtime/engine_core.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "kernels/assert.h"
#include "runtime/step_timer.h"

namespace takt {
namespace {

std::vector<std::string> class_names(const SchedulerConfig& config) {
    std::vector<std::string> names;
    for (const SchedulerClass& c : config.classes) names.push_back(c.name);
    return names;
}

SchedulerRequest scheduler_request(const RequestState& state) {
    const Request& r = state.spec.request;
    auto to_ns = [](const std::optional<double>& ms) { return ms ? static_cast<uint64_t>(*ms * 1e6) : 0; };
    SchedulerRequest s;
    s.id = state.id;
    s.class_index = state.spec.class_index;
    s.tenant_index = state.spec.tenant_index;
    s.prompt_tokens = state.num_prompt;
    s.max_tokens = state.spec.max_tokens;
    s.arrival_ns = state.spec.arrival_ns;
    s.itl_ns = to_ns(r.itl_ms);
    s.ttft_ns = to_ns(r.ttft_ms);
    s.envelope = r.envelope;
    s.greedy = state.is_greedy();
    // Penalty counts are made from the rows that run: a cached prefix would be missing from them.
    if (state.sample.uses_counts == 0) s.tokens = state.tokens;
    s.cache_domain = state.spec.cache_domain;
    return s;
}

}  // namespace

EngineCore::EngineCore(const EngineParts& parts, CoreOptions options)
    : parts_(parts),
      options_(std::move(options)),
      metrics_(class_names(options_.scheduler), options_.runner.num_blocks - 1),
      recorder_(static_cast<size_t>(options_.recorder_steps)),
      events_(*parts.io),
      deliveries_(std::make_shared<DeliveryQueue>(parts.user_executor)) {
    slots_.resize(static_cast<size_t>(options_.runner.max_running));
}

Result<std::unique_ptr<EngineCore>> EngineCore::create(const EngineParts& parts, CoreOptions options) {
    std::unique_ptr<EngineCore> core(new EngineCore(parts, std::move(options)));
    const CoreOptions& o = core->options_;
    Result<std::unique_ptr<ForwardRunner>> runner = ForwardRunner::create(*parts.device, *parts.model, o.runner);
    if (!runner) return Error{runner.error()};
    core->runner_ = std::move(runner).value();
    core->events_.add_stream(core->runner_->stream());
    core->cost_ = std::make_unique<CostModel>(o.runner.row_ladder, o.scheduler.rows_are_data, o.roofline);
    // One that does not fit these shapes is refused by the model, which then begins with the roofline.
    core->has_cost_table_ = !o.cost_table.empty() && core->cost_->load(o.cost_table);
    KvConfig kv;
    kv.num_blocks = o.runner.num_blocks;
    kv.block_tokens = o.runner.block_tokens;
    kv.max_running = o.runner.max_running;
    kv.max_context = o.runner.max_context;
    kv.prefix_cache = o.prefix_cache;
    core->kv_ = std::make_unique<KvManager>(kv);
    core->scheduler_ = std::make_unique<Scheduler>(o.scheduler, *core->cost_, *core->kv_);
    core->progress_ns_.store(parts.clock->now_ns());
    return core;
}

EngineCore::~EngineCore() = default;

bool EngineCore::calibrate_costs(double seconds) {
    TAKT_ASSERT(requests_.empty() && inflight_.empty());
    StepTimer timer(*runner_, *parts_.tokenizer);
    return calibrate(timer, *cost_, seconds);
}

double EngineCore::check_costs(double most, double seconds) {
    TAKT_ASSERT(requests_.empty() && inflight_.empty());
    if (!has_cost_table_) return 0;
    StepTimer timer(*runner_, *parts_.tokenizer);
    const double factor = prediction_factor(timer, *cost_, seconds);
    if (factor > most) {
        *cost_ = CostModel(options_.runner.row_ladder, options_.scheduler.rows_are_data, options_.roofline);
        has_cost_table_ = false;
    }
    return factor;
}

bool EngineCore::warm_up(double seconds) {
    TAKT_ASSERT(requests_.empty() && inflight_.empty());
    StepTimer timer(*runner_, *parts_.tokenizer);
    return takt::warm_up(timer, *cost_, seconds);
}

const RequestState& EngineCore::request(RequestId id) const { return *requests_.at(id); }

std::span<const int32_t> EngineCore::block_table(RequestId, int32_t slot) const { return kv_->table(slot); }

SubmitOutcome EngineCore::submit(PreparedRequest prepared, std::function<void(RequestId)> on_resume) {
    SubmitOutcome out;
    auto refuse = [&](errc error, std::string message) {
        out.error = error;
        out.message = std::move(message);
        metrics_.refused[static_cast<size_t>(error)].fetch_add(1, std::memory_order_relaxed);
        return out;
    };
    if (prepared.error != errc::ok) return refuse(prepared.error, prepared.message);
    if (failed_) return refuse(errc::device_lost, "the device is lost");
    Gate::Pass pass = gate_.enter();
    if (!pass) return refuse(errc::draining, "the engine is draining");

    const RequestId id = next_id_++;
    auto stream = std::make_shared<TokenStream>(parts_.user_executor, [id, on_resume = std::move(on_resume)] {
        if (on_resume) on_resume(id);
    }, deliveries_);
    // Alone in the whole pool it must fit: an answer that would outgrow the pool ends with `length` instead of waiting for ever.
    const int64_t pool = int64_t{options_.runner.num_blocks - 1} * options_.runner.block_tokens;
    const int64_t room = std::max<int64_t>(1, pool - static_cast<int64_t>(prepared.tokens.size()));
    prepared.max_tokens = static_cast<int32_t>(std::min<int64_t>(prepared.max_tokens, room));
    StopStrings stops = std::move(prepared.stops);
    auto state = std::make_shared<RequestState>(id, std::move(prepared),
                                                Detokenizer(*parts_.tokenizer, std::move(stops), {true, false}), stream);
    const uint64_t now = parts_.clock->now_ns();
    const Admission admission = scheduler_->submit(scheduler_request(*state), now);
    out.retry_after_ns = admission.retry_after_ns;
    switch (admission.verdict) {
        case Admission::Verdict::accepted: break;
        case Admission::Verdict::queue_full: return refuse(errc::queue_full, "the waiting queue is full");
        case Admission::Verdict::deadline_unreachable:
            return refuse(errc::deadline_unreachable, "the first token cannot come within the time asked for");
        case Admission::Verdict::too_long_for_kv:
            return refuse(errc::context_too_long, "the prompt has " + std::to_string(state->num_prompt) +
                                                      " tokens, with one of an answer the KV pool holds " + std::to_string(pool));
    }
    state->pass = std::move(pass);
    out.stream = stream;
    out.id = id;
    out.prompt_tokens = state->num_prompt;
    out.cached_tokens = admission.cached_tokens;
    if (state->spec.request.deadline_ms) {
        state->deadline_ns = state->spec.arrival_ns + static_cast<uint64_t>(*state->spec.request.deadline_ms * 1e6);
        deadlines_.emplace(state->deadline_ns, id);
    }
    metrics_.accepted.fetch_add(1, std::memory_order_relaxed);
    metrics_.prompt_tokens.fetch_add(static_cast<uint64_t>(state->num_prompt), std::memory_order_relaxed);
    requests_.emplace(id, state);
    dirty_ = true;
    // By then the request has left, as it does however it ends: nobody else is touched.
    spawn(*parts_.io, run_request(*this, state), [this, id](std::exception_ptr problem) {
        if (on_exception) on_exception(id, problem);
    });
    update_gauges();
    return out;
}

void EngineCore::end_request(RequestState& state, errc error) {
    if (state.is_ending) return;
    state.is_ending = true;
    state.cancel_ns = parts_.clock->now_ns();
    Turn& turn = state.new_turn();
    turn.kind = Turn::Kind::ended;
    turn.seen_ns = state.cancel_ns;
    turn.error = error;
    state.wake(woken_);
    if (woken_.size() == 1) net::post(*parts_.io, [this] { resume_woken(); });
}

void EngineCore::cancel(RequestId id) {
    const auto at = requests_.find(id);
    if (at != requests_.end()) end_request(*at->second, errc::cancelled);
}

void EngineCore::cancel_all() {
    for (auto& [id, state] : requests_) end_request(*state, errc::cancelled);
}

void EngineCore::resume_reader(RequestId id) {
    const auto at = requests_.find(id);
    if (at == requests_.end() || !at->second->is_paused) return;
    at->second->is_paused = false;
    scheduler_->set_paused(id, false);
    dirty_ = true;
}

void EngineCore::drain(std::function<void()> on_empty) {
    draining_.store(true);
    gate_.close(std::move(on_empty));
}

bool EngineCore::check_deadlines(uint64_t now_ns) {
    bool any = false;
    while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
        end_request(*requests_.at(deadlines_.begin()->second), errc::deadline_exceeded);
        deadlines_.erase(deadlines_.begin());
        any = true;
    }
    return any;
}

void EngineCore::leave(RequestState& state) {
    const uint64_t now = parts_.clock->now_ns();
    const uint64_t last_step = last_launched_step(state);
    const bool in_flight = last_step != 0 && !inflight_.empty() && last_step >= inflight_.front()->plan.step;
    scheduler_->finish(state.id);
    deadlines_.erase({state.deadline_ns, state.id});
    if (state.cancel_ns != 0 && !in_flight) {
        metrics_.cancel_to_free.observe(static_cast<double>(now - state.cancel_ns) * 1e-9);
    } else if (state.cancel_ns != 0) {
        freeing_.push_back({last_step, state.cancel_ns});
    }
    metrics_.finished[static_cast<size_t>(state.reason)].fetch_add(1, std::memory_order_relaxed);
    metrics_.request.observe(static_cast<double>(now - state.spec.arrival_ns) * 1e-9);
    state.stream->finish(state.error == errc::ok ? error_code() : make_error_code(state.error), state.result(now));
    dirty_ = true;
    if (state.slot >= 0 && slots_[static_cast<size_t>(state.slot)].id == state.id) slots_[static_cast<size_t>(state.slot)] = {};
    requests_.erase(state.id);   // the coroutine's own reference keeps it alive until it returns
    update_gauges();
}

bool EngineCore::pump() {
    bool progressed = parts_.io->poll() > 0;
    progressed |= parts_.device->poll();
    progressed |= events_.poll();
    progressed |= check_deadlines(parts_.clock->now_ns());
    progressed |= try_launch();
    return progressed;
}

std::optional<uint64_t> EngineCore::next_wake_ns() const {
    std::optional<uint64_t> wake;
    auto earlier = [&](uint64_t t) { wake = wake ? std::min(*wake, t) : t; };
    if (!deadlines_.empty()) earlier(deadlines_.begin()->first);
    if (!failed_ && dirty_ && inflight_.size() == 1 && options_.pipeline_depth == 1) earlier(plan_due_ns());
    return wake;
}

std::optional<uint64_t> EngineCore::predicted_end_ns() const {
    if (inflight_.empty()) return std::nullopt;
    return earliest_end_ns(*inflight_.front());
}

HealthSnapshot EngineCore::health(uint64_t now_ns) const {
    HealthSnapshot h;
    h.loaded = true;
    h.draining = draining_.load();
    h.device_lost = lost_.load();
    const uint64_t since = inflight_since_ns_.load();
    h.expected_step_seconds = static_cast<double>(expected_ns_.load()) * 1e-9;
    const uint64_t progress = std::max(progress_ns_.load(), since);
    h.seconds_since_progress = now_ns > progress ? static_cast<double>(now_ns - progress) * 1e-9 : 0;
    // A step may take ten times what was predicted, and never less than five seconds is suspicious. Of one that is larger than all before
    // the prediction is a guess, which may be ten times too low by itself, and its memory is touched for the first time.
    const double floor_seconds = is_untried_.load() ? 60.0 : 5.0;
    h.progressing = since == 0 || h.seconds_since_progress < std::max(floor_seconds, 10 * h.expected_step_seconds);
    if (h.device_lost) {
        h.reason = "device lost";
    } else if (h.draining) {
        h.reason = "draining";
    } else if (!h.progressing) {
        h.reason = "no step has completed for " + std::to_string(h.seconds_since_progress) + " s";
    }
    return h;
}

void EngineCore::update_gauges() {
    const SchedulerCounts counts = scheduler_->counts();
    metrics_.running.store(counts.num_running, std::memory_order_relaxed);
    metrics_.waiting.store(counts.num_waiting, std::memory_order_relaxed);
    metrics_.kv_used.store(kv_->counts().num_used, std::memory_order_relaxed);
    metrics_.budget_trim.store(scheduler_->budget_trim(), std::memory_order_relaxed);
    for (size_t c = 0; c < metrics_.classes.size(); ++c) {
        const bool infeasible = scheduler_->infeasible(static_cast<int32_t>(c));
        metrics_.classes[c].infeasible.store(infeasible ? 1 : 0, std::memory_order_relaxed);
    }
}

}  // namespace takt
