// Snapshots of what the engine counts: plain data, made on request from any thread. Names follow contract section 7.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace takt {

/// Histogram: counts[i] observations over bounds[i - 1] up to bounds[i] (seconds, tokens or a ratio); the last bound is infinity, implied.
struct HistogramSnapshot {
    std::vector<double> bounds;
    std::vector<uint64_t> counts;   ///< bounds.size() + 1, not cumulative
    double sum = 0;
    uint64_t count = 0;
};

/// One sample of a series: labels in order.
template <class T>
struct Labelled {
    std::vector<std::pair<std::string, std::string>> labels;
    T value{};
};

struct SeriesSnapshot {
    std::string name;               ///< e.g. "takt_requests_running"
    std::string help;
    enum class Type { gauge, counter, histogram } type = Type::gauge;
    std::vector<Labelled<double>> values;               ///< gauge, counter
    std::vector<Labelled<HistogramSnapshot>> histograms;
};

struct MetricsSnapshot {
    std::vector<SeriesSnapshot> series;
};

struct HealthSnapshot {
    bool loaded = false;
    bool draining = false;
    bool device_lost = false;
    bool progressing = true;        ///< the engine advanced within its own expectation of a step
    double seconds_since_progress = 0;
    double expected_step_seconds = 0;
    [[nodiscard]] bool ready() const { return loaded && !draining && !device_lost && progressing; }
    std::string reason;             ///< empty when ready
};

struct ModelInfo {
    std::string name;
    std::string path;
    std::string architecture;
    int64_t vocab = 0;
    int64_t max_context = 0;
    int64_t weight_bytes = 0;
    std::string device;
    int64_t created_unix = 0;
};

/// One step of the flight recorder.
struct StepRecord {
    uint64_t step = 0;
    uint64_t launched_ns = 0, begin_ns = 0, end_ns = 0, seen_ns = 0;   ///< engine clock, device clock twice, engine clock
    int32_t num_decode_rows = 0, num_prefill_rows = 0, padded_rows = 0, num_samples = 0;
    uint64_t host_ns = 0;                                              ///< planning, staging and launching it
    uint64_t plan_ns = 0;                                              ///< of that the scheduler's part
    double predicted_ms = 0, budget_ms = 0;
    bool graph = false;
    int32_t num_running = 0, num_waiting = 0, num_preempted = 0;
    int32_t kv_blocks_used = 0;
    int32_t num_late = 0;                                              ///< gaps over their promise that ended with the step
    double late_ms = 0;                                                ///< by how much in all
    std::string late_cause;                                            ///< of the one that was latest; empty: none was late
};

/// The memory plan: bytes of each part and whether they fit.
struct MemoryPlan {
    int64_t weights = 0, kv = 0, workspaces = 0, graphs = 0, inputs = 0;
    int64_t budget = 0;             ///< what may be taken
    int64_t num_blocks = 0, block_bytes = 0, block_tokens = 0;
    int64_t free_before = 0;        ///< of the device when the plan was made
    int64_t used = 0;               ///< less what was free when the engine was ready; 0 before
    bool fits = false;
    std::string note;               ///< e.g. why the KV was cut, or what is lacking
    [[nodiscard]] int64_t total() const { return weights + kv + workspaces + graphs + inputs; }
};

struct TensorInfo {
    std::string name;
    std::string type;
    std::vector<int64_t> shape;     ///< as in the file
    int64_t bytes = 0;
};

/// What a model file holds.
struct ModelReport {
    std::string path, format, architecture, name;
    std::vector<std::pair<std::string, std::string>> metadata;   ///< key, value as text (long ones shortened)
    std::vector<TensorInfo> tensors;
    int64_t parameters = 0, bytes = 0;
};

}  // namespace takt
