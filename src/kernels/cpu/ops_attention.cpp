// Attention of the CPU device: the work list and the item that runs it. Where there are few items for the threads (decode rows, a
// short slice of a prompt) a row's context is cut at absolute chunks of 256 positions, whose results are folded in order; else rows
// walk their chunks themselves, some at a time. Either way gives the same bits. Cut rows are dealt to the threads in stretches of
// equal cost, so that a long context beside short ones balances; whole jobs as they come.
#include <algorithm>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kv_place.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/stream.h"

namespace takt::cpu {
namespace {

/// Prefill rows that share the loading of K and V, of short and of long segments; all their queries' states stay in the L2 cache.
constexpr int32_t kFewRowsPerJob = 16;
constexpr int32_t kMostRowsPerJob = 32;
/// Fewer items a thread than this do not balance: three KV heads on two threads take as long as four.
constexpr int32_t kItemsPerThread = 8;
/// Room for so many items of cut rows at most: with more than that on the list the threads are balanced as it is.
constexpr int64_t kMostCutItems = 1 << 16;
int32_t rows_per_job(int32_t group, int32_t most) { return std::clamp(kMaxJobQueries / group, 1, most); }

size_t partial_stride(const KvLayout& kv) { return static_cast<size_t>(kv.head_dim) + 16; }

AttentionJob job_of(const AttentionParams& p, const AttentionWork& w) {
    const SegmentInput& segment = p.in.segments[w.segment];
    const int group = p.num_heads / p.kv.num_kv_heads;
    const int dims = p.kv.head_dim;
    AttentionJob j;
    j.keys = static_cast<const uint8_t*>(p.kv_layer) + key_begin(p.kv, w.kv_head);
    j.values = static_cast<const uint8_t*>(p.kv_layer) + value_begin(p.kv, w.kv_head);
    j.block_stride = p.kv.head_stride();
    j.token_stride = p.kv.token_stride();
    j.type = p.kv.type;
    j.table = p.in.block_ids + segment.table_begin;
    j.block_tokens = p.kv.block_tokens;
    j.head_dim = dims;
    j.num_heads = group;
    j.q_stride = static_cast<size_t>(p.num_heads) * static_cast<size_t>(dims);
    j.q = static_cast<const float*>(p.q) + static_cast<size_t>(w.row_begin) * j.q_stride + static_cast<size_t>(w.kv_head * group * dims);
    j.num_rows = w.num_rows;
    j.first_position = segment.position_begin + (w.row_begin - segment.row_begin);
    j.kv_begin = w.kv_begin;
    j.kv_end = w.kv_end;
    j.window = p.window;
    j.scale = p.scale;
    j.soft_cap = p.soft_cap;
    j.out_stride = j.q_stride;
    j.out = static_cast<float*>(p.out) + (j.q - static_cast<const float*>(p.q));
    if (w.partial >= 0) {
        j.partial = static_cast<float*>(p.partials) + static_cast<size_t>(w.partial) * static_cast<size_t>(group) * partial_stride(p.kv);
    }
    return j;
}

int64_t cost_of(const AttentionWork& w) { return int64_t{w.num_rows} * (w.kv_end - w.kv_begin) + 64; }

/// The list is cut into stretches of equal cost, one a thread: an item goes where its middle lies.
class Dealer {
public:
    Dealer(const TaskContext& context, const AttentionParams& p) : num_threads_(context.num_threads) {
        for (int32_t i = 0; i < p.in.header->num_work; ++i) total_ += cost_of(p.in.work[i]);
    }
    /// The thread of the next item; items in their order.
    int thread_of(const AttentionWork& w) {
        const int64_t cost = cost_of(w);
        const int64_t middle = before_ + cost / 2;
        before_ += cost;
        return static_cast<int>(middle * num_threads_ / total_);
    }

private:
    int64_t num_threads_, total_ = 0, before_ = 0;
};

/// What the sum of weights of the first partial result says where one thread had all chunks of its rows and wrote the outputs itself.
constexpr float kWhole = -1.0f;

int queries_of(const AttentionParams& p, const AttentionWork& w) { return w.num_rows * (p.num_heads / p.kv.num_kv_heads); }

bool has_cut_rows(const AttentionParams& p) {
    return std::any_of(p.in.work, p.in.work + p.in.header->num_work, [](const AttentionWork& w) { return w.partial >= 0; });
}

bool are_same_rows(const AttentionWork& a, const AttentionWork& b) {
    return a.segment == b.segment && a.kv_head == b.kv_head && a.row_begin == b.row_begin;
}

void mark_partial(const AttentionParams& p, const AttentionWork& w, float sum) {
    float* partial = job_of(p, w).partial;
    const size_t stride = partial_stride(p.kv);
    for (int q = 0; q < queries_of(p, w); ++q) partial[static_cast<size_t>(q) * stride + static_cast<size_t>(p.kv.head_dim) + 1] = sum;
}

/// Partial results of this thread's share of split rows into their outputs: the items of the same rows and head stand together.
void fold_partials(TaskContext& context, const AttentionParams& p, const KernelTable& kernels) {
    const int group = p.num_heads / p.kv.num_kv_heads;
    const int32_t num_work = p.in.header->num_work;
    int64_t turn = 0;
    for (int32_t i = 0; i < num_work;) {
        const AttentionWork& w = p.in.work[i];
        int32_t end = i + 1;
        while (end < num_work && are_same_rows(p.in.work[end], w)) ++end;
        const AttentionJob j = job_of(p, w);
        if (w.partial >= 0 && j.partial[p.kv.head_dim + 1] != kWhole) {
            const int num_queries = queries_of(p, w);
            const size_t stride = static_cast<size_t>(num_queries) * partial_stride(p.kv);
            for (int q = 0; q < num_queries; ++q) {
                if (turn++ % context.num_threads != context.thread) continue;
                const size_t out = static_cast<size_t>(q / group) * j.out_stride + static_cast<size_t>(q % group * p.kv.head_dim);
                kernels.merge(j.partial + static_cast<size_t>(q) * partial_stride(p.kv), stride, end - i, p.kv.head_dim, j.out + out);
            }
        }
        i = end;
    }
}

/// One thread's jobs, each begun with the knowledge of the one after it.
class JobRunner {
public:
    JobRunner(const AttentionParams& p, const KernelTable& kernels, float* scratch) : p_(p), kernels_(kernels), scratch_(scratch) {}

