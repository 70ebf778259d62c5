// EngineMetrics: what the engine counts. Written by the engine thread, read by any (relaxed atomics: each number is true, a
// snapshot is not one instant). Names: contract section 7.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include <takt/metrics.h>

#include "runtime/cost_model.h"
#include "runtime/late_cause.h"

namespace takt {

class AtomicHistogram {
public:
    explicit AtomicHistogram(std::span<const double> bounds)
        : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}
    void observe(double value, uint64_t times = 1);
    [[nodiscard]] HistogramSnapshot snapshot() const;

private:
    std::vector<double> bounds_;
    std::deque<std::atomic<uint64_t>> counts_;
    std::atomic<double> sum_{0};
    std::atomic<uint64_t> count_{0};
};

using Counter = std::atomic<uint64_t>;
using Gauge = std::atomic<double>;

class EngineMetrics {
public:
    /// `num_blocks`: KV blocks that requests may hold.
    EngineMetrics(const std::vector<std::string>& class_names, int32_t num_blocks);
    [[nodiscard]] MetricsSnapshot snapshot() const;
    void set_cost(const CostSnapshot& cost);

    Gauge running{0}, waiting{0}, kv_used{0}, kv_total{0}, budget_trim{1};
    Counter prompt_tokens{0}, cached_prompt_tokens{0}, generated_tokens{0}, accepted{0}, preemptions{0};
    Counter finished[4]{};                        // by FinishReason
    Counter refused[16]{};                        // by errc
    Counter steps[3][2]{};                        // decode, prefill, mixed; graph no, yes
    Counter late_ns[6]{};                         // prefill, padding, preemption, host, reader, device
    AtomicHistogram queue, request, cancel_to_free, step_prefill_tokens, padding_ratio;
    std::deque<AtomicHistogram> step_seconds;     // decode, prefill, mixed

    struct PerClass {
        explicit PerClass(const std::string& n);
        std::string name;
        AtomicHistogram ttft, inter_token;
        Counter ttft_misses{0}, itl_misses{0};
        Gauge infeasible{0};
    };
    std::deque<PerClass> classes;

private:
    Gauge cost_error_[3]{}, cost_margin_[3]{};
};

enum class StepMode : uint8_t { decode, prefill, mixed };

}  // namespace takt
