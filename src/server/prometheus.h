// Prometheus text (format 0.0.4) from snapshots, with the aliases under which dashboards know other engines. Pure.
#pragma once

#include <takt/metrics.h>

#include <string>

namespace takt::server {

/// The vLLM-named copies of the series that are in `metrics`, classes added up. `model`: the value of their model_name label.
MetricsSnapshot aliases(const MetricsSnapshot& metrics, int64_t block_tokens, const std::string& model);

std::string prometheus_text(const MetricsSnapshot& metrics);

}  // namespace takt::server