    void add(const AttentionWork& w) {
        if (joins(w)) {
            // From the beginning of the context chunks are folded in order, in one job as in several.
            jobs_[0].kv_end = w.kv_end;
            const bool whole = w.kv_end == jobs_[0].first_position + w.num_rows;
            mark_partial(p_, w, 0.0f);   // nothing to fold
            if (whole) {
                mark_partial(p_, *last_, kWhole);
                jobs_[0].partial = nullptr;
            }
            return;
        }
        push(&w);
    }
    void finish() {
        push(nullptr);
        push(nullptr);
    }

private:
    [[nodiscard]] bool joins(const AttentionWork& w) const {
        return last_ != nullptr && w.partial >= 0 && last_->kv_begin == 0 && are_same_rows(*last_, w);
    }
    /// Runs the job before the last one, now that the last one is complete; `w` becomes the last.
    void push(const AttentionWork* w) {
        if (before_ != nullptr) {
            jobs_[1].next = last_ == nullptr ? nullptr : &jobs_[0];
            kernels_.attention(jobs_[1]);
        }
        jobs_[1] = jobs_[0];
        before_ = last_;
        last_ = w;
        if (w == nullptr) return;
        jobs_[0] = job_of(p_, *w);
        jobs_[0].scratch = scratch_;
    }

