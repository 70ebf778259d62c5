// Arrivals and prompts from a seed. The standard's distributions differ between libraries, so numbers are drawn by hand.
#include "cli/bench/arrivals.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace takt::cli {

namespace {

// In [0, 1), 53 bits.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

std::mt19937_64 generator(std::uint64_t seed) {
    // Neighbouring seeds must not give neighbouring states.
    return std::mt19937_64(seed * 0x9E3779B97F4A7C15u + 0xD1B54A32D192ED03u);
}

// ASCII in byte-level vocabularies with up to a few special tokens in front, and in byte-fallback ones.
constexpr int kFirstId = 35;
constexpr int kNumIds = 66;

constexpr std::int64_t kMaxTokens = 10'000'000;

}  // namespace

std::vector<BenchArrival> steady_arrivals(int count, double rate, bool poisson, std::uint64_t seed, int prompt_tokens, int max_tokens) {
    std::mt19937_64 random = generator(seed);
    std::vector<BenchArrival> out;
    out.reserve(static_cast<std::size_t>(count));
    double at = 0;
    for (int i = 0; i < count; ++i) {
        BenchArrival arrival;
        arrival.at_s = at;
        arrival.prompt_tokens = prompt_tokens;
        arrival.max_tokens = max_tokens;
        out.push_back(arrival);
        at += poisson ? -std::log1p(-uniform(random)) / rate : 1.0 / rate;
    }
    return out;
}

std::vector<BenchArrival> trace_arrivals(const Trace& trace, double time_scale) {
    const std::vector<TraceArrival>& from = trace.arrivals;
    std::vector<BenchArrival> out;
    out.reserve(from.size());
    for (std::size_t first = 0, end = 0; first < from.size(); first = end) {
        while (end < from.size() && from[end].at_s == from[first].at_s) ++end;
        const bool spread = trace.is_batched && end < from.size();
        const double step = spread ? (from[end].at_s - from[first].at_s) / static_cast<double>(end - first) : 0;
        for (std::size_t i = first; i < end; ++i) {
            BenchArrival arrival;
            arrival.at_s = (from[i].at_s + step * static_cast<double>(i - first)) / time_scale;
            arrival.prompt_tokens = static_cast<int>(std::clamp<std::int64_t>(from[i].input_tokens, 1, kMaxTokens));
            arrival.max_tokens = static_cast<int>(std::clamp<std::int64_t>(from[i].output_tokens, 1, kMaxTokens));
            out.push_back(arrival);
        }
    }
    return out;
}

std::vector<int> prompt_ids(int count, std::uint64_t seed) {
    std::mt19937_64 random = generator(seed);
    std::vector<int> out;
    out.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) out.push_back(kFirstId + static_cast<int>(random() % kNumIds));
    return out;
}

std::string prompt_words(int count, std::uint64_t seed) {
    constexpr std::array<const char*, 16> words = {"river", "stone", "green", "light", "house", "water", "night", "story",
                                                   "music", "bread", "train", "cloud", "paper", "glass", "world", "field"};
    std::mt19937_64 random = generator(seed);
    std::string out;
    for (int i = 0; i < count; ++i) {
        if (i > 0) out += ' ';
        out += words[random() % words.size()];
    }
    return out;
}

}  // namespace takt::cli
