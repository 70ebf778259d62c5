// Chaos: requests of every kind at the level of the scheduler, from a seed, and the small engine that they meet. The same seed gives
// the same requests on every compiler.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/row_ladder.h"
#include "runtime/sim/scene.h"

namespace takt::sim {

/// Requests of every kind: cancels, pauses, shared prefixes, three classes, three tenants, lengths of 1 and the most.
inline std::vector<SimRequest> chaos(uint64_t seed, int count, double mean_gap_ms, int32_t most_prompt) {
    Random random(seed);
    std::vector<SimRequest> w;
    double at = 0;
    for (int i = 0; i < count; ++i) {
        at += random.exponential(mean_gap_ms);
        const int32_t prompt = 1 + static_cast<int32_t>(random.exponential(most_prompt / 8.0));
        SimRequest r = request_at(at, prompt, 1 + static_cast<int32_t>(random.exponential(40)));
        r.prompt_tokens = random.chance(0.02) ? most_prompt : random.chance(0.05) ? 1 : std::min(r.prompt_tokens, most_prompt);
        r.max_tokens = random.chance(0.5) ? r.output_tokens : r.output_tokens + random.between(1, 200);
        r.class_index = random.between(0, 2);
        r.tenant_index = random.between(0, 2);
        const auto later = [&](double mean) { return r.arrival_ns + static_cast<uint64_t>(random.exponential(mean) * 1e6); };
        if (random.chance(0.15)) r.cancel_ns = later(300);
        if (random.chance(0.1)) {
            r.pause_ns = later(200);
            r.resume_ns = r.pause_ns + static_cast<uint64_t>(random.exponential(400) * 1e6);
        }
        if (random.chance(0.4)) {
            r.prefix_seed = 1 + random.below(5);
            r.prefix_tokens = random.between(1, r.prompt_tokens);
        }
        w.push_back(r);
    }
    return w;
}

inline SimOptions chaos_options(uint64_t seed, int depth, int32_t num_blocks) {
    SimOptions o = scene(40, 16, num_blocks);
    SchedulerClass tight = o.scheduler.classes[0], batch = tight;
    tight.itl_ns = 15'000'000;
    tight.ttft_ns = 300'000'000;
    tight.on_miss = SchedulerClass::OnMiss::refuse;
    tight.weight = 2;
    batch.itl_ns = 500'000'000;
    batch.ttft_ns = 60'000'000'000;
    batch.on_miss = SchedulerClass::OnMiss::demote;
    batch.weight = 0.5;
    o.scheduler.classes.push_back(tight);
    o.scheduler.classes.push_back(batch);
    o.scheduler.tenants = {{"", 1, 0, 0}, {"a", 2, 0, 0}, {"b", 1, 4, 0}};
    o.seed = seed;
    o.depth = depth;
    o.cost_table = seed % 3 == 0 ? "" : o.cost_table;   // sometimes from the roofline alone
    o.noise = 0.03;
    if (seed % 4 == 1) {   // KV of the preempted waits in a host's memory that is small
        o.scheduler.swap_tokens = 2000;
        o.scheduler.swap_ns_per_token = 2600;
    }
    o.host_pause = [](uint64_t t) { return (t / 1'000'000) % 211 == 0 ? uint64_t{5'000'000} : uint64_t{0}; };
    return o;
}

/// The same clientele on two cores that others share, where rows are data: steps have spells, a promise is often too tight for a slice
/// (late slices) or for decoding alone (half of the device), and some requests bring one of their own that nobody can keep.
inline SimOptions rows_chaos_options(uint64_t seed, int32_t num_blocks) {
    SimOptions o = chaos_options(seed, 0, num_blocks);
    o.scheduler.rows_are_data = true;
    o.scheduler.row_ladder = make_row_ladder(0, 16, 512);
    o.scheduler.classes[0].itl_ns = 12'000'000;
    o.scheduler.classes[1].itl_ns = 7'000'000;
    o.roofline = {4e10, 6e11, 2e-5, 9e7, 2.1e8, 23'040, 69'000};
    o.cost_table.clear();
    o.noise = 0.08;
    o.true_ns = [](const StepFeatures& f) {
        const auto alone = static_cast<double>(f.kv_read_tokens + f.single_row_tokens);
        return 2.2e6 + 0.65e6 * f.rows + 600.0 * alone + 430.0 * static_cast<double>(f.prefill_pairs - f.single_row_tokens);
    };
    o.disturbance = [](uint64_t now_ns) { return (now_ns / 200'000'000) % 7 == 3 ? 1.6 : 1.0; };
    return o;
}

/// Some of them ask for gaps of their own, down to what no device keeps.
inline void ask_for_gaps(std::vector<SimRequest>& requests, uint64_t seed) {
    Random random(seed + 1);
    for (SimRequest& r : requests) {
        if (random.chance(0.1)) r.itl_ns = 1000 + static_cast<uint64_t>(random.exponential(10) * 1e6);
    }
}

struct ChaosRun {
    std::vector<SimRequest> requests;
    SimReport report;
};

/// Scene S10 from a seed: a hundred requests for seeds under 100, two thousand from there on. `sim_main --chaos --seed N` runs it again.
inline ChaosRun run_chaos(uint64_t seed) {
    const int32_t num_blocks = 80 + static_cast<int32_t>(seed % 5) * 100;   // 1,280 tokens at the least
    ChaosRun r;
    r.requests = chaos(seed, seed < 100 ? 100 : 2000, 30, std::min(num_blocks * 16 - 300, 6000));
    r.report = run(chaos_options(seed, static_cast<int>(seed % 2), num_blocks), r.requests);
    return r;
}

/// The same where rows are data; the device is a fifth as fast, and so are the arrivals.
inline ChaosRun run_rows_chaos(uint64_t seed) {
    const int32_t num_blocks = 80 + static_cast<int32_t>(seed % 5) * 100;
    ChaosRun r;
    r.requests = chaos(seed, seed < 100 ? 100 : 2000, 150, std::min(num_blocks * 16 - 300, 6000));
    ask_for_gaps(r.requests, seed);
    r.report = run(rows_chaos_options(seed, num_blocks), r.requests);
    return r;
}

}  // namespace takt::sim