    const AttentionParams& p_;
    const KernelTable& kernels_;
    float* scratch_;
    AttentionJob jobs_[2];                    // the last one, and the one before it
    const AttentionWork* last_ = nullptr;     // the first item of each
    const AttentionWork* before_ = nullptr;
};

void run_attention(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const AttentionParams*>(data);
    const KernelTable& kernels = kernel_table(context.isa);
    const int group = p.num_heads / p.kv.num_kv_heads;
    const size_t scratch_floats = attention_scratch_floats(rows_per_job(group, kMostRowsPerJob) * group, p.kv.head_dim);
    auto* scratch = static_cast<float*>(context.scratch(scratch_floats * sizeof(float)));
    const int32_t num_work = p.in.header->num_work;
    JobRunner runner(p, kernels, scratch);
    if (scratch != nullptr && !has_cut_rows(p)) {   // many whole jobs: as they come
        Deal deal = context.deal(num_work);
        for (int64_t i = deal.next(); i >= 0; i = deal.next()) runner.add(p.in.work[i]);
        runner.finish();
        return;
    }
    Dealer dealer(context, p);
    bool split = false;   // some row over several threads
    int owner = 0;
    for (int32_t i = 0; i < num_work; ++i) {
        const AttentionWork& w = p.in.work[i];
        const int thread = dealer.thread_of(w);
        split = split || (w.kv_begin > 0 && thread != owner);
        owner = thread;
        if (thread == context.thread && scratch != nullptr) runner.add(w);
    }
    if (scratch != nullptr) runner.finish();
    if (!split) return;
    context.barrier();
    fold_partials(context, p, kernels);
}

}  // namespace

Status op_attention(Stream& stream, const AttentionParams& params) {
    if (params.num_heads / params.kv.num_kv_heads > kMaxJobQueries) {
        return {kStatusUnsupported, "the CPU device takes at most 512 query heads a KV head"};
    }
    return static_cast<CpuStream&>(stream).enqueue(run_attention, params);
}

Status plan_attention(const Device& device, const AttentionPlanParams& p) {
    StepHeader& header = *p.host.header;
    int32_t num_work = 0;
    int32_t num_partials = 0;   // results of a row's chunk, all heads of a KV head in one; as many as there may be items
    const int32_t num_heads = p.kv.num_kv_heads;
    const int32_t wanted_items = kItemsPerThread * device.caps().num_threads;
    const auto job_rows = [&](const SegmentInput& segment) {
        const int32_t most = rows_per_job(p.num_heads / num_heads, kMostRowsPerJob);
        if ((segment.num_rows + most - 1) / most * num_heads >= wanted_items) return most;
        return rows_per_job(p.num_heads / num_heads, kFewRowsPerJob);
    };
    const auto tiles_of = [&](const SegmentInput& segment) {
        const int32_t rows = job_rows(segment);
        return (segment.num_rows + rows - 1) / rows;
    };
    int64_t least_left = 0;     // items of the segments to come if none of them is cut
    for (int32_t s = 0; s < header.num_segments; ++s) least_left += int64_t{tiles_of(p.host.segments[s])} * num_heads;
    if (least_left > p.capacity.max_work) return {kStatusBadArgument, "the attention work list is full"};
    for (int32_t s = 0; s < header.num_segments; ++s) {
        const SegmentInput& segment = p.host.segments[s];
        const int32_t tiles = tiles_of(segment);
        const int32_t rows_a_job = job_rows(segment);
        least_left -= int64_t{tiles} * num_heads;
        const int32_t most_chunks = (segment.position_begin + segment.num_rows + kChunkPositions - 1) / kChunkPositions;
        const int64_t most_items = int64_t{tiles} * most_chunks * num_heads;
        const int64_t most_partials = int64_t{segment.num_rows} * most_chunks * num_heads;
        const bool few = segment.num_rows == 1 || tiles * num_heads < wanted_items;
        const int64_t room = p.capacity.max_work - least_left;
        const bool split = few && num_work + most_items <= room && num_partials + most_partials <= p.capacity.max_work;
        for (int32_t i = 0; i < num_heads * tiles; ++i) {
            const int32_t first = i % tiles * rows_a_job;
            const int32_t rows = std::min(rows_a_job, segment.num_rows - first);
            const int32_t context = segment.position_begin + first + rows;
            const int32_t chunks = split ? (context + kChunkPositions - 1) / kChunkPositions : 1;
            for (int32_t c = 0; c < chunks; ++c) {
                AttentionWork& w = p.host.work[num_work++];
                w = AttentionWork{};
                w.segment = s;
                w.kv_head = i / tiles;
                w.row_begin = segment.row_begin + first;
                w.num_rows = rows;
                w.kv_begin = c * kChunkPositions;
                w.kv_end = c + 1 == chunks ? context : (c + 1) * kChunkPositions;
                if (chunks == 1) continue;
                w.partial = num_partials;
                num_partials += rows;
            }
        }
    }
    header.num_work = num_work;
    return {};
}

int32_t max_attention_work(const Device&, const KvLayout& kv, int32_t num_heads, int32_t rows, int32_t segments, int32_t max_context) {
    const int64_t chunks = (int64_t{max_context} + kChunkPositions - 1) / kChunkPositions;
    // A row is either a decode row with all its chunks or one of a prefill job. What is never cut must fit; cuts where there is room.
    const int64_t whole = rows / rows_per_job(num_heads / kv.num_kv_heads, kFewRowsPerJob) + segments + 1;
    const int64_t cut = std::min<int64_t>(int64_t{std::min(rows, segments)} * chunks * kv.num_kv_heads, kMostCutItems);
    return static_cast<int32_t>(whole * kv.num_kv_heads + cut);
}

size_t attention_scratch_bytes(const Device&, const KvLayout& kv, int32_t num_heads, int32_t max_work, int32_t) {
    const auto group = static_cast<size_t>(num_heads / kv.num_kv_heads);
    return static_cast<size_t>(max_work) * group * partial_stride(kv) * sizeof(float);
}

}  // namespace takt::cpu
