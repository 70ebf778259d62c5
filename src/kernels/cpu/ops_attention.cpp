// Attention of the CPU device: the work list and the item that runs it. Decode rows are cut at absolute chunks of 256 positions,
// whose results are folded in order; prefill rows walk their chunks themselves, some at a time. Either way gives the same
// bits. Work is dealt to the threads in stretches of equal cost, so that a long context beside short ones balances.
#include <algorithm>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/stream.h"

namespace takt::cpu {
namespace {

/// Prefill rows that share the loading of K and V; all their queries' states stay in the L2 cache.
constexpr int32_t kMostRowsPerJob = 16;
/// Room for so many items of cut rows at most: with more than that on the list the threads are balanced as it is.
constexpr int64_t kMostCutItems = 1 << 16;
int32_t rows_per_job(int32_t group) { return std::clamp(kMaxJobQueries / group, 1, kMostRowsPerJob); }

size_t partial_stride(const KvLayout& kv) { return static_cast<size_t>(kv.head_dim) + 16; }

AttentionJob job_of(const AttentionParams& p, const AttentionWork& w) {
    const SegmentInput& segment = p.in.segments[w.segment];
    const int group = p.num_heads / p.kv.num_kv_heads;
    const int dims = p.kv.head_dim;
    AttentionJob j;
    j.layer = static_cast<const uint8_t*>(p.kv_layer);
    j.layer_v = j.layer + p.kv.kv_stride();
    j.block_stride = p.kv.block_stride();
    j.head_offset = p.kv.head_stride() * static_cast<size_t>(w.kv_head);
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

/// Whether this thread takes the item: the list is cut into stretches of equal cost, and an item goes where its middle lies.
bool is_mine(const TaskContext& context, int64_t cost_before, int64_t cost, int64_t total) {
    const int64_t middle = cost_before + cost / 2;
    return total == 0 || middle * context.num_threads / total == context.thread;
}

int64_t cost_of(const AttentionWork& w) { return int64_t{w.num_rows} * (w.kv_end - w.kv_begin) + 64; }

/// Partial results of this thread's share of split rows into their outputs: the items of one (segment, head) stand together.
void fold_partials(TaskContext& context, const AttentionParams& p, const KernelTable& kernels) {
    const int group = p.num_heads / p.kv.num_kv_heads;
    const size_t stride = static_cast<size_t>(group) * partial_stride(p.kv);
    const int32_t num_work = p.in.header->num_work;
    int64_t turn = 0;
    for (int32_t i = 0; i < num_work;) {
        const AttentionWork& w = p.in.work[i];
        int32_t end = i + 1;
        while (end < num_work && p.in.work[end].segment == w.segment && p.in.work[end].kv_head == w.kv_head) ++end;
        if (w.partial >= 0) {
            for (int h = 0; h < group; ++h) {
                if (turn++ % context.num_threads != context.thread) continue;
                const AttentionJob j = job_of(p, w);
                kernels.merge(j.partial + static_cast<size_t>(h) * partial_stride(p.kv), stride, end - i, p.kv.head_dim,
                              j.out + static_cast<size_t>(h * p.kv.head_dim));
            }
        }
        i = end;
    }
}

void run_attention(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const AttentionParams*>(data);
    const KernelTable& kernels = kernel_table(context.isa);
    const int group = p.num_heads / p.kv.num_kv_heads;
    const size_t scratch_floats = attention_scratch_floats(rows_per_job(group) * group, p.kv.head_dim);
    auto* scratch = static_cast<float*>(context.scratch(scratch_floats * sizeof(float)));
    const int32_t num_work = p.in.header->num_work;
    int64_t total = 0;
    bool split = false;
    for (int32_t i = 0; i < num_work; ++i) {
        total += cost_of(p.in.work[i]);
        split = split || p.in.work[i].partial >= 0;
    }
    int64_t before = 0;
    for (int32_t i = 0; i < num_work; ++i) {
        const int64_t cost = cost_of(p.in.work[i]);
        if (scratch != nullptr && is_mine(context, before, cost, total)) {
            AttentionJob j = job_of(p, p.in.work[i]);
            j.scratch = scratch;
            kernels.attention(j);
        }
        before += cost;
    }
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

Status plan_attention(const Device&, const AttentionPlanParams& p) {
    StepHeader& header = *p.host.header;
    const int32_t rows_a_job = rows_per_job(p.num_heads / p.kv.num_kv_heads);
    const int32_t heads = p.kv.num_kv_heads;
    const auto whole_jobs = [&](const SegmentInput& s) { return (s.num_rows + rows_a_job - 1) / rows_a_job; };
    int64_t rest = 0;   // items a head that the segments to come need at least
    for (int32_t s = 0; s < header.num_segments; ++s) rest += whole_jobs(p.host.segments[s]);
    int32_t num_work = 0;
    int32_t num_partials = 0;
    for (int32_t s = 0; s < header.num_segments; ++s) {
        const SegmentInput& segment = p.host.segments[s];
        const int32_t context = segment.position_begin + 1;
        const int32_t chunks = (context + kChunkPositions - 1) / kChunkPositions;
        rest -= whole_jobs(segment);
        // A row whose chunks find no room walks them in one item, to the same bits.
        const bool is_split = segment.num_rows == 1 && chunks > 1 && num_work + (rest + chunks) * heads <= p.capacity.max_work;
        const int32_t items = is_split ? chunks : whole_jobs(segment);
        if (num_work + items * heads > p.capacity.max_work) return {kStatusBadArgument, "the attention work list is full"};
        for (int32_t i = 0; i < items * heads; ++i) {
            const int32_t part = i % items;
            AttentionWork& w = p.host.work[num_work++];
            w = AttentionWork{};
            w.segment = s;
            w.kv_head = i / items;
            if (is_split) {
                w.row_begin = segment.row_begin;
                w.num_rows = 1;
                w.kv_begin = part * kChunkPositions;
                w.kv_end = std::min(context, (part + 1) * kChunkPositions);
                w.partial = num_partials++;
            } else {
                w.row_begin = segment.row_begin + part * rows_a_job;
                w.num_rows = std::min(rows_a_job, segment.num_rows - part * rows_a_job);
                w.kv_end = segment.position_begin + part * rows_a_job + w.num_rows;
            }
        }
    }
    header.num_work = num_work;
    return {};
}

int32_t max_attention_work(const Device&, const KvLayout& kv, int32_t num_heads, int32_t rows, int32_t segments, int32_t max_context) {
    const int64_t chunks = (int64_t{max_context} + kChunkPositions - 1) / kChunkPositions;
    // A row is either a decode row with all its chunks or one of a prefill job. What is never cut must fit; cuts where there is room.
    const int64_t whole = rows / rows_per_job(num_heads / kv.num_kv_heads) + segments + 1;
    const int64_t cut = std::min<int64_t>(int64_t{std::min(rows, segments)} * chunks * kv.num_kv_heads, kMostCutItems);
    return static_cast<int32_t>(whole * kv.num_kv_heads + cut);
}

size_t attention_scratch_bytes(const Device&, const KvLayout& kv, int32_t num_heads, int32_t max_work, int32_t) {
    const auto group = static_cast<size_t>(num_heads / kv.num_kv_heads);
    return static_cast<size_t>(max_work) * group * partial_stride(kv) * sizeof(float);
}

}  // namespace takt::cpu
