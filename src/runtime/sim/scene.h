// Scene: a simulated H100 with a measured cost table and a small KV pool, and the requests of named stress scenes.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cost_calibration.h"
#include "runtime/sim/random.h"
#include "runtime/sim/scheduler_sim.h"
#include "runtime/sim/step_time.h"

namespace takt::sim {

inline SimOptions scene(double itl_ms, int32_t max_running = 32, int32_t num_blocks = 6000) {
    static const StepTime time = StepTime::h100();
    SimOptions o;
    o.scheduler.max_running = max_running;
    o.scheduler.max_waiting = 1000;
    o.scheduler.max_context = 140'000;
    o.scheduler.row_ladder = h100_ladder(max_running);
    SchedulerClass sla;
    sla.name = "default";
    sla.itl_ns = static_cast<uint64_t>(itl_ms * 1e6);
    o.scheduler.classes = {sla};
    o.kv = {num_blocks, 16, max_running, 140'000, true};
    o.roofline = h100_roofline();
    o.true_ns = [](const StepFeatures& f) { return time.ns(f); };
    CostModel cost(o.scheduler.row_ladder, false, o.roofline);
    for (const StepFeatures& f : calibration_steps(cost)) cost.observe(f, static_cast<uint64_t>(time.ns(f)));
    o.cost_table = cost.save();
    return o;
}

inline void set_chunk(SimOptions& o, int32_t tokens) {
    o.scheduler.fixed_chunk = o.scheduler.first_come = true;
    o.scheduler.fixed_chunk_tokens = tokens;
}

inline SimRequest request_at(double ms, int32_t prompt, int32_t output) {
    SimRequest r;
    r.arrival_ns = static_cast<uint64_t>(ms * 1e6) + 1;
    r.prompt_tokens = prompt;
    r.output_tokens = r.max_tokens = output;
    return r;
}

/// Lengths from ranges, the prompt's drawn first: a compiler may work out a call's arguments in any order.
inline SimRequest drawn_at(double ms, Random& random, std::pair<int32_t, int32_t> prompts, std::pair<int32_t, int32_t> outputs) {
    const int32_t prompt = random.between(prompts.first, prompts.second);
    return request_at(ms, prompt, random.between(outputs.first, outputs.second));
}

inline double ttft_ms(const SimReport& report, const std::vector<SimRequest>& w, size_t i) {
    return static_cast<double>(report.requests[i].first_ns - w[i].arrival_ns) * 1e-6;
}

/// Gaps in ms that ended between two times.
struct GapWindow {
    double from_ms = 0, to_ms = 1e18;
    std::vector<double> gaps;
    void listen(SimOptions& o) {
        o.on_gap = [this](const SimGap& g) {
            const double at = static_cast<double>(g.end_ns) * 1e-6;
            if (at >= from_ms && at <= to_ms) gaps.push_back(static_cast<double>(g.gap_ns) * 1e-6);
        };
    }
    [[nodiscard]] double late_share(double sla_ms) const {
        const auto late = std::count_if(gaps.begin(), gaps.end(), [&](double g) { return g > sla_ms; });
        return static_cast<double>(late) / static_cast<double>(std::max<size_t>(gaps.size(), 1));
    }
};

}  // namespace takt::sim
