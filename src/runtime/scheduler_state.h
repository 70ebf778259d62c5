// The scheduler's insides, shared by its files: records of requests, the lists they stand in, and the steps not yet applied.
// See scheduler.h for the contract.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/budget.h"
#include "runtime/cost_model.h"
#include "runtime/fairness.h"
#include "runtime/id_index.h"
#include "runtime/kv.h"
#include "runtime/scheduler.h"

namespace takt {

/// In its first two cache lines what every plan asks of each prompt that waits.
struct alignas(64) SchedulerRecord {
    enum class State : uint8_t { free, waiting, prefilling, decoding };
    SchedulerRequest request;
    uint64_t key_ns = 0;           ///< order among equals: arrival + TTFT promise, fixed at arrival
    double work_ns = 0;            ///< the whole prompt's cost alone on the device, fixed at arrival
    uint64_t last_step = 0;        ///< last launched step with rows of it
    int32_t num_emitted = 0;
    int32_t outputs = 0;           ///< tokens sampled, by launched steps too
    int32_t expected_cached = 0;   ///< what the prefix cache held when last asked
    int32_t computed = 0;          ///< tokens with a row in a launched step
    int32_t target = 0;            ///< prefill ends here: prompt and the outputs known at (re)admission
    State state = State::free;
    bool is_paused = false;
    bool was_demoted = false;
    int32_t slot = -1;
    int32_t cached = 0;            ///< taken from the prefix cache at the last admission
    int32_t num_preemptions = 0;
    int32_t swapped = 0;           ///< tokens whose KV waits in the host's memory; 0: none does
    int32_t stalled_steps = 0;     ///< steps with prefill rows in a row that had none of it, though it is owed some
    int32_t skipped_steps = 0;     ///< steps in a row that left its decode row out on its class's credit
    uint64_t admission = 0;        ///< ordinal of the last admission: newer ones are preempted first
    uint64_t first_emit_ns = 0;
    uint64_t last_emit_ns = 0;
    uint64_t pending_gap_ns = 0;   ///< gap that ended with the last token, until its step is applied; 0: none

    [[nodiscard]] int32_t remaining_prefill() const { return state == State::prefilling ? target - computed : 0; }
    [[nodiscard]] bool can_decode() const {
        return state == State::decoding && !is_paused && outputs < request.max_tokens;
    }
};

/// A prompt's place: lower goes first. No two are alike, for ids are not.
struct SchedulerRank {
    int32_t group = 0;
    double tenant = 0;             ///< its counter, of who had more than others
    double key = 0;
    RequestId id = 0;

    friend bool operator<(const SchedulerRank& a, const SchedulerRank& b) {
        if (a.group != b.group) return a.group < b.group;
        if (a.tenant != b.tenant) return a.tenant < b.tenant;
        if (a.key != b.key) return a.key < b.key;
        return a.id < b.id;
    }
};

struct SchedulerCandidate {
    SchedulerRank rank;
    int32_t record = -1;

    friend bool operator<(const SchedulerCandidate& a, const SchedulerCandidate& b) { return a.rank < b.rank; }
};

struct Scheduler::Impl {
    Impl(const SchedulerConfig& c, CostModel& cost_model, KvManager& kv_manager);

    using Record = SchedulerRecord;
    using State = SchedulerRecord::State;

    /// A launched step whose outcome has not come yet.
    struct Launched {
        uint64_t step = 0;
        StepFeatures features;
        bool at_floor = false;
        struct Part {
            int32_t record = -1;
            RequestId id = 0;
            uint64_t admission = 0;
            int32_t computed = 0;      ///< after the step
            int32_t num_rows = 0;
            bool is_decode = false;
            int32_t tenant = 0;        ///< who pays, also when the request has left
            double weight = 1;         ///< of its class
            uint64_t waited_ns = 0;    ///< of its gap, how much lay before the step's planned start
        };
        std::vector<Part> parts;
    };

