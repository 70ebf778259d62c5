// The crank of the simulation; see engine_sim.h.
#include "sim/engine_sim.h"

#include <algorithm>

#include "kernels/assert.h"
#include "kernels/device_factory.h"
#include "model/model_file.h"

namespace takt::engine_sim {
namespace {

constexpr uint64_t kLongestNs = 3'600'000'000'000;   // an hour of virtual time: whoever is still there then waits for ever

uint64_t mix(uint64_t state, uint64_t value) {
    uint64_t x = state ^ (value + 0x9e3779b97f4a7c15ull + (state << 6) + (state >> 2));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 31);
}

}  // namespace

EngineSim::EngineSim(const SimCase& spec) : spec_(spec), random_(spec.seed ^ 0x70617573ull) { build(); }

EngineSim::~EngineSim() {
    // A run that failed leaves requests behind: their coroutines end before the core does.
    core_->cancel_all();
    while (io_.poll_one() > 0) {
    }
    readers_.clear();
    checker_.reset();
}

CoreOptions EngineSim::options() const {
    CoreOptions o;
    o.scheduler = spec_.scheduler;
    o.scheduler.row_ladder = device_->row_ladder(spec_.scheduler.max_running, spec_.max_rows);
    o.pipeline_depth = spec_.pipeline_depth;
    o.prefix_cache = spec_.prefix_cache;
    o.recorder_steps = 16;
    o.runner.kv_type = DType::u8;
    o.runner.block_tokens = spec_.block_tokens;
    o.runner.num_blocks = spec_.num_blocks;
    o.runner.max_running = spec_.scheduler.max_running;
    o.runner.max_context = spec_.scheduler.max_context;
    o.runner.row_ladder = o.scheduler.row_ladder;
    o.runner.max_plan_rows = spec_.scheduler.fixed_chunk ? spec_.scheduler.fixed_chunk_tokens + spec_.scheduler.max_running
                                                         : o.runner.row_ladder.back();
    o.runner.graphs = spec_.graphs;
    const ModelCosts costs = model_->costs();
    const DeviceCaps& caps = device_->caps();
    o.roofline.bytes_per_second = caps.read_bytes_per_second / spec_.speed_guess;
    o.roofline.operations_per_second = caps.operations_per_second / spec_.speed_guess;
    o.roofline.launch_seconds = caps.launch_seconds;
    o.roofline.weight_bytes = costs.weight_bytes;
    o.roofline.operations_per_row = costs.operations_per_row;
    o.roofline.kv_bytes_per_token = costs.kv_bytes_per_token;
    o.roofline.operations_per_pair = costs.operations_per_pair;
    return o;
}

void EngineSim::build() {
    tokenizer_.emplace(make_tokenizer(byte_tokenizer_spec()).value());
    device_ = make_sim_device(spec_.device, clock_.source()).value();
    model_ = std::make_unique<SimModel>(*device_, tokenizer_->vocab_size(), spec_.scheduler.max_context, tokenizer_->eos());
    EngineParts parts;
    parts.clock = &clock_;
    parts.device = device_.get();
    parts.model = model_.get();
    parts.tokenizer = &*tokenizer_;
    parts.io = &io_;
    parts.user_executor = io_.get_executor();
    core_ = std::move(EngineCore::create(parts, options()).value());
    checker_ = std::make_unique<PlanChecker>(spec_, *core_);
    core_->on_plan = [this](const StepPlan& plan) { planned(plan); };
    core_->on_applied = [this](const StepPlan& plan, const StepOutcome& outcome) { applied(plan, outcome); };
    const uint64_t start = clock_.now_ns();
    for (const SimClient& client : spec_.clients) {
        readers_.push_back(std::make_unique<SimReader>(*this, client, tokenizer_->eos(), tokenizer_->vocab_size()));
        at(start + client.arrival_ns, [reader = readers_.back().get()] { reader->submit(); });
    }
    if (spec_.drain_ns > 0) {
        at(start + spec_.drain_ns, [this] {
            drain_began_ = true;
            core_->drain([this] { drain_ended_ = true; });
        });
    }
}

void EngineSim::planned(const StepPlan& plan) {
    num_steps_ += plan.empty() ? 0 : 1;
    checker_->planned(plan);
    auto holds = [](const std::vector<RequestId>& ids, RequestId id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); };
    for (const auto& reader : readers_) {
        if (reader->id() == 0) continue;
        const bool has_rows = std::any_of(plan.segments.begin(), plan.segments.end(),
                                          [&](const PlanSegment& s) { return s.request == reader->id(); });
        const bool is_out = holds(plan.preempted, reader->id());
        if (has_rows || is_out) reader->step_planned(is_out);
    }
    if (on_plan) on_plan(plan);
}

void EngineSim::applied(const StepPlan& plan, const StepOutcome& outcome) {
    checker_->applied(plan, outcome);
    for (const PlanSegment& s : plan.segments) {
        for (const auto& reader : readers_) {
            if (reader->id() == s.request) reader->step_applied();
        }
    }
    num_paused_ = std::max(num_paused_, core_->scheduler().counts().num_paused);
    if (on_applied) on_applied(plan, outcome);
}

bool EngineSim::run_events() {
    bool any = false;
    while (!events_.empty() && events_.begin()->first.first <= clock_.now_ns()) {
        const std::function<void()> event = std::move(events_.begin()->second);
        events_.erase(events_.begin());
        event();
        any = true;
    }
    return any;
}

