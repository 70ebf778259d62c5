// GraphCache: recorded steps by shape. A shape is recorded the first time it is needed (or ahead, by prepare) and replayed ever
// after over the same fixed buffers. Engine thread only; knows shapes, not plans.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/device.h"
#include "kernels/step_input.h"
#include "model/forward.h"

namespace takt {

/// Key of a recorded step. The stamps are part of it: of several launches under one ticket the first stamps the begin and the
/// last the end.
struct GraphKey {
    int32_t rows = 0;
    int32_t samples = 0;
    bool greedy = true;
    bool stamps_begin = true;
    bool stamps_end = true;
    bool decodes = false;   // every segment is one sampled row
    auto operator<=>(const GraphKey&) const = default;
};

class GraphCache {
public:
    /// `enabled` false: every step is launched eagerly, operation by operation.
    GraphCache(Model& model, StepView device_input, void* results, size_t result_stride, bool enabled)
        : model_(model), input_(device_input), results_(results), result_stride_(result_stride), enabled_(enabled) {}

    /// Queues the step of `key` on `stream`. `replayed` tells whether a graph carried it.
    Status launch(Stream& stream, const GraphKey& key, bool& replayed);
    /// Records the shape now, so that its first use costs nothing.
    Status prepare(Stream& stream, const GraphKey& key);

    [[nodiscard]] size_t num_graphs() const { return graphs_.size(); }
    [[nodiscard]] size_t bytes() const;

private:
    Status enqueue(Stream& stream, const GraphKey& key);
    Status stamp(Stream& stream, size_t word);

    Model& model_;
    StepView input_;
    void* results_;
    size_t result_stride_;
    bool enabled_;
    std::map<GraphKey, std::unique_ptr<Graph>> graphs_;
};

}  // namespace takt
