// Prometheus text: format, cumulative buckets, escaping, aliases.
#include "server/prometheus.h"

#include "catch.h"

using namespace takt;
using namespace takt::server;

namespace {

Labelled<HistogramSnapshot> histogram(const std::string& name, std::vector<std::uint64_t> counts) {
    Labelled<HistogramSnapshot> out;
    out.labels = {{"class", name}};
    out.value.bounds = {0.0005, 0.01};
    out.value.counts = std::move(counts);
    out.value.sum = 0.25;
    for (const std::uint64_t count : out.value.counts) out.value.count += count;
    return out;
}

MetricsSnapshot sample() {
    MetricsSnapshot out;
    SeriesSnapshot gauge;
    gauge.name = "takt_requests_running";
    gauge.help = "Running.";
    gauge.values.push_back({{}, 3});
    out.series.push_back(gauge);
    SeriesSnapshot counter;
    counter.name = "takt_requests_refused_total";
    counter.help = "Refused.";
    counter.type = SeriesSnapshot::Type::counter;
    counter.values.push_back({{{"code", "a\"b\\c\nd"}}, 2});
    out.series.push_back(counter);
    SeriesSnapshot ttft;
    ttft.name = "takt_ttft_seconds";
    ttft.help = "First token.";
    ttft.type = SeriesSnapshot::Type::histogram;
    ttft.histograms = {histogram("a", {1, 2, 3}), histogram("b", {10, 20, 30})};
    out.series.push_back(ttft);
    return out;
}

bool has_line(const std::string& text, const std::string& line) {
    return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

}  // namespace

TEST_CASE("series as text") {
    const std::string text = prometheus_text(sample());
    CHECK(has_line(text, "# TYPE takt_requests_running gauge"));
    CHECK(has_line(text, "takt_requests_running 3"));
    CHECK(has_line(text, R"(takt_requests_refused_total{code="a\"b\\c\nd"} 2)"));
    CHECK(has_line(text, R"(takt_ttft_seconds_bucket{class="a",le="0.0005"} 1)"));
    CHECK(has_line(text, R"(takt_ttft_seconds_bucket{class="a",le="0.01"} 3)"));
    CHECK(has_line(text, R"(takt_ttft_seconds_bucket{class="a",le="+Inf"} 6)"));
    CHECK(has_line(text, R"(takt_ttft_seconds_count{class="b"} 60)"));
    CHECK(has_line(text, R"(takt_ttft_seconds_sum{class="b"} 0.25)"));
    CHECK(text.back() == '\n');
}

TEST_CASE("aliases: one series each, classes added up") {
    MetricsSnapshot metrics = sample();
    metrics.series.push_back({"takt_kv_blocks_total", "Blocks.", SeriesSnapshot::Type::gauge, {{{}, 512}}, {}});
    const std::string text = prometheus_text(aliases(metrics, 16, "m"));
    CHECK(has_line(text, R"(vllm:num_requests_running{model_name="m"} 3)"));
    CHECK(has_line(text, R"(vllm:time_to_first_token_seconds_bucket{model_name="m",le="+Inf"} 66)"));
    CHECK(has_line(text, R"(vllm:time_to_first_token_seconds_sum{model_name="m"} 0.5)"));
    CHECK(has_line(text, R"(vllm:cache_config_info{block_size="16",num_gpu_blocks="512",model_name="m"} 1)"));
    CHECK(text.find("vllm:num_requests_waiting") == std::string::npos);
}
