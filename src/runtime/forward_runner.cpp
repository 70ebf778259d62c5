// Allocation of a step's fixed buffers and the launch path; see forward_runner.h.
#include "runtime/forward_runner.h"

#include <algorithm>
#include <bit>

#include "kernels/assert.h"
#include "kernels/ops.h"

namespace takt {
namespace {

// Contract: a request's logit_bias holds at most this many ids, so that a full batch of them still fits the staging buffer.
constexpr int32_t kMaxBiases = 300;

bool adds_counts(const StepPlan& plan, const LaunchRows& rows, const StepSources& sources) {
    return std::any_of(rows.runs.begin(), rows.runs.end(), [&](const LaunchRows::Run& run) {
        const PlanSegment& segment = plan.segments[static_cast<size_t>(run.segment)];
        return !segment.is_decode && sources.request(segment.request).sample.uses_counts != 0;
    });
}

}  // namespace

ForwardRunner::~ForwardRunner() {
    if (stream_) (void)stream_->synchronize();   // nothing is freed under a running step
}

StepCapacity ForwardRunner::capacity_of(const Device& device, const Model& model, const RunnerOptions& o) {
    (void)device;
    StepCapacity c;
    c.max_rows = o.row_ladder.back();
    c.max_samples = o.max_running;
    // A running request has one segment in a launch, and at most one more when a plan is cut into several launches.
    c.max_segments = 2 * o.max_running + 2;
    c.max_biases = kMaxBiases * o.max_running;
    c.max_updates = c.max_rows + c.max_segments;
    const int64_t blocks_per_context = (o.max_context + o.block_tokens - 1) / o.block_tokens + 8;
    c.max_block_ids = static_cast<int32_t>(blocks_per_context * (o.max_running + 1) + 8 * c.max_segments);
    c.max_work = model.max_work(c, model.kv_layout(o.kv_type, o.block_tokens, 1), o.max_context);
    return c;
}

int32_t ForwardRunner::num_inputs(const RunnerOptions& o) {
    // Two steps may be in flight, and nothing of the second may overwrite what the first has not copied yet.
    const int32_t largest = o.row_ladder.back();
    return 2 * ((std::max(o.max_plan_rows, 1) + largest - 1) / largest);
}

Result<std::unique_ptr<ForwardRunner>> ForwardRunner::create(Device& device, Model& model, const RunnerOptions& options) {
    std::unique_ptr<ForwardRunner> runner(new ForwardRunner(device, model, options));
    if (Status s = runner->allocate(); !s) {
        return Error{runner->error_.empty() ? std::string(s.message) : runner->error_};
    }
    return runner;
}

Status ForwardRunner::allocate() {
    auto take = [&](size_t bytes, bool zero, void** out) -> Status {
        Result<Buffer> buffer = device_.alloc(std::max<size_t>(bytes, 64), MemoryKind::device);
        if (!buffer) {
            error_ = buffer.error();
            return {kStatusOutOfMemory, "out of device memory"};
        }
        *out = buffer.value().data();
        buffers_.push_back(std::move(buffer).value());
        return zero ? stream_->fill(*out, 0, bytes) : Status{};
    };
    Result<std::unique_ptr<Stream>> stream = device_.stream(0);
    if (!stream) {
        error_ = stream.error();
        return {kStatusOutOfMemory, "no stream"};
    }
    stream_ = std::move(stream).value();

    const StepCapacity capacity = capacity_of(device_, model_, options_);
    Result<Staging> staging = Staging::create(device_, capacity, num_inputs(options_));
    if (!staging) {
        error_ = staging.error();
        return {kStatusOutOfMemory, "out of memory"};
    }
    staging_ = std::make_unique<Staging>(std::move(staging).value());

    StepBuffers b;
    b.in = staging_->device_view();
    b.results = staging_->results();
    b.result_stride = staging_->result_stride();
    b.kv = model_.kv_layout(options_.kv_type, options_.block_tokens, options_.num_blocks);
    b.max_rows = capacity.max_rows;
    b.max_samples = capacity.max_samples;
    b.max_work = capacity.max_work;
    b.num_slots = options_.max_running;
    for (int32_t layer = 0; layer < b.kv.num_layers; ++layer) {
        void* data = nullptr;
        if (Status s = take(b.kv.layer_bytes(), false, &data); !s) return s;
        // Padded rows read the dummy block: it must hold finite numbers. The CPU device, which orders a layer in its own way and
        // computes no padded rows, never reads it.
        if (Status s = stream_->fill(data, 0, b.kv.block_stride()); !s) return s;
        b.kv_layers.push_back(data);
    }
    const size_t slots = static_cast<size_t>(options_.max_running);
    const size_t vocab = static_cast<size_t>(model_.config().vocab);
    void* data = nullptr;
    if (Status s = take(slots * sizeof(int32_t), true, &data); !s) return s;
    b.slot_tokens = static_cast<int32_t*>(data);
    // Not cleared: a request with penalties clears its own slot before it counts, and untouched pages cost nothing.
    if (Status s = take(slots * vocab * sizeof(uint16_t), false, &data); !s) return s;
    b.output_counts = static_cast<uint16_t*>(data);
    if (Status s = take(slots * vocab, false, &data); !s) return s;
    b.prompt_seen = static_cast<uint8_t*>(data);
    if (Status s = model_.bind(b); !s) return s;
    if (Status s = stream_->synchronize(); !s) return s;
    graphs_ = std::make_unique<GraphCache>(model_, b.in, b.results, b.result_stride, options_.graphs);
    return {};
}

int32_t ForwardRunner::padded_rows(int32_t rows) const {
    const auto at = std::lower_bound(options_.row_ladder.begin(), options_.row_ladder.end(), rows);
    TAKT_ASSERT(at != options_.row_ladder.end());
    return *at;
}

int32_t ForwardRunner::padded_samples(const RunnerOptions& options, int32_t samples) {
    if (samples == 0) return 0;
    return std::min(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(samples))), options.max_running);
}

