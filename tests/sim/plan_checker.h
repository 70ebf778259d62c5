// PlanChecker: holds every launched and applied step against the invariants of a scheduler simulation that can be seen from
// outside the scheduler. Each check names its number. It keeps its own books of every request and a shadow of the KV cache in
// the order of plans, and believes nothing that the scheduler says of itself.
//
//  1 KV conserved               2 no row without a slot      3 token accounting         4 budget, prediction side
//  6 not wasteful               7 decode progress            8 prefill progress        10 preemption bound
// 11 resume identity (KV)      13 blocks back in a step     16 shape set               17 model sanity
// 20 idle                      21 determinism (digest)
// 3, 9, 11, 12 and 13 are also judged by what clients read: sim_reader.h.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "runtime/engine_core.h"
#include "sim/hash_chain.h"
#include "sim/sim_case.h"

namespace takt::engine_sim {

class PlanChecker {
public:
    PlanChecker(const SimCase& spec, EngineCore& core);

    /// An accepted request; `chain` and `stream` outlive the checker.
    void add(RequestId id, const SimClient& client, const HashChain& chain, const TokenStream& stream);
    void planned(const StepPlan& plan);
    void applied(const StepPlan& plan, const StepOutcome& outcome);
    /// Between two turns of the crank: nobody holds blocks but who runs, and steps in flight.
    void check_blocks();
    /// Everybody has left and nothing is in flight.
    void check_empty();

    /// The first broken invariant; empty: none.
    [[nodiscard]] const std::string& wrong() const { return wrong_; }
    /// Of all decisions so far. Times in nanoseconds are left out: nothing in it depends on the last bit of a double.
    [[nodiscard]] uint64_t digest() const { return digest_; }
    [[nodiscard]] int32_t num_preemptions(RequestId id) const { return requests_[static_cast<size_t>(id)].num_preemptions; }
    [[nodiscard]] int32_t most_preemptions() const { return most_preemptions_; }
    /// The last 50 plans, oldest first, as text.
    [[nodiscard]] std::string last_plans() const;

private:
    /// A request as the checker believes it to be.
    struct Shadow {
        const HashChain* chain = nullptr;
        const TokenStream* stream = nullptr;
        int32_t num_prompt = 0, max_tokens = 0;
        bool is_cacheable = false;
        bool is_running = false, is_decoding = false;
        int32_t computed = 0, target = 0, outputs = 0;
        int32_t num_preemptions = 0;
        int32_t steps_left_out = 0;
        uint64_t admission = 0;
        [[nodiscard]] bool is_live() const { return stream != nullptr && !stream->has_ended(); }
    };
    struct Named {
        int32_t block = 0;
        RequestId id = 0;
    };
    struct InFlight {
        uint64_t step = 0;
        std::vector<Named> blocks;
    };

    void fail(int number, const std::string& what);
    void take_preempted(const StepPlan& plan);
    void take_admitted(const StepPlan& plan);
    void map_owners();
    void check_segment(const StepPlan& plan, const PlanSegment& segment, InFlight& step);
    void check_reads(const PlanSegment& segment, std::span<const int32_t> table);
    void check_writes(const PlanSegment& segment, std::span<const int32_t> table);
    void check_features(const StepPlan& plan);
    void check_shape(const StepPlan& plan);
    void check_budget(const StepPlan& plan);
    void check_work_conserving(const StepPlan& plan);
    void check_progress(const StepPlan& plan);
    [[nodiscard]] bool lacks_blocks(RequestId id, const Shadow& r) const;
    void check_model();
    void add_to_digest(const StepPlan& plan);

    const SimCase& case_;
    EngineCore& core_;
    std::vector<Shadow> requests_;            // by id
    std::vector<RequestId> live_;             // ids that may still run
    std::vector<uint64_t> kv_;                // [num_blocks * block_tokens]: hash that the slot holds, in the order of plans
    std::vector<int32_t> owners_;             // [num_blocks]: running tables that name the block
    std::deque<InFlight> inflight_;
    std::deque<StepPlan> history_;
    std::string wrong_;
    uint64_t digest_ = 0x7461'6b74ull;
    uint64_t next_admission_ = 1;
    int32_t most_preemptions_ = 0;
    int32_t steps_without_prefill_ = 0;
    uint64_t at_step_ = 0;
};

}  // namespace takt::engine_sim
