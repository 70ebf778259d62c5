// `takt bench`: its options and entry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"

namespace takt::cli {

struct BenchOptions {
    std::vector<std::string> urls;
    std::string api = "completions";     ///< of an http server: completions (token ids) or chat (words)
    std::vector<int> concurrency;
    int num_requests = 64;
    std::optional<double> rate;
    std::string arrivals = "poisson";
    std::string trace;
    double time_scale = 1;
    std::optional<double> seconds;
    std::string scenario;
    int num_streams = 8;
    int insert_tokens = 2000;
    int prompt_tokens = 128;
    std::optional<int> max_tokens;
    int repeat = 1;
    std::optional<double> itl_ms;
    std::optional<double> itl_factor;
    std::optional<double> ttft_ms;
    bool may_stop = false;               ///< do not ask for ignore_eos
    std::uint64_t seed = 1;
    std::string key;
    std::string model;
    std::string json;
    std::string plot;
    std::string profile;
    ConfigOptions config;                ///< of --profile: no server, the device itself
};

/// @throws config_error for options that contradict each other, load_error when a server does not answer.
int bench(const BenchOptions& options);

}  // namespace takt::cli