Status ForwardRunner::launch(const StepPlan& plan, const StepSources& sources, Ticket& ticket) {
    ticket.step = plan.step;
    ticket.result_index = static_cast<int>(plan.step % 2);
    ticket.replayed = true;
    split_launches(plan, options_.row_ladder.back(), launches_);
    Status status;
    for (size_t i = 0; i < launches_.size() && status; ++i) {
        const LaunchRows& rows = launches_[i];
        const bool last = i + 1 == launches_.size();
        // Penalty counts are kept by the sampling operation: rows that add to them need it even where nothing is sampled.
        const int32_t samples = std::max(rows.num_samples, adds_counts(plan, rows, sources) ? 1 : 0);
        const GraphKey key{padded_rows(rows.num_rows), padded_samples(options_, samples), plan.greedy, i == 0, last,
                           rows.num_samples == rows.num_rows};
        status = staging_->stage(*stream_, model_, plan, rows, sources, StepShape{key.rows, key.samples, key.greedy, key.decodes},
                                 ticket.result_index);
        bool replayed = false;
        if (status) status = graphs_->launch(*stream_, key, replayed);
        ticket.replayed = ticket.replayed && replayed;
    }
    ticket.event = stream_->record();   // of a failed step too: what was launched of it ends there
    return status;
}

std::vector<GraphKey> ForwardRunner::shapes(const RunnerOptions& o) {
    std::vector<GraphKey> all;
    std::vector<int32_t> sample_counts{0};
    while (sample_counts.back() < o.max_running) sample_counts.push_back(padded_samples(o, sample_counts.back() + 1));
    int32_t fewer = 0;   // the next smaller shape
    for (int32_t rows : o.row_ladder) {
        for (size_t i = 0; i < sample_counts.size(); ++i) {
            // A smaller count of samples in these rows may be padded beyond them.
            if (i > 0 && sample_counts[i - 1] >= rows) break;
            for (const bool greedy : {true, false}) {
                if (!greedy && i == 0) continue;   // nothing is sampled: its plan is greedy
                all.push_back(GraphKey{rows, sample_counts[i], greedy, true, true});
                // Steps of decodes alone have as many samples as rows.
                if (i > 0 && std::max(fewer, sample_counts[i - 1]) < std::min(rows, sample_counts[i]))
                    all.push_back(GraphKey{rows, sample_counts[i], greedy, true, true, true});
            }
        }
        fewer = rows;
    }
    return all;
}

Status ForwardRunner::prepare_graphs() {
    for (const GraphKey& key : shapes(options_)) {
        if (Status s = graphs_->prepare(*stream_, key); !s) return s;
    }
    return {};
}

}  // namespace takt
