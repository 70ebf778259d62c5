// A model's answers beside those of the float32 model that its weights spell out, position by position, by the rule of each arithmetic.
// Test code only; one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch.h"
#include "model_driver.h"

namespace takt::test {

/// What an arithmetic may differ by from float32 on random weights: log-probabilities among the likeliest, and the margin below which
/// another token may be the largest.
struct LogitRule {
    const char* name;
    CpuArithmetic arithmetic;
    DType kv;
    double logprob;
    double margin;
};

constexpr LogitRule kFloat32Rule{"float32", CpuArithmetic::float32, DType::f32, 1e-3, 1e-3};

/// Results after each of `tokens`, fed in chunks of `chunk` rows.
inline std::vector<SampleResult> answers(const std::string& path, const LogitRule& rule, const std::vector<int32_t>& tokens,
                                         int32_t num_tokens, int32_t chunk) {
    CpuDeviceOptions options;
    options.arithmetic = rule.arithmetic;
    options.num_threads = 2;
    const auto count = static_cast<int32_t>(tokens.size());
    ModelDriver driver(path, options, {[](void*) -> uint64_t { return 0; }, nullptr}, rule.kv, count, chunk, chunk, num_tokens);
    std::vector<SampleResult> out = driver.feed(tokens, count, chunk, kMaxTopLogprobs);
    INFO(rule.name << ": " << driver.error);
    REQUIRE(driver.error.empty());
    REQUIRE(out.size() == tokens.size());
    return out;
}

/// Compares with the float32 model's answers; returns the largest difference of a log-probability.
inline double compare_answers(const std::vector<SampleResult>& found, const std::vector<SampleResult>& expected, const LogitRule& rule) {
    double largest = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        const SampleResult& f = found[i];
        const SampleResult& e = expected[i];
        INFO(rule.name << ", position " << i);
        REQUIRE(f.flags == 0);
        if (f.token != e.token) CHECK(static_cast<double>(e.top_logprobs[0]) - static_cast<double>(e.top_logprobs[1]) < rule.margin);
        int num_shared = 0;
        for (int32_t k = 0; k < e.num_top; ++k) {
            for (int32_t n = 0; n < f.num_top; ++n) {
                if (f.top_tokens[n] != e.top_tokens[k]) continue;
                ++num_shared;
                largest = std::max(largest, std::abs(static_cast<double>(f.top_logprobs[n]) - static_cast<double>(e.top_logprobs[k])));
            }
        }
        CHECK(num_shared * 2 > e.num_top);   // the likeliest are much the same tokens
    }
    INFO(rule.name);
    CHECK(largest <= rule.logprob);
    return largest;
}

}  // namespace takt::test
