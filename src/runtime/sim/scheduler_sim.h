// SchedulerSim: the server's own scheduler on a virtual clock, without the engine around it. A step is a cost function with
// seeded noise. With checks on, its text is a chained hash that lives in simulated KV slots (sim_text.h) and every plan passes
// the invariants (invariants.h). Pure and single-threaded; the same seed gives the same plans, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cost_model.h"
#include "runtime/kv.h"
#include "runtime/scheduler.h"

namespace takt::sim {

struct SimRequest {
    uint64_t arrival_ns = 0;
    int32_t class_index = 0;
    int32_t tenant_index = 0;
    int32_t prompt_tokens = 1;
    int32_t output_tokens = 1;       ///< where the text ends by itself
    int32_t max_tokens = 1;
    uint64_t itl_ns = 0;             ///< 0: the class's
    uint64_t ttft_ns = 0;
    uint64_t cancel_ns = 0;          ///< 0: never
    uint64_t pause_ns = 0;           ///< the reader stops at that time ...
    uint64_t resume_ns = 0;          ///< ... and goes on at this one
    uint64_t prefix_seed = 0;        ///< requests of one seed share the first prefix_tokens tokens
    int32_t prefix_tokens = 0;
    std::vector<uint64_t> prefix_blocks;   ///< or: what each stretch of prefix_block_tokens tokens holds
};

/// What a step really did, for plots and explanations.
struct SimStep {
    uint64_t begin_ns = 0, end_ns = 0;
    uint64_t predicted_ns = 0, padding_ns = 0, budget_ns = 0;
    int32_t decode_rows = 0, prefill_rows = 0, padded_rows = 0;
    int32_t num_preempted = 0;
    bool at_floor = false;
};

/// A gap that ended, and the step that ended it.
struct SimGap {
    int32_t request = 0;             ///< index into the workload
    uint64_t end_ns = 0, gap_ns = 0, promised_ns = 0;
    bool was_preempted = false, was_paused = false;   ///< since the token before
    const SimStep* step = nullptr;
};

struct SimOptions {
    SchedulerConfig scheduler;
    KvConfig kv;
    CostRoofline roofline;
    std::function<double(const StepFeatures&)> true_ns;   ///< what a step really takes
    std::function<double(uint64_t now_ns)> disturbance;   ///< factor on it at a time; empty: 1
    std::function<uint64_t(uint64_t now_ns)> host_pause;  ///< added to host_ns of a step that ends at a time; empty: 0
    double noise = 0.015;            ///< standard deviation, relative
    uint64_t seed = 1;
    int32_t depth = 1;
    uint64_t host_ns = 100'000;      ///< from a step's end to its tokens at the writer
    bool check = true;               ///< invariants and text after every step
    uint64_t max_steps = 50'000'000;
    std::string cost_table;          ///< CostModel::save of an earlier run
    int32_t prefix_block_tokens = 512;
    std::function<void(const StepPlan&, uint64_t now_ns)> on_plan;   ///< the scheduler decided it
    std::function<void(const SimStep&)> on_step;      ///< a step was launched
    std::function<void(const SimGap&)> on_gap;        ///< a gap ended
    // Proofs that the checks can fail: what they are told of a plan, and of a step's time, instead of the truth.
    std::function<void(StepPlan&)> tell_plan;
    std::function<uint64_t(uint64_t device_ns)> tell_time;
};

enum class SimEnd : uint8_t { unfinished, finished, cancelled, refused };

struct SimOutcome {
    SimEnd end = SimEnd::unfinished;
    uint64_t first_ns = 0, last_ns = 0;
    uint64_t retry_after_ns = 0;
    uint64_t end_ns = 0;
    int32_t num_tokens = 0;
    int32_t num_preemptions = 0;
    int32_t cached_tokens = 0;
    int32_t num_late = 0;            ///< gaps over the promise
    uint64_t late_ns = 0;            ///< and by how much in all
    uint64_t max_gap_ns = 0;
    double gap_square_ms = 0;        ///< sum of squares: for the spread
    double gap_change_ms = 0;        ///< sum of |gap - gap before|
    uint64_t previous_gap_ns = 0;
};

struct SimReport {
    std::vector<SimOutcome> requests;
    std::vector<std::vector<uint32_t>> gaps_us;   ///< [class], pooled over its requests in order of their end
    uint64_t digest = 0;             ///< of all plans
    uint64_t num_steps = 0;
    uint64_t end_ns = 0;
    uint64_t busy_ns = 0;            ///< device time of steps
    uint64_t prefill_rows = 0, decode_rows = 0;
    uint64_t num_decode_steps = 0, num_over_budget = 0, num_at_floor = 0;
    uint64_t num_preemptions = 0, num_swapped = 0;
    uint64_t hit_tokens = 0;
    double greatest_share_gap_ms = 0;
    double mean_error = 0;           ///< |device time - prediction| over device time, mean over steps
    std::vector<double> tenant_ms;   ///< device time by tenant, by its rows' share of steps
    std::string wrong;               ///< the first broken invariant, with seed and the last plans; empty: none
    std::string cost_table;
    CostSnapshot cost;
};

SimReport run(const SimOptions& options, const std::vector<SimRequest>& requests);

}  // namespace takt::sim
