// Section offsets of the step input buffer; pure arithmetic.
#include "kernels/step_input.h"

#include <algorithm>

namespace takt {
namespace {

constexpr size_t kSectionAlign = 256;
// Two used ranges closer than this are copied as one: a separate copy costs more than the bytes between.
constexpr size_t kMergeGapBytes = 16384;

size_t align_up(size_t n) { return (n + kSectionAlign - 1) / kSectionAlign * kSectionAlign; }

template <class T>
size_t section(size_t& at, int32_t count) {
    const size_t begin = at;
    at = align_up(at + sizeof(T) * static_cast<size_t>(count));
    return begin;
}

}  // namespace

StepInputLayout::StepInputLayout(const StepCapacity& capacity) : capacity_(capacity) {
    size_t at = align_up(sizeof(StepHeader));
    segments_ = section<SegmentInput>(at, capacity.max_segments);
    samples_ = section<SampleInput>(at, capacity.max_samples);
    rows_ = section<RowInput>(at, capacity.max_rows);
    work_ = section<AttentionWork>(at, capacity.max_work);
    biases_ = section<BiasInput>(at, capacity.max_biases);
    updates_ = section<CountUpdate>(at, capacity.max_updates);
    block_ids_ = section<int32_t>(at, capacity.max_block_ids);
    total_ = at;
}

StepView StepInputLayout::view(void* base) const {
    auto* p = static_cast<uint8_t*>(base);
    StepView v;
    v.header = reinterpret_cast<StepHeader*>(p);
    v.segments = reinterpret_cast<SegmentInput*>(p + segments_);
    v.samples = reinterpret_cast<SampleInput*>(p + samples_);
    v.rows = reinterpret_cast<RowInput*>(p + rows_);
    v.work = reinterpret_cast<AttentionWork*>(p + work_);
    v.block_ids = reinterpret_cast<int32_t*>(p + block_ids_);
    v.biases = reinterpret_cast<BiasInput*>(p + biases_);
    v.updates = reinterpret_cast<CountUpdate*>(p + updates_);
    return v;
}

int StepInputLayout::used_ranges(const StepHeader& h, int32_t num_padded_rows, int32_t num_padded_samples,
                                 int32_t num_block_ids, Range out[6]) const {
    const Range used[] = {
        {0, segments_ + sizeof(SegmentInput) * static_cast<size_t>(h.num_segments)},
        {samples_, sizeof(SampleInput) * static_cast<size_t>(num_padded_samples)},
        {rows_, sizeof(RowInput) * static_cast<size_t>(num_padded_rows)},
        {work_, sizeof(AttentionWork) * static_cast<size_t>(h.num_work)},
        {biases_, sizeof(BiasInput) * static_cast<size_t>(h.num_biases)},
        {updates_, sizeof(CountUpdate) * static_cast<size_t>(h.num_updates)},
        {block_ids_, sizeof(int32_t) * static_cast<size_t>(num_block_ids)},
    };
    int n = 0;
    for (const Range& r : used) {
        if (r.bytes == 0) continue;
        const bool merges = n > 0 && (n == 6 || r.begin - (out[n - 1].begin + out[n - 1].bytes) <= kMergeGapBytes);
        if (merges) {
            out[n - 1].bytes = r.begin + r.bytes - out[n - 1].begin;
        } else {
            out[n++] = r;
        }
    }
    return n;
}

size_t step_result_bytes(int32_t max_samples) {
    return align_up(sizeof(StepResultHeader) + sizeof(SampleResult) * static_cast<size_t>(std::max(max_samples, 1)));
}

}  // namespace takt
