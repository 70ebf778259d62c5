// Turns the counters into named series; see engine_metrics.h.
#include "runtime/engine_metrics.h"

#include <algorithm>

#include <takt/error.h>
#include <takt/request.h>

namespace takt {
namespace {

constexpr double kSeconds[] = {0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06,
                               0.08,   0.1,   0.15,  0.2,   0.3,   0.5,   0.75,  1.0,  1.5,   2.0,  3.0,  5.0,  7.5,
                               10.0,   20.0,  30.0,  60.0,  120.0, 300.0};
constexpr double kTokens[] = {0, 1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192};
constexpr double kRatios[] = {0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8};
constexpr const char* kModes[] = {"decode", "prefill", "mixed"};
constexpr const char* kRegimes[] = {"decode", "mixed_small", "mixed_large"};
constexpr const char* kReasons[] = {"stop", "length", "cancelled", "error"};

using Type = SeriesSnapshot::Type;
using Labels = std::vector<std::pair<std::string, std::string>>;

struct Builder {
    MetricsSnapshot out;
    SeriesSnapshot& series(const char* name, const char* help, Type type) {
        out.series.push_back({name, help, type, {}, {}});
        return out.series.back();
    }
    void one(const char* name, const char* help, Type type, double value) {
        series(name, help, type).values.push_back({{}, value});
    }
    void one(const char* name, const char* help, const AtomicHistogram& h) {
        series(name, help, Type::histogram).histograms.push_back({{}, h.snapshot()});
    }
};

double count(const Counter& c) { return static_cast<double>(c.load(std::memory_order_relaxed)); }

void add_counts(Builder& b, const EngineMetrics& m) {
    b.one("takt_requests_running", "Requests that hold a slot", Type::gauge, m.running.load());
    b.one("takt_requests_waiting", "Accepted requests without a slot", Type::gauge, m.waiting.load());
    b.one("takt_kv_blocks_used", "KV blocks that a request holds", Type::gauge, m.kv_used.load());
    b.one("takt_kv_blocks_total", "KV blocks in all, with the one kept for padded rows", Type::gauge, m.kv_total.load());
    const double total = std::max(1.0, m.kv_total.load());
    b.one("takt_kv_usage_ratio", "Used blocks over all blocks", Type::gauge, m.kv_used.load() / total);
    b.one("takt_prompt_tokens_total", "Prompt tokens of accepted requests", Type::counter, count(m.prompt_tokens));
    b.one("takt_cached_prompt_tokens_total", "Prompt tokens taken from the prefix cache", Type::counter,
          count(m.cached_prompt_tokens));
    b.one("takt_generated_tokens_total", "Tokens generated", Type::counter, count(m.generated_tokens));
    b.one("takt_requests_accepted_total", "Requests accepted", Type::counter, count(m.accepted));
    b.one("takt_preemptions_total", "Requests that lost their KV blocks", Type::counter, count(m.preemptions));
    SeriesSnapshot& refused = b.series("takt_requests_refused_total", "Requests refused", Type::counter);
    for (int code = 1; code < static_cast<int>(errc::cancelled); ++code) {
        refused.values.push_back({{{"code", std::string(error_info(static_cast<errc>(code)).code)}}, count(m.refused[code])});
    }
    SeriesSnapshot& finished = b.series("takt_requests_finished_total", "Accepted requests ended", Type::counter);
    for (size_t i = 0; i < 4; ++i) finished.values.push_back({{{"reason", kReasons[i]}}, count(m.finished[i])});
}

void add_latencies(Builder& b, const EngineMetrics& m) {
    SeriesSnapshot& misses = b.series("takt_sla_misses_total", "Promises missed", Type::counter);
    for (const auto& c : m.classes) {
        misses.values.push_back({{{"class", c.name}, {"kind", "ttft"}}, count(c.ttft_misses)});
        misses.values.push_back({{{"class", c.name}, {"kind", "itl"}}, count(c.itl_misses)});
    }
    SeriesSnapshot& ttft = b.series("takt_ttft_seconds", "Submission to first token", Type::histogram);
    for (const auto& c : m.classes) ttft.histograms.push_back({{{"class", c.name}}, c.ttft.snapshot()});
    SeriesSnapshot& itl = b.series("takt_inter_token_seconds", "Gap between two tokens of one request", Type::histogram);
    for (const auto& c : m.classes) itl.histograms.push_back({{{"class", c.name}}, c.inter_token.snapshot()});
    SeriesSnapshot& infeasible = b.series("takt_sla_infeasible", "1: decoding alone breaks the promise", Type::gauge);
    for (const auto& c : m.classes) infeasible.values.push_back({{{"class", c.name}}, c.infeasible.load()});
    b.one("takt_queue_seconds", "Submission to first step", m.queue);
    b.one("takt_request_seconds", "Submission to end", m.request);
    b.one("takt_cancel_to_free_seconds", "Cancel seen to blocks back", m.cancel_to_free);
    SeriesSnapshot& late = b.series("takt_late_milliseconds_total", "Time over the promised gap by cause", Type::counter);
    for (size_t i = 0; i < 6; ++i) late.values.push_back({{{"cause", kLateCauseNames[i]}}, count(m.late_ns[i]) / 1e6});
}

void add_steps(Builder& b, const EngineMetrics& m) {
    SeriesSnapshot& steps = b.series("takt_steps_total", "Steps run", Type::counter);
    for (size_t mode = 0; mode < 3; ++mode) {
        steps.values.push_back({{{"mode", kModes[mode]}, {"graph", "no"}}, count(m.steps[mode][0])});
        steps.values.push_back({{{"mode", kModes[mode]}, {"graph", "yes"}}, count(m.steps[mode][1])});
    }
    SeriesSnapshot& seconds = b.series("takt_step_seconds", "Device time of a step", Type::histogram);
    for (size_t mode = 0; mode < 3; ++mode) {
        seconds.histograms.push_back({{{"mode", kModes[mode]}}, m.step_seconds[mode].snapshot()});
    }
    b.one("takt_step_prefill_tokens", "Prefill rows of a step", m.step_prefill_tokens);
    b.one("takt_step_padding_ratio", "Padding rows over launched rows", m.padding_ratio);
    b.one("takt_budget_trim", "Outer trim of the step budget", Type::gauge, m.budget_trim.load());
}

}  // namespace

void AtomicHistogram::observe(double value, uint64_t times) {
    const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<size_t>(at)].fetch_add(times, std::memory_order_relaxed);
    sum_.store(sum_.load(std::memory_order_relaxed) + value * static_cast<double>(times), std::memory_order_relaxed);
    count_.fetch_add(times, std::memory_order_relaxed);
}

