// SchedulerSim: the loop (arrivals, completions, late planning) and the simulated device.
#include "runtime/sim/scheduler_sim.h"

#include <takt/version.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "runtime/sim/invariants.h"
#include "runtime/sim/random.h"
#include "runtime/sim/sim_text.h"

namespace takt::sim {
namespace {

constexpr uint64_t kPlanMarginNs = 300'000; // step n + 1 is planned that long before n's predicted end

struct Live {
    std::vector<int32_t> tokens;      // prompt, then sampled tokens as they become known
    std::vector<uint64_t> chain;      // with checks: expected hash after each position
    int32_t known = 0;                // outputs known on the host
    bool ended = false;
    bool was_preempted = false, was_paused = false;   // since its last token
};

struct InFlight {
    StepPlan plan;
    SimStep facts;
    uint64_t begin_ns = 0, end_ns = 0;
    uint64_t seen_ns = 0;             // when the host has its results
    std::vector<int32_t> sampled;     // token of each sampling segment, in order
};

class Loop {
public:
    Loop(const SimOptions& options, const std::vector<SimRequest>& workload);
    SimReport run();

private:
    struct TimedEvent {
        uint64_t at_ns = 0;
        int32_t kind = 0;             // 0 arrival, 1 cancel, 2 pause, 3 resume
        int32_t request = 0;
        auto operator<=>(const TimedEvent&) const = default;
    };
    void add_events(size_t i);
    void deliver(const TimedEvent& event);
    void arrive(int32_t request);
    void write_prompt(const SimRequest& r, int32_t request, std::vector<int32_t>& tokens) const;
    bool launch();
    void execute(InFlight& step);
    void complete();
    void take_token(RequestId id, int32_t token, const SimStep& step);
    void note_gap(int32_t request, const SimStep& step);
    void end_request(int32_t request, SimEnd how);
    void charge(const InFlight& step);
    void digest(const StepPlan& plan);
    void check_plan(const StepPlan& plan, uint64_t start_ns);
    [[nodiscard]] bool uses_tokens(const SimRequest& r) const;
    [[nodiscard]] uint64_t itl_ns(const SimRequest& r) const;
    [[nodiscard]] uint64_t next_ns() const;
    [[nodiscard]] uint64_t plan_time_ns() const;

