// SchedulerRig: a scheduler with a measured cost model, a KV pool and a hand-turned clock, for tests of single decisions.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "runtime/cost_calibration.h"
#include "runtime/cost_model.h"
#include "runtime/kv.h"
#include "runtime/scheduler.h"
#include "runtime/sim/step_time.h"

namespace takt {

constexpr uint64_t kMs = 1'000'000;

inline SchedulerConfig rig_config(double itl_ms = 40, int32_t max_running = 16) {
    SchedulerConfig c;
    c.max_running = max_running;
    c.max_waiting = 1000;
    c.max_context = 65536;
    c.row_ladder = sim::h100_ladder(max_running);
    SchedulerClass sla;
    sla.name = "default";
    sla.itl_ns = static_cast<uint64_t>(itl_ms * 1e6);
    c.classes = {sla};
    return c;
}

class SchedulerRig {
public:
    explicit SchedulerRig(SchedulerConfig c, int32_t num_blocks = 20'000)
        : config(std::move(c)),
          cost(config.row_ladder, false, sim::h100_roofline()),
          kv({num_blocks, 16, config.max_running, config.max_context, true}),
          scheduler(config, cost, kv) {
        for (const StepFeatures& f : calibration_steps(cost)) cost.observe(f, static_cast<uint64_t>(time.ns(f)));
    }

    Admission submit(RequestId id, int32_t prompt, int32_t max_tokens, int32_t class_index = 0, int32_t tenant = 0) {
        SchedulerRequest r;
        r.id = id;
        r.prompt_tokens = prompt;
        r.max_tokens = max_tokens;
        r.class_index = class_index;
        r.tenant_index = tenant;
        return submit(r);
    }
    Admission submit(SchedulerRequest r) {
        if (r.arrival_ns == 0) r.arrival_ns = now;
        most[r.id] = r.max_tokens;
        return scheduler.submit(r, now);
    }

    const StepPlan& look() {
        scheduler.plan(now, plan);
        return plan;
    }
    /// The planned step ran: its tokens are at their writers and it is applied. Those with max_tokens leave.
    void complete(double factor = 1.0, uint64_t host_ns = 100'000) {
        const double device = time.ns(plan.features) * factor;
        now += static_cast<uint64_t>(device) + host_ns;
        outcome.step = plan.step;
        outcome.device_ns = static_cast<uint64_t>(device);
        for (const PlanSegment& s : plan.segments) {
            if (!s.samples) continue;
            scheduler.emitted(s.request, now);
            if (++emitted[s.request] >= most[s.request]) scheduler.finish(s.request);
        }
        scheduler.apply(outcome, now);
    }
    /// Something waits, or runs and is not paused.
    [[nodiscard]] bool has_work() const {
        const SchedulerCounts counts = scheduler.counts();
        return counts.num_waiting + counts.num_running > counts.num_paused;
    }
    const StepPlan& step() {
        if (!look().empty()) complete();
        return plan;
    }
    /// Streams that decode, with this much context.
    void start_streams(int count, int32_t prompt, RequestId first = 1000, int32_t class_index = 0) {
        for (int i = 0; i < count; ++i) submit(first + static_cast<RequestId>(i), prompt, 4000, class_index);
        const int32_t until = scheduler.counts().num_decoding + count;
        for (int i = 0; i < 4000 && scheduler.counts().num_decoding < until; ++i) step();
    }
    [[nodiscard]] int32_t rows_of(RequestId id) const {
        for (const PlanSegment& s : plan.segments) {
            if (s.request == id) return s.num_rows;
        }
        return 0;
    }
    [[nodiscard]] int32_t prefill_rows() const { return plan.features.rows - plan.features.decode_rows; }

    const sim::StepTime time = sim::StepTime::h100();
    SchedulerConfig config;
    CostModel cost;
    KvManager kv;
    Scheduler scheduler;
    StepPlan plan;
    StepOutcome outcome;
    uint64_t now = 1'000'000'000;
    std::map<RequestId, int32_t> emitted, most;
};

}  // namespace takt
