// ForwardRunner: carries out a StepPlan on the device: staging, graph replay (or eager), one event a ticket. Owns the stream, the
// KV memory, the fixed buffers and the graphs. Engine thread only; knows nothing of order, policy or text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "model/forward.h"
#include "runtime/graph_cache.h"
#include "runtime/plan.h"
#include "runtime/staging.h"

namespace takt {

struct RunnerOptions {
    DType kv_type = DType::f16;
    int32_t block_tokens = 16;
    int32_t num_blocks = 0;
    int32_t max_running = 64;
    int32_t max_context = 0;
    std::vector<int32_t> row_ladder;
    int32_t max_plan_rows = 0;      ///< most rows of one plan; more than the ladder's last only with fixed-chunk
    bool graphs = true;
};

/// A launched step.
struct Ticket {
    uint64_t step = 0;
    Event event;
    int result_index = 0;
    bool replayed = false;          ///< all of its launches came from graphs
};

class ForwardRunner {
public:
    static Result<std::unique_ptr<ForwardRunner>> create(Device& device, Model& model, const RunnerOptions& options);
    ~ForwardRunner();
    ForwardRunner(const ForwardRunner&) = delete;
    ForwardRunner& operator=(const ForwardRunner&) = delete;

    /// Queues the whole plan and records its event, also of a launch that failed: a failed Status means that the device is lost.
    Status launch(const StepPlan& plan, const StepSources& sources, Ticket& ticket);

    /// No step is in flight and the requests of all of them are gone: others may come under their numbers.
    void forget_requests() { staging_->forget_requests(); }

    [[nodiscard]] Stream& stream() { return *stream_; }
    [[nodiscard]] const StepResultHeader& result_header(const Ticket& t) const { return staging_->result_header(t.result_index); }
    [[nodiscard]] const SampleResult* samples(const Ticket& t) const { return staging_->result_samples(t.result_index); }
    [[nodiscard]] size_t num_graphs() const { return graphs_->num_graphs(); }
    [[nodiscard]] const RunnerOptions& options() const { return options_; }
    /// Records every shape that one launch can have ahead of the first request: recorded while streams run, a shape would hold them
    /// up for as long as that takes.
    Status prepare_graphs();
    [[nodiscard]] size_t graph_bytes() const { return graphs_->bytes(); }

    /// Pinned input buffers: one a launch that may be in flight.
    static int32_t num_inputs(const RunnerOptions& options);
    /// Every shape that one launch can have: what prepare_graphs records.
    static std::vector<GraphKey> shapes(const RunnerOptions& options);
    /// Bytes that `create` would take beside weights and KV, for the memory plan.
    static StepCapacity capacity_of(const Device& device, const Model& model, const RunnerOptions& options);

private:
    ForwardRunner(Device& device, Model& model, RunnerOptions options)
        : device_(device), model_(model), options_(std::move(options)) {}
    Status allocate();
    [[nodiscard]] int32_t padded_rows(int32_t rows) const;
    [[nodiscard]] static int32_t padded_samples(const RunnerOptions& options, int32_t samples);

    Device& device_;
    Model& model_;
    RunnerOptions options_;
    std::unique_ptr<Stream> stream_;
    std::vector<Buffer> buffers_;            // KV layers, slot tokens, counts
    std::unique_ptr<Staging> staging_;
    std::unique_ptr<GraphCache> graphs_;
    std::vector<LaunchRows> launches_;       // reused
    std::string error_;
};

}  // namespace takt