    const SimOptions& options_;
    const std::vector<SimRequest>& workload_;
    CostModel cost_;
    KvManager kv_;
    Scheduler scheduler_;
    Invariants invariants_;
    Random random_;
    SimText text_;
    std::vector<Live> live_;           // by request id - 1
    std::vector<TimedEvent> events_;
    size_t next_event_ = 0;
    std::deque<InFlight> in_flight_;
    std::vector<InFlight> spare_;
    uint64_t now_ns_ = 0;
    int32_t num_live_ = 0;
    double speed_factor_ = 1;
    bool dirty_ = true;                // something changed since the last empty plan
    StepOutcome outcome_;
    SimReport report_;
};

Loop::Loop(const SimOptions& options, const std::vector<SimRequest>& workload)
    : options_(options),
      workload_(workload),
      cost_(options.scheduler.row_ladder, options.scheduler.rows_are_data, options.roofline),
      kv_(options.kv),
      scheduler_(options.scheduler, cost_, kv_),
      invariants_(options.scheduler, cost_, 1 + static_cast<uint64_t>(options.kv.num_blocks) / 400),
      random_(options.seed),
      text_(options.check ? options.kv.num_blocks : 1, options.kv.block_tokens, options.scheduler.max_running),
      live_(workload.size()) {
    if (!options.cost_table.empty() && !cost_.load(options.cost_table)) invariants_.fail("the cost table does not load");
    report_.requests.resize(workload.size());
    report_.gaps_us.resize(options.scheduler.classes.size());
    report_.tenant_ms.resize(std::max<size_t>(options.scheduler.tenants.size(), 1));
    for (size_t i = 0; i < workload.size(); ++i) add_events(i);
    std::sort(events_.begin(), events_.end());
}

void Loop::add_events(size_t i) {
    const SimRequest& r = workload_[i];
    const auto at = static_cast<int32_t>(i);
    events_.push_back({r.arrival_ns, 0, at});
    if (r.cancel_ns != 0) events_.push_back({std::max(r.cancel_ns, r.arrival_ns), 1, at});
    if (r.pause_ns != 0) events_.push_back({std::max(r.pause_ns, r.arrival_ns), 2, at});
    if (r.pause_ns != 0) events_.push_back({std::max({r.resume_ns, r.pause_ns, r.arrival_ns}), 3, at});
}

bool Loop::uses_tokens(const SimRequest& r) const {
    return options_.check || (options_.kv.prefix_cache && (r.prefix_tokens > 0 || !r.prefix_blocks.empty()));
}

uint64_t Loop::itl_ns(const SimRequest& r) const {
    return r.itl_ns != 0 ? r.itl_ns : options_.scheduler.classes[static_cast<size_t>(r.class_index)].itl_ns;
}

void Loop::end_request(int32_t request, SimEnd how) {
    Live& live = live_[static_cast<size_t>(request)];
    if (live.ended) return;
    live.ended = true;
    --num_live_;
    report_.requests[static_cast<size_t>(request)].end = how;
    report_.requests[static_cast<size_t>(request)].end_ns = now_ns_;
    std::vector<int32_t>().swap(live.tokens);
    std::vector<uint64_t>().swap(live.chain);
    if (options_.check) invariants_.left(static_cast<RequestId>(request) + 1);
}

void Loop::write_prompt(const SimRequest& r, int32_t request, std::vector<int32_t>& tokens) const {
    Random own(options_.seed * 1'000'003 + static_cast<uint64_t>(request) + 1);
    Random shared(r.prefix_seed);
    tokens.reserve(static_cast<size_t>(r.prompt_tokens + r.max_tokens) + 1);
    for (int32_t i = 0; i < r.prompt_tokens; ++i) {
        const auto stretch = static_cast<size_t>(i / options_.prefix_block_tokens);
        const uint64_t value = stretch < r.prefix_blocks.size() ? chained(r.prefix_blocks[stretch], static_cast<uint64_t>(i))
                               : i < r.prefix_tokens            ? shared.next()
                                                                : own.next();
        tokens.push_back(static_cast<int32_t>(value % 50'000));
    }
}

void Loop::arrive(int32_t request) {
    const SimRequest& r = workload_[static_cast<size_t>(request)];
    Live& live = live_[static_cast<size_t>(request)];
    ++num_live_;
    SchedulerRequest s;
    if (uses_tokens(r)) {
        write_prompt(r, request, live.tokens);
        s.tokens = live.tokens;
    }
    s.id = static_cast<RequestId>(request) + 1;
    s.class_index = r.class_index;
    s.tenant_index = r.tenant_index;
    s.prompt_tokens = r.prompt_tokens;
    s.max_tokens = r.max_tokens;
    s.arrival_ns = r.arrival_ns;
    s.itl_ns = r.itl_ns;
    s.ttft_ns = r.ttft_ns;
    s.cache_domain = static_cast<uint64_t>(r.tenant_index) + 1;
    const Admission admission = scheduler_.submit(s, now_ns_);
    if (admission.verdict != Admission::Verdict::accepted) {
        report_.requests[static_cast<size_t>(request)].retry_after_ns = admission.retry_after_ns;
        end_request(request, SimEnd::refused);
        return;
    }
    if (options_.check) invariants_.accepted(s, admission.cached_tokens);
}

void Loop::deliver(const TimedEvent& event) {
    dirty_ = true;
    const RequestId id = static_cast<RequestId>(event.request) + 1;
    if (event.kind == 0) return arrive(event.request);
    if (live_[static_cast<size_t>(event.request)].ended) return;
    if (event.kind == 1) {
        scheduler_.finish(id);
        end_request(event.request, SimEnd::cancelled);
    } else {
        scheduler_.set_paused(id, event.kind == 2);
        live_[static_cast<size_t>(event.request)].was_paused = true;
        if (options_.check) invariants_.paused(id, event.kind == 2);
    }
}

void Loop::execute(InFlight& step) {
    step.sampled.clear();
    const StepPlan& plan = step.plan;
    if (options_.check) {
        std::string wrong;
        for (const PlanSegment& s : plan.segments) {
            const int32_t token = text_.run(s, scheduler_.block_table(s.request), live_[s.request - 1].tokens, wrong);
            if (s.samples) step.sampled.push_back(token);
        }
        if (!wrong.empty()) invariants_.fail(wrong);
    }
    const StepFeatures& f = plan.features;
    double ns = options_.true_ns(f) * std::exp(options_.noise * random_.normal());
    if (options_.noise > 0 && random_.uniform() < 0.003) ns *= 1.2;
    if (options_.disturbance) {
        const double factor = options_.disturbance(step.begin_ns);
        if (factor != std::exchange(speed_factor_, factor)) invariants_.disturbed();
        ns *= factor;
    }
    ns += static_cast<double>(f.one_off_ns);
    step.end_ns = step.begin_ns + static_cast<uint64_t>(std::max(ns, 1.0));
    step.seen_ns = step.end_ns + options_.host_ns + (options_.host_pause ? options_.host_pause(step.end_ns) : 0);
    if (!in_flight_.empty()) step.seen_ns = std::max(step.seen_ns, in_flight_.back().seen_ns);
    const uint64_t device_ns = step.end_ns - step.begin_ns;
    report_.busy_ns += device_ns;
    const double error_ns = static_cast<double>(device_ns) - static_cast<double>(plan.predicted_ns);
    report_.mean_error += std::abs(error_ns) / static_cast<double>(device_ns);
    report_.prefill_rows += static_cast<uint64_t>(f.rows - f.decode_rows);
    report_.decode_rows += static_cast<uint64_t>(f.decode_rows);
    if (f.decode_rows > 0) {
        ++report_.num_decode_steps;
        report_.num_over_budget += device_ns > plan.budget_ns ? 1 : 0;
        report_.num_at_floor += plan.at_floor ? 1 : 0;
    }
    step.facts = {step.begin_ns, step.end_ns, plan.predicted_ns, plan.padding_ns, plan.budget_ns, f.decode_rows, f.rows - f.decode_rows,
                  f.padded_rows, static_cast<int32_t>(plan.preempted.size()), plan.at_floor};
    if (options_.on_step) options_.on_step(step.facts);
    charge(step);
}

void Loop::charge(const InFlight& step) {
    const double row_ms = static_cast<double>(step.end_ns - step.begin_ns) * 1e-6 / step.plan.features.rows;
    for (const PlanSegment& s : step.plan.segments) {
        report_.tenant_ms[static_cast<size_t>(workload_[s.request - 1].tenant_index)] += row_ms * s.num_rows;
    }
    report_.greatest_share_gap_ms = std::max(report_.greatest_share_gap_ms, scheduler_.share_gap_ms());
}

void Loop::digest(const StepPlan& plan) {
    uint64_t x = chained(report_.digest, plan.step);
    for (const PlanSegment& s : plan.segments) {
        x = chained(chained(x, s.request), static_cast<uint64_t>(s.token_begin));
        x = chained(chained(x, static_cast<uint64_t>(s.num_rows)), static_cast<uint64_t>(s.slot));
    }
    for (const RequestId id : plan.preempted) x = chained(x, ~id);
    report_.digest = chained(x, plan.predicted_ns >> 8);
}

void Loop::check_plan(const StepPlan& plan, uint64_t start_ns) {
    if (!options_.tell_plan) return invariants_.planned(plan, start_ns, scheduler_);
    StepPlan told = plan;
    options_.tell_plan(told);
    invariants_.planned(told, start_ns, scheduler_);
}

bool Loop::launch() {
    if (spare_.empty()) spare_.emplace_back();
    InFlight step = std::move(spare_.back());
    spare_.pop_back();
    step.begin_ns = in_flight_.empty() ? now_ns_ : std::max(now_ns_, in_flight_.back().end_ns);
    const uint64_t start_ns = in_flight_.empty()
                                  ? now_ns_
                                  : std::max(now_ns_, in_flight_.back().begin_ns + in_flight_.back().plan.predicted_ns);
    scheduler_.plan(start_ns, step.plan);
    if (options_.on_plan) options_.on_plan(step.plan, now_ns_);
    for (const KvCopy& copy : step.plan.copies) {
        report_.num_swapped += copy.is_out ? 1 : 0;
        if (options_.check) text_.copy(copy);
    }
    for (const RequestId id : step.plan.preempted) {
        ++report_.requests[id - 1].num_preemptions;
        live_[id - 1].was_preempted = true;
    }
    report_.num_preemptions += step.plan.preempted.size();
    for (const RequestId id : step.plan.admitted) {
        SimOutcome& out = report_.requests[id - 1];
        out.cached_tokens = scheduler_.cached_tokens(id);
        if (out.num_tokens == 0) report_.hit_tokens += static_cast<uint64_t>(out.cached_tokens);
    }
    if (options_.check) check_plan(step.plan, start_ns);
    if (step.plan.empty()) {
        // Whoever lost his place made room: the next plan may let somebody in.
        dirty_ = !step.plan.preempted.empty();
        spare_.push_back(std::move(step));
        return dirty_;
    }
    execute(step);
    digest(step.plan);
    in_flight_.push_back(std::move(step));
    ++report_.num_steps;
    return true;
}

void Loop::note_gap(int32_t request, const SimStep& step) {
    const uint64_t now_ns = now_ns_;
    Live& live = live_[static_cast<size_t>(request)];
    const bool was_preempted = std::exchange(live.was_preempted, false), was_paused = std::exchange(live.was_paused, false);
    SimOutcome& out = report_.requests[static_cast<size_t>(request)];
    const SimRequest& spec = workload_[static_cast<size_t>(request)];
    if (out.num_tokens++ == 0) {
        out.first_ns = out.last_ns = now_ns;
        return;
    }
    const uint64_t gap = now_ns - out.last_ns;
    out.last_ns = now_ns;
    out.max_gap_ns = std::max(out.max_gap_ns, gap);
    const double ms = static_cast<double>(gap) * 1e-6;
    out.gap_square_ms += ms * ms;
    if (out.num_tokens > 2) out.gap_change_ms += std::abs(ms - static_cast<double>(out.previous_gap_ns) * 1e-6);
    out.previous_gap_ns = gap;
    const uint64_t promised = itl_ns(spec);
    if (gap > promised && !was_paused) {
        ++out.num_late;
        out.late_ns += gap - promised;
    }
    report_.gaps_us[static_cast<size_t>(spec.class_index)].push_back(static_cast<uint32_t>(gap / 1000));
    if (options_.on_gap) options_.on_gap({request, now_ns, gap, promised, was_preempted, was_paused, &step});
}

void Loop::take_token(RequestId id, int32_t token, const SimStep& step) {
    const auto request = static_cast<int32_t>(id - 1);
    Live& live = live_[static_cast<size_t>(request)];
    const SimRequest& spec = workload_[static_cast<size_t>(request)];
    if (options_.check) {   // the text must be that of the request alone, recomputed here from its own tokens
        if (token != SimText::expected(live.tokens, live.chain)) invariants_.fail("request " + std::to_string(id) + " got wrong text");
        live.tokens.push_back(token);
    } else if (!live.tokens.empty()) {
        live.tokens.push_back(static_cast<int32_t>(chained(id, static_cast<uint64_t>(live.known)) % 50'000));
    }
    ++live.known;
    note_gap(request, step);
    scheduler_.emitted(id, now_ns_, live.tokens);
    const bool finished = live.known >= std::min(spec.output_tokens, spec.max_tokens);
    outcome_.sampled.push_back({id, finished, token});
    if (!finished) return;
    scheduler_.finish(id);
    end_request(request, SimEnd::finished);
}

void Loop::complete() {
    InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    dirty_ = true;
    outcome_.step = step.plan.step;
    outcome_.device_ns = step.end_ns - step.begin_ns;
    outcome_.sampled.clear();
    size_t at = 0;
    for (const PlanSegment& s : step.plan.segments) {
        if (!s.samples) continue;
        const int32_t token = options_.check ? step.sampled[at] : -1;
        ++at;
        if (!live_[s.request - 1].ended) take_token(s.request, token, step.facts);
    }
    scheduler_.apply(outcome_, now_ns_);
    const uint64_t told_ns = options_.tell_time ? options_.tell_time(outcome_.device_ns) : outcome_.device_ns;
    if (options_.check) invariants_.applied(step.plan, told_ns, scheduler_);
    spare_.push_back(std::move(step));
}

uint64_t Loop::plan_time_ns() const {
    if (in_flight_.empty()) return now_ns_;
    const InFlight& last = in_flight_.back();
    const uint64_t predicted_end = last.begin_ns + last.plan.predicted_ns;
    return std::max(now_ns_, std::min(predicted_end - std::min(predicted_end, kPlanMarginNs), last.end_ns));
}

uint64_t Loop::next_ns() const {
    uint64_t next = UINT64_MAX;
    if (next_event_ < events_.size()) next = std::min(next, events_[next_event_].at_ns);
    if (!in_flight_.empty()) next = std::min(next, in_flight_.front().seen_ns);
    return next;
}

SimReport Loop::run() {
    while (invariants_.wrong().empty() && report_.num_steps < options_.max_steps) {
        while (next_event_ < events_.size() && events_[next_event_].at_ns <= now_ns_) deliver(events_[next_event_++]);
        while (!in_flight_.empty() && in_flight_.front().seen_ns <= now_ns_) complete();
        const bool room = dirty_ && static_cast<int32_t>(in_flight_.size()) <= options_.depth;
        const uint64_t plan_at = room ? plan_time_ns() : UINT64_MAX;
        if (room && plan_at <= now_ns_ && launch()) continue;
        uint64_t next = next_ns();
        if (room && plan_at > now_ns_) next = std::min(next, plan_at);
        if (next == UINT64_MAX) break;
        now_ns_ = std::max(next, now_ns_);
    }
    if (num_live_ > 0) invariants_.fail(std::to_string(num_live_) + " requests were never served");
    if (kv_.counts().num_used != 0) invariants_.fail("blocks are held after the drain");
    if (!invariants_.wrong().empty()) {
        report_.wrong = std::string("takt ") + version() + ", seed " + std::to_string(options_.seed) + ", step " +
                        std::to_string(report_.num_steps) + ": " + invariants_.wrong();
    }
    report_.end_ns = now_ns_;
    report_.mean_error /= std::max(1.0, static_cast<double>(report_.num_steps));
    report_.cost_table = cost_.save();
    report_.cost = cost_.snapshot();
    return std::move(report_);
}

}  // namespace

SimReport run(const SimOptions& options, const std::vector<SimRequest>& requests) { return Loop(options, requests).run(); }

}  // namespace takt::sim
