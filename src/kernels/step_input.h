// StepInput: everything that differs from step to step, as data in one fixed device buffer, so that a recorded graph can be
// replayed over it. The host fills a pinned copy with the same layout and one stream-ordered copy (a section at a time)
// brings it over. Knows rows, segments, samples and block tables; knows nothing of requests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/status.h"

namespace takt {

/// The counts of one step. Rows past num_rows up to the shape's padded count are padding: token 0, position 0, KV slot in the
/// dummy block, segment -1; samples past num_samples have row -1 and are ignored.
struct StepHeader {
    int32_t num_rows = 0;
    int32_t num_segments = 0;
    int32_t num_samples = 0;
    int32_t num_work = 0;           ///< attention work items
    int32_t result_index = 0;       ///< which of the two pinned result blocks this step writes
    int32_t num_biases = 0;
    int32_t num_updates = 0;
    int32_t num_decode_segments = 0;  ///< segments [0, n) have exactly one row each and come first; the rest are prefill
    uint64_t step = 0;
    int64_t kv_read_tokens = 0;     ///< K: sum of decode context lengths (sim device, profiles)
    int64_t prefill_pairs = 0;      ///< A: query-key pairs of the prefill part
    int64_t reserved = 0;
};

/// One row of the forward: one token of one segment. 16 bytes.
struct RowInput {
    int32_t token = 0;      ///< id, or ~slot (negative): the last sampled token of that slot, read on the device
    int32_t position = 0;   ///< absolute, from 0
    int32_t kv_slot = 0;    ///< block * block_tokens + offset: where this row's K and V go
    int32_t segment = -1;
};

/// A run of consecutive rows of one sequence. Rows attend to positions [0, own position] through the block table.
struct SegmentInput {
    int32_t row_begin = 0;
    int32_t num_rows = 0;
    int32_t position_begin = 0;   ///< position of its first row
    int32_t table_begin = 0;      ///< index of its block table in the block-id section
    int32_t num_blocks = 0;       ///< entries there that are real; padded with the dummy block to a multiple of 8
    int32_t slot = 0;             ///< request slot (token feedback, penalty counts)
    int32_t reserved[2] = {0, 0};
};

/// One row to be sampled. 64 bytes. Order of effects: contract section 4.
struct SampleInput {
    int32_t row = -1;             ///< hidden row; -1: padding
    int32_t slot = 0;             ///< where the token goes
    int32_t position = 0;         ///< position that the sampled token will have: the generator's counter
    int32_t num_logprobs = -1;    ///< -1 none, 0 the chosen token's only, up to 20
    float temperature = 0.0f;     ///< 0: argmax
    float top_p = 1.0f;
    float min_p = 0.0f;
    int32_t top_k = 0;            ///< 0: off
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    int32_t bias_begin = 0;
    int32_t num_biases = 0;
    int32_t uses_counts = 0;      ///< 1: penalties apply; the sampled token is added to the slot's output counts
    uint64_t seed = 0;
};

struct BiasInput {
    int32_t token = 0;
    float bias = 0.0f;
};

/// An edit of a slot's penalty counts, applied in order before sampling. token -1: clear the slot's counts first.
struct CountUpdate {
    int32_t slot = 0;
    int32_t token = -1;
    int32_t is_output = 0;        ///< 0: prompt token (repetition only), 1: output token
    int32_t reserved = 0;
};

/// One attention work item; meaning of a..f is the device's own (its plan_attention fills them, its kernels read them). 32 bytes.
struct AttentionWork {
    int32_t segment = 0;
    int32_t kv_head = 0;
    int32_t row_begin = 0;        ///< first query row of the item (absolute)
    int32_t num_rows = 0;
    int32_t kv_begin = 0;         ///< positions [kv_begin, kv_end), kv_begin a multiple of the split size
    int32_t kv_end = 0;
    int32_t partial = -1;         ///< index of its partial result; -1: writes the output itself
    int32_t group = 0;
};

constexpr int32_t kMaxTopLogprobs = 20;

/// What one sampled row gives back, written by the device into the pinned result block.
struct SampleResult {
    int32_t token = -1;
    int32_t flags = 0;            ///< bit 0: a logit was not finite (the request fails, the token is not used)
    float logprob = 0.0f;         ///< of the raw logits
    int32_t num_top = 0;
    int32_t top_tokens[kMaxTopLogprobs] = {};
    float top_logprobs[kMaxTopLogprobs] = {};
};
constexpr int32_t kSampleNonFinite = 1;

/// One of two pinned result blocks; `samples` follow it in memory.
struct StepResultHeader {
    uint64_t begin_ns = 0;        ///< the device's own clock at the step's begin and end
    uint64_t end_ns = 0;
    uint64_t step = 0;
    uint64_t reserved = 0;
};

/// Capacities of the input buffer; fixed when the engine starts.
struct StepCapacity {
    int32_t max_rows = 0;         ///< largest ladder shape
    int32_t max_segments = 0;
    int32_t max_samples = 0;      ///< max_running
    int32_t max_work = 0;
    int32_t max_block_ids = 0;
    int32_t max_biases = 0;
    int32_t max_updates = 0;
};

/// Pointers into one copy (host or device) of the input buffer.
struct StepView {
    StepHeader* header = nullptr;
    SegmentInput* segments = nullptr;   // [max_segments]
    SampleInput* samples = nullptr;     // [max_samples]
    RowInput* rows = nullptr;           // [max_rows]
    AttentionWork* work = nullptr;      // [max_work]
    int32_t* block_ids = nullptr;       // [max_block_ids], tables of all segments one after the other
    BiasInput* biases = nullptr;        // [max_biases]
    CountUpdate* updates = nullptr;     // [max_updates]
};

/// Byte offsets of the sections; the same for the pinned and the device copy. Every section starts at a multiple of 256.
class StepInputLayout {
public:
    explicit StepInputLayout(const StepCapacity& capacity);

    [[nodiscard]] const StepCapacity& capacity() const { return capacity_; }
    [[nodiscard]] size_t bytes() const { return total_; }
    [[nodiscard]] StepView view(void* base) const;
    /// A used byte range that has to be copied for the counts in `header` (ranges are in ascending order; at most 6).
    struct Range { size_t begin = 0; size_t bytes = 0; };
    int used_ranges(const StepHeader& header, int32_t num_padded_rows, int32_t num_padded_samples,
                    int32_t num_block_ids, Range out[6]) const;

private:
    StepCapacity capacity_;
    size_t segments_, samples_, rows_, work_, block_ids_, biases_, updates_, total_;
};

/// Bytes of one result block: header and max_samples SampleResults, rounded up to 256.
size_t step_result_bytes(int32_t max_samples);

}  // namespace takt
