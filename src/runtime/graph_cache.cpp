// Recording and replay of steps; see graph_cache.h.
#include "runtime/graph_cache.h"

#include <cstddef>

namespace takt {

Status GraphCache::stamp(Stream& stream, size_t word) {
    auto* base = static_cast<uint64_t*>(results_) + word;
    return stream.stamp(base, &input_.header->result_index, result_stride_ / sizeof(uint64_t));
}

Status GraphCache::enqueue(Stream& stream, const GraphKey& key) {
    if (key.stamps_begin) {
        if (Status s = stamp(stream, offsetof(StepResultHeader, begin_ns) / sizeof(uint64_t)); !s) return s;
    }
    if (Status s = model_.enqueue(stream, StepShape{key.rows, key.samples, key.greedy, key.decodes}); !s) return s;
    if (key.stamps_end) return stamp(stream, offsetof(StepResultHeader, end_ns) / sizeof(uint64_t));
    return {};
}

Status GraphCache::prepare(Stream& stream, const GraphKey& key) {
    if (!enabled_ || graphs_.contains(key)) return {};
    if (Status s = stream.begin_capture(); !s) return s;
    const Status recorded = enqueue(stream, key);
    Result<std::unique_ptr<Graph>> graph = stream.end_capture();
    if (!recorded) return recorded;
    if (!graph) return {kStatusUnsupported, "the step could not be recorded"};
    graphs_.emplace(key, std::move(graph).value());
    return {};
}

Status GraphCache::launch(Stream& stream, const GraphKey& key, bool& replayed) {
    replayed = enabled_;
    if (!enabled_) return enqueue(stream, key);
    if (Status s = prepare(stream, key); !s) return s;
    return stream.launch(*graphs_.at(key));
}

size_t GraphCache::bytes() const {
    size_t total = 0;
    for (const auto& [key, graph] : graphs_) total += graph->device_bytes();
    return total;
}

}  // namespace takt
