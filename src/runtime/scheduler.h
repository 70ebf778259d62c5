// Scheduler: decides what each step does. A pure object: no I/O, clocks, threads or devices; times come in as nanoseconds, so the
// same object serves the engine and the simulator. Engine thread only. It owns the order of requests, their progress counters,
// the KV block accounting (through KvManager) and the cost model; it knows nothing of tokens' values, text or sockets.
//
// Life of a request here: submit -> waiting -> (plan admits: slot and whole-prompt KV) -> prefill slices -> decode turns ->
// finish/cancel. preempt (KV squeeze) -> waiting again, keeping its outputs, recomputed from its first uncached token.
// Depth 1: plan() may be called for step n+1 before apply() of step n; the plan then assumes that no request of n finishes; a
// finished one's row of n+1 is ignored and its blocks are retired when n+1's ticket is reached.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan.h"

namespace takt {

class CostModel;
class KvManager;

struct SchedulerClass {
    std::string name;
    uint64_t itl_ns = 40'000'000;
    uint64_t ttft_ns = 2'000'000'000;
    bool envelope = false;
    enum class OnMiss : uint8_t { queue, refuse, demote } on_miss = OnMiss::queue;
    double weight = 1.0;
};

struct SchedulerTenant {
    std::string name;
    double weight = 1.0;
    int32_t max_running = 0;      ///< 0: no limit of its own
    int32_t max_waiting = 0;
};

struct SchedulerConfig {
    bool fixed_chunk = false;     ///< policy fixed-chunk: the honest baseline
    int32_t fixed_chunk_tokens = 512;
    int32_t lone_chunk_tokens = 0;       ///< with fixed_chunk: the chunk while fewer than two prompts wait or nothing decodes; 0: the same
    bool chunk_holds_decodes = false;    ///< with fixed_chunk: the chunk counts the decode rows too (a token budget)
    bool first_come = false;             ///< prompts in order of arrival instead of urgency
    int32_t max_running = 64;
    int32_t max_waiting = 1024;
    int32_t max_context = 0;
    int32_t max_preemptions = 2;  ///< N_max; then pinned
    int64_t swap_tokens = 0;      ///< tokens of KV that the host's memory holds for preempted requests; 0: they are computed again
    double swap_ns_per_token = 0; ///< of a copy, one way
    std::vector<int32_t> row_ladder;     ///< the device's shapes, ascending
    bool rows_are_data = false;          ///< a shape bounds buffers, not work: the cost is in the true rows
    std::vector<SchedulerClass> classes; ///< [0] is the default
    std::vector<SchedulerTenant> tenants;///< [0] is "no tenant"
};

/// What the scheduler is told of a new request.
struct SchedulerRequest {
    RequestId id = 0;
    int32_t class_index = 0;
    int32_t tenant_index = 0;
    int32_t prompt_tokens = 0;
    int32_t max_tokens = 0;              ///< output bound, already cut to the context
    uint64_t arrival_ns = 0;
    uint64_t itl_ns = 0;                 ///< 0: the class's
    uint64_t ttft_ns = 0;
    bool envelope = false;
    bool greedy = true;                  ///< plain argmax
    std::span<const int32_t> tokens;     ///< the prompt, for the prefix cache; must live until finish
    uint64_t cache_domain = 0;
};

/// Answer to submit.
struct Admission {
    enum class Verdict : uint8_t { accepted, queue_full, deadline_unreachable, too_long_for_kv } verdict = Verdict::accepted;
    uint64_t retry_after_ns = 0;
    int32_t cached_tokens = 0;           ///< estimate
};

struct SchedulerCounts {
    int32_t num_running = 0, num_waiting = 0, num_paused = 0;
    int32_t num_decoding = 0, num_prefilling = 0;
};

class Scheduler {
public:
    Scheduler(const SchedulerConfig& config, CostModel& cost, KvManager& kv);
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    Admission submit(const SchedulerRequest& request, uint64_t now_ns);
    /// The request leaves in whatever state it is. Its blocks are freed at once if no launched step names them, else when the
    /// last such step's ticket is retired. Ids that are not live are ignored.
    void finish(RequestId id);
    /// A reader that does not read: the request keeps its blocks and place but gets no rows until resumed; the first victim.
    void set_paused(RequestId id, bool paused);
    /// The token of `id` was handed to its writer (starts the gap that the budget protects). `tokens`: the request's list with it,
    /// for the prefix cache; must live until the next call or finish. Empty: outputs are not offered to others.
    void emitted(RequestId id, uint64_t now_ns, std::span<const int32_t> tokens = {});

    /// Decides the step that would begin at `start_ns`. Empty plan: nothing can run. Reuses `plan`'s memory.
    void plan(uint64_t start_ns, StepPlan& plan);
    /// The step completed: progress, learning, retirement of the blocks of its ticket. Steps are applied in order.
    void apply(const StepOutcome& outcome, uint64_t now_ns);

    /// Block table of a request that holds blocks; valid until the next non-const call.
    [[nodiscard]] std::span<const int32_t> block_table(RequestId id) const;
    [[nodiscard]] int32_t cached_tokens(RequestId id) const;      ///< taken from the prefix cache at (last) admission
    [[nodiscard]] SchedulerCounts counts() const;
    /// Proves the books: blocks conserved, slots unique, counters in range. Empty if sound, else what is wrong.
    [[nodiscard]] std::string check_integrity() const;
    [[nodiscard]] double budget_trim() const;                     ///< u of the closed loop, in [0.5, 1]
    [[nodiscard]] bool infeasible() const;                        ///< decoding alone breaks the promise
    [[nodiscard]] bool infeasible(int32_t class_index) const;     ///< ... of this class
    [[nodiscard]] double reserve_factor() const;                  ///< learned share of the expected outputs that admission keeps free
    /// Largest difference between counters of tenants that are both active, in ms over weight.
    [[nodiscard]] double share_gap_ms() const;

    struct Impl;

private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace takt