    // scheduler.cpp: requests in and out, outcomes, books
    Admission submit(const SchedulerRequest& request, uint64_t now_ns);
    void finish(RequestId id);
    void apply(const StepOutcome& outcome, uint64_t now_ns);
    void emitted(RequestId id, uint64_t now_ns, std::span<const int32_t> tokens);
    Record* find(RequestId id);
    const Record* find(RequestId id) const;
    Record& at(int32_t index_of) { return records[static_cast<size_t>(index_of)]; }
    [[nodiscard]] const Record& at(int32_t index_of) const { return records[static_cast<size_t>(index_of)]; }
    void leave_slot(Record& r);
    void publish(Record& r, int32_t computed);
    void charge(const Launched& step, uint64_t device_ns);
    [[nodiscard]] bool is_late_slice(const Launched& step) const;
    void note_gaps(const Launched& step, uint64_t device_ns, CostVerdict verdict);
    [[nodiscard]] double room_ns(const SchedulerRequest& request) const;
    void learn_output(const Record& r);
    void note_offered(const Record& r, uint64_t now_ns);
    [[nodiscard]] double answer_ns() const;
    [[nodiscard]] double retry_ns(double excess_ns) const;
    [[nodiscard]] bool is_envelope(const Record& r) const { return r.request.envelope || class_of(r).envelope; }
    [[nodiscard]] const SchedulerClass& class_of(const Record& r) const {
        return config.classes[static_cast<size_t>(r.request.class_index)];
    }
    /// As it was given, whether or not anybody can keep it.
    [[nodiscard]] uint64_t promised_ns(const Record& r) const {
        return r.request.itl_ns != 0 ? r.request.itl_ns : class_of(r).itl_ns;
    }
    /// The request's own promise, if it has one: not tighter than the least step that moves prompts at all, as far as its class has
    /// not promised that. What nobody can keep must not stop everybody's prompts.
    [[nodiscard]] uint64_t itl_ns(const Record& r) const {
        const uint64_t own = r.request.itl_ns, promised = class_of(r).itl_ns;
        return own == 0 ? promised : std::max(own, std::min(promised, least_itl_ns));
    }
    [[nodiscard]] uint64_t ttft_ns(const Record& r) const {
        return r.request.ttft_ns != 0 ? r.request.ttft_ns : class_of(r).ttft_ns;
    }
    [[nodiscard]] std::string check_integrity() const;

    // scheduler_plan.cpp: one step
    void plan(uint64_t start_ns, StepPlan& plan);
    void place_decodes(uint64_t start_ns, StepPlan& plan);
    void spend_skip_credits(uint64_t start_ns);
    void place_prefills(uint64_t start_ns, StepPlan& plan);
    void hold_back();
    void fill_needs();
    [[nodiscard]] DecodeLoad decode_load() const;
    void note_least_step(uint64_t start_ns);
    [[nodiscard]] static uint64_t waited_ns(const Record& r, uint64_t start_ns);
    void note_lost_promises(const DecodeLoad& load, RowBudget& budget);
    RowChoice choose(uint64_t budget_ns);
    [[nodiscard]] double promised_ns(const Record& r, uint64_t gap_ns) const;
    [[nodiscard]] double allowed_gap_ns(const Record& r, uint64_t start_ns) const;
    [[nodiscard]] uint64_t gap_budget_ns(uint64_t start_ns) const;
    void note_infeasible(uint64_t start_ns, bool infeasible);
    void add_segment(StepPlan& plan, Record& r, int32_t rows);
    void close_plan(StepPlan& plan);

    // scheduler_rank.h: a prompt's place
    using Rank = SchedulerRank;
    [[nodiscard]] double remaining_ns(const Record& r) const;
    [[nodiscard]] bool is_late(const Record& r, double left_ns, uint64_t now_ns) const;
    [[nodiscard]] bool is_late(const Record& r, uint64_t now_ns) const { return is_late(r, remaining_ns(r), now_ns); }
    [[nodiscard]] bool is_favoured(const Record& r) const;
    [[nodiscard]] Rank rank(const Record& r, double left_ns, bool late, uint64_t now_ns) const;
    [[nodiscard]] Rank rank(const Record& r, uint64_t now_ns) const;

    // scheduler_order.cpp: who comes first, and how long a prompt will wait
    void refresh_order();
    void order_prefills(uint64_t now_ns);
    [[nodiscard]] double prefill_share() const;
    [[nodiscard]] double wait_estimate_ns(const Record& r, uint64_t now_ns) const;

