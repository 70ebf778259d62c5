// StepPlan: what one step does, decided by the scheduler, carried out by the forward runner. Plain data, no pointers into anybody.
#pragma once

#include <cstdint>
#include <vector>

namespace takt {

using RequestId = uint64_t;   // from 1, in order of admission to the engine; never reused

/// What a step costs as the cost model sees it (scheduling.md 4.1).
struct StepFeatures {
    int32_t rows = 0;             ///< true rows n
    int32_t padded_rows = 0;      ///< launched shape n~
    int32_t decode_rows = 0;      ///< B
    int32_t prefill_segments = 0; ///< S
    int64_t kv_read_tokens = 0;   ///< K = sum of decode context lengths
    int64_t prefill_pairs = 0;    ///< A = sum c (h + (c + 1) / 2)
    int64_t prefill_kv_tokens = 0; ///< H = sum h + c: K and V that the slices read, whatever their rows
    int64_t single_row_tokens = 0; ///< of H, those of slices of one row
    uint64_t one_off_ns = 0;      ///< e: copies of KV to and from the host's memory before the step

    /// A decode row behind `context` tokens.
    void add_decode(int32_t context) {
        ++rows;
        ++decode_rows;
        kv_read_tokens += context + 1;
    }
    /// `count` prefill rows of one request behind `context` tokens.
    void add_slice(int32_t count, int32_t context) {
        rows += count;
        ++prefill_segments;
        prefill_pairs += int64_t{count} * context + int64_t{count} * (count + 1) / 2;
        prefill_kv_tokens += int64_t{context} + count;
        if (count == 1) single_row_tokens += int64_t{context} + 1;
    }
};

/// Consecutive rows of one request in a step. `token_begin` counts in the request's own token list (prompt, then outputs).
struct PlanSegment {
    RequestId request = 0;
    int32_t slot = 0;             ///< device slot of the request (0 .. max_running - 1)
    int32_t token_begin = 0;      ///< = position of the first row
    int32_t num_rows = 0;
    bool samples = false;         ///< the last row is sampled: the request's next token comes from this step
    bool is_decode = false;       ///< one row whose token is the last sampled one (on the device it may not be known here yet)
};

/// KV of a request's positions that moves before the step's rows run, in the order of the list: out of blocks that are given up with
/// it, or into the blocks of its new table.
struct KvCopy {
    RequestId request = 0;
    bool is_out = false;
    int32_t first_token = 0, num_tokens = 0;
    std::vector<int32_t> blocks;  ///< the table
};

struct StepPlan {
    uint64_t step = 0;            ///< from 1
    std::vector<PlanSegment> segments;   ///< decode segments first, then prefill
    StepFeatures features;
    int32_t padded_samples = 0;   ///< 1, 2, 4, ... max_running; 0 if nothing is sampled
    int32_t num_samples = 0;
    bool greedy = true;           ///< every sample is plain argmax
    uint64_t budget_ns = 0;       ///< T_b; 0: no decode running
    uint64_t predicted_ns = 0;    ///< That x margin is not included
    uint64_t padding_ns = 0;      ///< of That, what the shape's empty rows take (CostModel::padding_ns)
    bool at_floor = false;        ///< the floor shape was taken although it breaks the budget
    int32_t block_tokens = 16;    ///< of the KV cache that the block tables are in
    std::vector<RequestId> admitted;    ///< left the waiting queue for this step
    std::vector<RequestId> preempted;   ///< lost their blocks before this step; they wait for recompute, or their KV for its way back
    std::vector<KvCopy> copies;         ///< none without SchedulerConfig::swap_tokens
    [[nodiscard]] bool empty() const { return segments.empty(); }
};

/// Outcome of a step, for Scheduler::apply and CostModel::observe.
struct StepOutcome {
    uint64_t step = 0;
    uint64_t device_ns = 0;       ///< end - begin on the device's clock
    bool failed = false;
    struct Sampled {
        RequestId request = 0;
        bool finished = false;    ///< the request ends with this token (stop, length, cancel)
        int32_t token = -1;       ///< for the prefix cache; -1: not known, blocks with it are not shared
    };
    std::vector<Sampled> sampled;
};

}  // namespace takt
