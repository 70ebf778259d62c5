// Prometheus text. Pure.
#include "server/prometheus.h"

#include <algorithm>
#include <cmath>

#include "server/json_text.h"

namespace takt::server {

namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

void append_value(std::string& out, double value) {
    if (std::isnan(value)) {
        out += "NaN";
    } else if (std::isinf(value)) {
        out += value < 0 ? "-Inf" : "+Inf";
    } else {
        append_json_number(out, value);
    }
}

void append_labels(std::string& out, const Labels& labels) {
    if (labels.empty()) return;
    out += '{';
    for (std::size_t i = 0; i < labels.size(); ++i) {
        if (i > 0) out += ',';
        out += labels[i].first;
        out += "=\"";
        for (const char c : valid_utf8(labels[i].second)) {
            if (c == '\\' || c == '"') out += '\\';
            if (c == '\n') {
                out += "\\n";
            } else {
                out += c;
            }
        }
        out += '"';
    }
    out += '}';
}

void append_sample(std::string& out, const std::string& name, const Labels& labels, double value) {
    out += name;
    append_labels(out, labels);
    out += ' ';
    append_value(out, value);
    out += '\n';
}

void append_histogram(std::string& out, const std::string& name, const Labelled<HistogramSnapshot>& labelled) {
    const HistogramSnapshot& histogram = labelled.value;
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i <= histogram.bounds.size(); ++i) {
        if (i < histogram.counts.size()) cumulative += histogram.counts[i];
        std::string bound = "+Inf";
        if (i < histogram.bounds.size()) {
            bound.clear();
            append_value(bound, histogram.bounds[i]);
        }
        Labels labels = labelled.labels;
        labels.emplace_back("le", bound);
        append_sample(out, name + "_bucket", labels, static_cast<double>(cumulative));
    }
    append_sample(out, name + "_sum", labelled.labels, histogram.sum);
    append_sample(out, name + "_count", labelled.labels, static_cast<double>(histogram.count));
}

std::string_view type_name(SeriesSnapshot::Type type) {
    switch (type) {
    case SeriesSnapshot::Type::gauge: return "gauge";
    case SeriesSnapshot::Type::counter: return "counter";
    case SeriesSnapshot::Type::histogram: break;
    }
    return "histogram";
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

void append_series(std::string& out, const SeriesSnapshot& series) {
    out += "# HELP " + series.name + ' ' + series.help + "\n# TYPE " + series.name + ' ';
    out += type_name(series.type);
    out += '\n';
    for (const auto& sample : series.values) append_sample(out, series.name, sample.labels, sample.value);
    for (const auto& sample : series.histograms) append_histogram(out, series.name, sample);
}

MetricsSnapshot aliases(const MetricsSnapshot& metrics, const MemoryPlan& plan, const std::string& model) {
    MetricsSnapshot out;
    const Labels labels = {{"model_name", model}};
    for (const SeriesSnapshot& series : metrics.series) {
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
    one.labels = {{"block_size", std::to_string(plan.block_tokens)},
                  {"num_gpu_blocks", std::to_string(plan.num_blocks)},
                  {"model_name", model}};
    one.value = 1;
    config.values.push_back(std::move(one));
    out.series.push_back(std::move(config));
    return out;
}

std::string prometheus_text(const MetricsSnapshot& metrics) {
    std::string out;
    for (const SeriesSnapshot& series : metrics.series) append_series(out, series);
    return out;
}

}  // namespace takt::server
