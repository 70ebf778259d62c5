// Arrivals: when requests are sent and how long they are, in an open loop. Pure; the same seed gives the same arrivals.
#pragma once

#include <takt/trace.h>

#include <cstdint>
#include <string>
#include <vector>

namespace takt::cli {

struct BenchArrival {
    double at_s = 0;
    int prompt_tokens = 1;
    int max_tokens = 1;
};

/// `count` arrivals, `rate` a second: a fixed time apart, or Poisson (exponential gaps).
std::vector<BenchArrival> steady_arrivals(int count, double rate, bool poisson, std::uint64_t seed, int prompt_tokens, int max_tokens);

/// The arrivals of a recorded trace, `time_scale` times as fast. Stamps that come in batches are spread up to the next one.
/// Beginnings that the trace's prompts share are not: every prompt is its own.
std::vector<BenchArrival> trace_arrivals(const Trace& trace, double time_scale);

/// Token ids that no two requests share a beginning of: printable characters in every byte-level vocabulary.
std::vector<int> prompt_ids(int count, std::uint64_t seed);

/// About as many tokens of short words, for servers that take text alone.
std::string prompt_words(int count, std::uint64_t seed);

}  // namespace takt::cli
