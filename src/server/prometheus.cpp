// Prometheus text by prometheus-cpp's serializer. Pure.
#include "server/prometheus.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

#include "server/json_text.h"

namespace takt::server {

namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

std::vector<prometheus::ClientMetric::Label> labels_of(const Labels& labels) {
    std::vector<prometheus::ClientMetric::Label> out;
    for (const auto& [name, value] : labels) out.push_back({name, valid_utf8(value)});
    return out;
}

prometheus::ClientMetric::Histogram histogram_of(const HistogramSnapshot& histogram) {
    prometheus::ClientMetric::Histogram out;
    out.sample_count = histogram.count;
    out.sample_sum = histogram.sum;
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i <= histogram.bounds.size(); ++i) {
        if (i < histogram.counts.size()) cumulative += histogram.counts[i];
        const bool last = i == histogram.bounds.size();
        out.bucket.push_back({cumulative, last ? std::numeric_limits<double>::infinity() : histogram.bounds[i]});
    }
    return out;
}

prometheus::MetricType type_of(SeriesSnapshot::Type type) {
    switch (type) {
    case SeriesSnapshot::Type::gauge: return prometheus::MetricType::Gauge;
    case SeriesSnapshot::Type::counter: return prometheus::MetricType::Counter;
    case SeriesSnapshot::Type::histogram: break;
    }
    return prometheus::MetricType::Histogram;
}

prometheus::MetricFamily family_of(const SeriesSnapshot& series) {
    prometheus::MetricFamily out;
    out.name = series.name;
    out.help = series.help;
    out.type = type_of(series.type);
    for (const auto& sample : series.values) {
        prometheus::ClientMetric metric;
        metric.label = labels_of(sample.labels);
        metric.gauge.value = sample.value;
        metric.counter.value = sample.value;
        out.metric.push_back(std::move(metric));
    }
    for (const auto& sample : series.histograms) {
        prometheus::ClientMetric metric;
        metric.label = labels_of(sample.labels);
        metric.histogram = histogram_of(sample.value);
        out.metric.push_back(std::move(metric));
    }
    return out;
}

// The sum over all labels; histograms of one series share their bounds.
HistogramSnapshot total(const std::vector<Labelled<HistogramSnapshot>>& parts) {
    HistogramSnapshot out;
    for (const auto& part : parts) {
        if (out.bounds.empty()) {
            out.bounds = part.value.bounds;
            out.counts.assign(part.value.counts.size(), 0);
        }
        const std::size_t count = std::min(out.counts.size(), part.value.counts.size());
        for (std::size_t i = 0; i < count; ++i) out.counts[i] += part.value.counts[i];
        out.sum += part.value.sum;
        out.count += part.value.count;
    }
    return out;
}

struct Alias {
    const char* from;
    const char* to;
};
constexpr Alias kAliases[] = {
    {"takt_requests_running", "vllm:num_requests_running"},
    {"takt_requests_waiting", "vllm:num_requests_waiting"},
    {"takt_kv_usage_ratio", "vllm:kv_cache_usage_perc"},
    {"takt_ttft_seconds", "vllm:time_to_first_token_seconds"},
    {"takt_inter_token_seconds", "vllm:inter_token_latency_seconds"},
};

}  // namespace

MetricsSnapshot aliases(const MetricsSnapshot& metrics, int64_t block_tokens, const std::string& model) {
    MetricsSnapshot out;
    int64_t num_blocks = 0;
    const Labels labels = {{"model_name", model}};
    for (const SeriesSnapshot& series : metrics.series) {
        if (series.name == "takt_kv_blocks_total" && !series.values.empty()) num_blocks = static_cast<int64_t>(series.values.front().value);
        for (const Alias& alias : kAliases) {
            if (series.name != alias.from) continue;
            SeriesSnapshot copy;
            copy.name = alias.to;
            copy.help = std::string("The same as ") + alias.from + ", under the name that other engines' dashboards use.";
            copy.type = series.type;
            if (series.type == SeriesSnapshot::Type::histogram) {
                Labelled<HistogramSnapshot> sample;
                sample.labels = labels;
                sample.value = total(series.histograms);
                copy.histograms.push_back(std::move(sample));
            } else {
                Labelled<double> sample;
                sample.labels = labels;
                for (const auto& value : series.values) sample.value += value.value;
                copy.values.push_back(std::move(sample));
            }
            out.series.push_back(std::move(copy));
        }
    }
    SeriesSnapshot config;
    config.name = "vllm:cache_config_info";
    config.help = "KV cache configuration as labels.";
    Labelled<double> one;
    one.labels = {{"block_size", std::to_string(block_tokens)},
                  {"num_gpu_blocks", std::to_string(num_blocks)},
                  {"model_name", model}};
    one.value = 1;
    config.values.push_back(std::move(one));
    out.series.push_back(std::move(config));
    return out;
}

std::string prometheus_text(const MetricsSnapshot& metrics) {
    std::vector<prometheus::MetricFamily> families;
    families.reserve(metrics.series.size());
    for (const SeriesSnapshot& series : metrics.series) families.push_back(family_of(series));
    return prometheus::TextSerializer().Serialize(families);
}

}  // namespace takt::server