void EngineSim::run_handlers(bool& progressed) {
    auto gap = [this] {
        for (const auto& reader : readers_) reader->at_gap();
    };
    gap();
    while (io_.poll_one() > 0) {
        progressed = true;
        ++num_handlers_;
        gap();
    }
}

/// Invariant 13: once the handlers have run, nobody who was cancelled is still there.
void EngineSim::check_cancelled() {
    for (const auto& reader : readers_) {
        if (reader->awaits_end()) fail("invariant 13: request " + std::to_string(reader->id()) + " was cancelled and goes on");
    }
    checker_->check_blocks();
}

bool EngineSim::turn() {
    bool progressed = run_events();
    run_handlers(progressed);
    check_cancelled();
    progressed |= core_->pump();
    if (!checker_->wrong().empty()) fail(checker_->wrong());
    return progressed;
}

/// To the next thing that can happen. The host may oversleep it, and find that several things have happened.
bool EngineSim::advance() {
    std::optional<uint64_t> next;
    auto earlier = [&](std::optional<uint64_t> t) {
        if (t && (!next || *t < *next)) next = t;
    };
    if (!events_.empty()) earlier(events_.begin()->first.first);
    earlier(device_->next_completion_ns());
    earlier(core_->next_wake_ns());
    if (!next) {
        fail("invariant 9: nothing will ever happen again, and somebody waits");
        return false;
    }
    uint64_t to = *next;
    if (spec_.pauses_per_mille > 0 && random_.below(1000) < static_cast<uint64_t>(spec_.pauses_per_mille)) {
        to += random_.below(spec_.max_pause_ns);
    }
    // A wake-up that has come and changed nothing would spin for ever.
    num_idle_turns_ = to <= clock_.now_ns() ? num_idle_turns_ + 1 : 0;
    if (num_idle_turns_ > 10) fail("the engine asks to be woken for nothing");
    if (to > kLongestNs) fail("invariant 9: somebody is still waiting after an hour");
    clock_.advance_to(to);
    return wrong_.empty();
}

bool EngineSim::is_over() const {
    return core_->idle() && std::all_of(readers_.begin(), readers_.end(), [](const auto& r) { return r->is_done(); });
}

SimReport EngineSim::run() {
    while (wrong_.empty()) {
        while (turn() && wrong_.empty()) {
        }
        if (!wrong_.empty() || is_over()) break;
        if (!advance()) break;
    }
    if (wrong_.empty()) check_end();
    return report();
}

void EngineSim::check_end() {
    checker_->check_empty();
    if (!checker_->wrong().empty()) fail(checker_->wrong());
    uint64_t accepted = 0;
    for (size_t i = 0; i < readers_.size(); ++i) {
        accepted += readers_[i]->was_refused() ? 0 : 1;
        const std::string wrong = readers_[i]->judge(core_->device_failed());
        if (!wrong.empty()) fail("client " + std::to_string(i) + ", request " + std::to_string(readers_[i]->id()) + ": " + wrong);
    }
    uint64_t finished = 0;
    for (const Counter& count : core_->metrics().finished) finished += count.load();
    if (finished != accepted || core_->metrics().accepted.load() != accepted) {
        fail(std::to_string(accepted) + " requests were accepted, " + std::to_string(finished) + " ends were counted");
    }
    if (core_->metrics().kv_used.load() != 0 || core_->metrics().running.load() != 0 || core_->metrics().waiting.load() != 0) {
        fail("a gauge is not back at 0");
    }
    if (core_->num_requests() != 0) fail("the engine still has requests");
    if (drain_began_ && !drain_ended_) fail("the drain never ended");
}

SimReport EngineSim::report() {
    SimReport r;
    r.wrong = wrong_;
    if (!wrong_.empty()) r.last_plans = checker_->last_plans();
    r.digest = checker_->digest();
    r.num_steps = num_steps_;
    r.num_handlers = num_handlers_;
    r.end_ns = clock_.now_ns();
    for (const auto& mode : core_->metrics().steps) r.num_replayed += mode[1].load();
    r.num_preemptions = static_cast<int32_t>(core_->metrics().preemptions.load());
    r.most_preemptions = checker_->most_preemptions();
    r.num_paused = num_paused_;
    r.num_cached_tokens = static_cast<int64_t>(core_->metrics().cached_prompt_tokens.load());
    r.device_was_lost = core_->device_failed();
    for (const auto& reader : readers_) {
        const std::optional<FinishReason> reason = reader->reason();
        r.num_refused += reader->was_refused() ? 1 : 0;
        r.num_cancelled += reader->has_cancelled() ? 1 : 0;
        r.num_errors += reason == FinishReason::error ? 1 : 0;
        r.num_whole += reason == FinishReason::stop || reason == FinishReason::length ? 1 : 0;
        r.tokens.push_back(reader->tokens());
        r.reasons.push_back(reason);
        r.end_of_client_ns.push_back(reader->end_ns());
        r.errors.push_back(reader->was_refused() ? reader->refusal() : reader->error());
        r.digest = mix(r.digest, reason ? static_cast<uint64_t>(*reason) + 1 : 0);
        r.digest = mix(r.digest, static_cast<uint64_t>(r.errors.back()));
        r.digest = mix(r.digest, reader->tokens().size());
    }
    return r;
}

}  // namespace takt::engine_sim