HistogramSnapshot AtomicHistogram::snapshot() const {
    HistogramSnapshot s;
    s.bounds = bounds_;
    for (const auto& c : counts_) {
        s.counts.push_back(c.load(std::memory_order_relaxed));
        s.count += s.counts.back();   // not count_: buckets and count of one snapshot must agree
    }
    s.sum = sum_.load(std::memory_order_relaxed);
    return s;
}

EngineMetrics::PerClass::PerClass(const std::string& n) : name(n), ttft(kSeconds), inter_token(kSeconds) {}

EngineMetrics::EngineMetrics(const std::vector<std::string>& class_names, int32_t num_blocks)
    : queue(kSeconds), request(kSeconds), cancel_to_free(kSeconds), step_prefill_tokens(kTokens), padding_ratio(kRatios) {
    for (int i = 0; i < 3; ++i) step_seconds.emplace_back(std::span<const double>(kSeconds));
    for (const std::string& name : class_names) classes.emplace_back(name);
    kv_total.store(num_blocks);
}

void EngineMetrics::set_cost(const CostSnapshot& cost) {
    for (size_t i = 0; i < 3; ++i) {
        cost_error_[i].store(cost.error_ratio[i], std::memory_order_relaxed);
        cost_margin_[i].store(cost.margin[i], std::memory_order_relaxed);
    }
}

MetricsSnapshot EngineMetrics::snapshot() const {
    Builder b;
    add_counts(b, *this);
    add_latencies(b, *this);
    add_steps(b, *this);
    SeriesSnapshot& error = b.series("takt_cost_model_error_ratio", "Mean relative error of step prediction", Type::gauge);
    for (size_t i = 0; i < 3; ++i) error.values.push_back({{{"regime", kRegimes[i]}}, cost_error_[i].load()});
    SeriesSnapshot& margin = b.series("takt_cost_model_margin", "Quantile margin on predictions", Type::gauge);
    for (size_t i = 0; i < 3; ++i) margin.values.push_back({{{"regime", kRegimes[i]}}, cost_margin_[i].load()});
    return std::move(b.out);
}

}  // namespace takt
