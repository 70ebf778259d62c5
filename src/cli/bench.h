// `takt bench`: its options and entry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace takt::cli {

struct BenchOptions {
    std::string url = "ws://127.0.0.1:8480/v1/stream";
    std::vector<int> concurrency;
    int num_requests = 64;
    std::optional<double> rate;
    std::string arrivals = "poisson";
    std::string trace;
    std::optional<double> seconds;
    std::string scenario;
    int num_streams = 8;
    int insert_tokens = 2000;
    int prompt_tokens = 128;
    int max_tokens = 128;
    double itl_ms = 40;
    double ttft_ms = 2000;
    std::uint64_t seed = 1;
    std::string key;
    std::string model;
    std::string json;
    std::string plot;
    std::string profile;
};

int bench(const BenchOptions& options);

}  // namespace takt::cli