    // scheduler_admit.cpp: who gets a slot and blocks, and who loses them
    void admit(uint64_t start_ns, StepPlan& plan);
    bool admit_one(int32_t at, StepPlan& plan);
    /// The decode step that the running requests and one more would make.
    struct AdmissionLoad {
        int32_t num_reading = 0;        ///< running requests that are not paused
        double bound_ns = 0;            ///< of it with the least slice of prefill, the newcomer's own context aside
        double alone_ns = 0;            ///< of a single stream without context
        double context_ns = 0;          ///< a token of context
        double trim = 1;                ///< of the promise
        uint64_t tightest_ns = UINT64_MAX;   ///< of the promises that can be kept; UINT64_MAX: there is none to keep
    };
    [[nodiscard]] AdmissionLoad admission_load() const;
    [[nodiscard]] bool at_tenant_limit(const Record& r) const;
    [[nodiscard]] bool may_admit(const Record& r, const AdmissionLoad& load) const;
    [[nodiscard]] bool is_worth_starting(const Record& r, const Rank& own, uint64_t start_ns) const;
    bool list_candidates(const AdmissionLoad& load, uint64_t start_ns);
    [[nodiscard]] int32_t reserved_blocks() const;
    bool make_room(int32_t at, StepPlan& plan);
    /// -1 asks for a paused one only, for a newcomer.
    [[nodiscard]] int32_t choose_victim(int32_t requester) const;
    void let_yield(uint64_t start_ns, StepPlan& plan);
    /// Whether it would give its slot to a request whose class weighs more: once, and never so that it comes back pinned.
    [[nodiscard]] bool may_yield(const Record& r, double weight) const {
        const bool is_baseline = config.fixed_chunk || config.first_come;
        return !is_baseline && !r.is_paused && class_of(r).weight < weight && r.num_preemptions + 1 < config.max_preemptions;
    }
    void preempt(int32_t at, StepPlan& plan);
    void swap_out(Record& r, StepPlan& plan);
    void swap_in(Record& r, StepPlan& plan);

    SchedulerConfig config;
    CostModel& cost;
    KvManager& kv;
    FairShares shares;
    BudgetTrim trim;
    HostPart host;
    IdIndex index;
    std::vector<Record> records;
    std::vector<int32_t> free_records;
    std::vector<int32_t> running;          // by admission, oldest first
    std::vector<int32_t> waiting;          // by arrival
    std::vector<int32_t> free_slots;
    std::vector<int32_t> slot_records;     // [max_running]: record in the slot or -1
    std::vector<Launched> launched;        // in order; never more than a few
    std::vector<Launched> spare;
    std::vector<int32_t> tenant_running, tenant_waiting;

    uint64_t plan_start_ns = 0;            // of the plan at hand
    uint64_t one_off_ns = 0;               // of its copies
    int64_t swap_left = 0;                 // tokens of KV that the host's memory has room for
    uint64_t next_step = 1;
    uint64_t applied_step = 0;
    uint64_t next_admission = 1;
    int32_t steps_without_prefill = 0;
    double gap_credit = kMostGapCredit;     // steps whose gaps may still be late without intent: earned by each step
    double decode_late = 0;                 // late share of the steps without prompts, lately
    bool last_constrained = false, last_infeasible = false;
    double expected_outputs = 256;         // learned length of an answer
    double expected_gap_ns = 0;            // learned gap between two tokens of an answer; 0: none has ended yet
    double num_outputs_seen = 0;           // that it was learned from
    double offered_work = 0, offered_life = 0;   // that came in lately, over time: of the device, of the slots
    uint64_t offered_ns = 0;               // when that was last counted
    double reserve = 0.5;                  // learned share of what running answers may still need that admission keeps free
    double tilt = 1;                       // of the order: weight of a prompt's own cost against its deadline
    double lowest_counter = 0;             // of tenants that have prefill work
    double share = 1;                      // of the device that prefills may take beside the decodes
    bool lacks_room = false;               // at the last admission somebody was left without a slot or blocks
    RequestId yielded_to = 0;              // whom others gave way for, last
    double late_credit_ns = 0;             // prefill time that prompts past their promise have coming
    uint64_t least_itl_ns = 0;             // of the decode rows and the floor's slice, lately
    double step_ns = 0;                    // budget of the last step with prefill rows: the measure of "urgent"
    std::vector<int32_t> infeasible_steps; // [class] of the window at hand
    std::vector<uint8_t> is_infeasible;    // [class] of the last whole window
    int32_t window_steps = 0;

    // Scratch of one plan; sized once.
    int32_t owed = -1;                     // of the candidates: the oldest past its promise, where that can be paid
    std::vector<int32_t> decodes, prefills;
    std::vector<PrefillNeed> needs;
    std::vector<SchedulerCandidate> candidates;
};

}  // namespace takt
