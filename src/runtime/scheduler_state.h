// The scheduler's insides, shared by its files: records of requests, the lists they stand in, and the steps not yet applied.
// See scheduler.h for the contract.
#pragma once

#include <deque>
#include <vector>

#include "runtime/budget.h"
#include "runtime/cost_model.h"
#include "runtime/fairness.h"
#include "runtime/id_index.h"
#include "runtime/kv.h"
#include "runtime/scheduler.h"

namespace takt {

struct SchedulerRecord {
    enum class State : uint8_t { free, waiting, prefilling, decoding };
    SchedulerRequest request;
    State state = State::free;
    int32_t slot = -1;
    int32_t computed = 0;          ///< tokens with a row in a launched step
    int32_t target = 0;            ///< prefill ends here: prompt and the outputs known at (re)admission
    int32_t outputs = 0;           ///< tokens sampled, by launched steps too
    int32_t cached = 0;            ///< taken from the prefix cache at the last admission
    int32_t num_preemptions = 0;
    uint64_t last_step = 0;        ///< last launched step with rows of it
    uint64_t admission = 0;        ///< ordinal of the last admission: newer ones are preempted first
    uint64_t first_emit_ns = 0;
    uint64_t last_emit_ns = 0;
    int32_t num_emitted = 0;
    uint64_t key_ns = 0;           ///< order among equals: arrival + TTFT promise, fixed at arrival
    bool is_paused = false;
    bool was_demoted = false;

    [[nodiscard]] int32_t remaining_prefill() const { return state == State::prefilling ? target - computed : 0; }
    [[nodiscard]] bool can_decode() const {
        return state == State::decoding && !is_paused && outputs < request.max_tokens;
    }
};

struct Scheduler::Impl {
    Impl(const SchedulerConfig& c, CostModel& cost_model, KvManager& kv_manager);

    using Record = SchedulerRecord;
    using State = SchedulerRecord::State;

    /// A launched step whose outcome has not come yet.
    struct Launched {
        uint64_t step = 0;
        StepFeatures features;
        struct Part {
            int32_t record = -1;
            RequestId id = 0;
            uint64_t admission = 0;
            int32_t computed = 0;      ///< after the step
            int32_t num_rows = 0;
        };
        std::vector<Part> parts;
    };

    // scheduler.cpp
    Admission submit(const SchedulerRequest& request, uint64_t now_ns);
    void finish(RequestId id);
    void apply(const StepOutcome& outcome, uint64_t now_ns);
    void emitted(RequestId id, uint64_t now_ns);
    Record* find(RequestId id);
    const Record* find(RequestId id) const;
    void leave_slot(Record& r);
    void publish(Record& r, int32_t computed);
    void charge(const Launched& step, uint64_t device_ns);
    [[nodiscard]] uint64_t itl_ns(const Record& r) const;
    [[nodiscard]] uint64_t ttft_ns(const Record& r) const;
    [[nodiscard]] double wait_estimate_ns(const Record& r) const;
    [[nodiscard]] std::string check_integrity() const;

    // scheduler_plan.cpp
    void plan(uint64_t start_ns, StepPlan& plan);
    void admit(uint64_t start_ns, StepPlan& plan);
    bool admit_one(int32_t index, StepPlan& plan);
    /// The decode step that the running requests and one more would make.
    struct AdmissionLoad {
        StepFeatures decode;
        uint64_t tightest_ns = UINT64_MAX;
    };
    [[nodiscard]] AdmissionLoad admission_load() const;
    [[nodiscard]] bool may_admit(const Record& r, const AdmissionLoad& load, uint64_t start_ns) const;
    [[nodiscard]] int32_t next_waiting(uint64_t start_ns) const;
    void place_decodes(StepPlan& plan);
    bool make_room(int32_t index, StepPlan& plan);
    [[nodiscard]] int32_t choose_victim(int32_t requester) const;
    void preempt(int32_t index, StepPlan& plan);
    void place_prefills(uint64_t start_ns, StepPlan& plan);
    void order_prefills(uint64_t start_ns);
    [[nodiscard]] uint64_t gap_budget_ns(uint64_t start_ns) const;
    void add_segment(StepPlan& plan, Record& r, int32_t rows);
    void close_plan(uint64_t start_ns, StepPlan& plan);

    SchedulerConfig config;
    CostModel& cost;
    KvManager& kv;
    FairShares shares;
    BudgetTrim trim;
    IdIndex index;
    std::vector<Record> records;
    std::vector<int32_t> free_records;
    std::vector<int32_t> running;          // by admission, oldest first
    std::vector<int32_t> waiting;          // by arrival
    std::vector<int32_t> free_slots;
    std::vector<int32_t> slot_records;     // [max_running]: record in the slot or -1
    std::deque<Launched> launched;
    std::vector<Launched> spare;
    std::vector<int32_t> tenant_running, tenant_waiting;

    uint64_t next_step = 1;
    uint64_t applied_step = 0;
    uint64_t next_admission = 1;
    int32_t steps_without_prefill = 0;
    bool last_constrained = false, last_infeasible = false;

    // Scratch of one plan; sized once.
    std::vector<int32_t> decodes, prefills;
    std::vector<PrefillNeed> needs;
};

}  // namespace takt
