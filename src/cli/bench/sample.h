// RequestSample: what a load client saw of one request. Times are seconds on the bench's own clock.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace takt::cli {

/// The time between two tokens of one request as its reader got them. Tokens that came in one frame are 0 apart.
struct TokenGap {
    double end_s = 0;     ///< when the later token came
    double gap_ms = 0;
};

struct RequestSample {
    double due_s = 0;     ///< when it should have been sent; latencies count from here
    double sent_s = 0;
    double first_s = std::numeric_limits<double>::quiet_NaN();   ///< first token
    double last_s = std::numeric_limits<double>::quiet_NaN();    ///< last token
    double end_s = 0;     ///< the end of the answer, or of the attempt
    std::int64_t prompt_tokens = 0;
    std::int64_t output_tokens = 0;
    std::int64_t num_frames = 0;      ///< that carried tokens
    std::vector<TokenGap> gaps;
    std::string reason;   ///< stop, length, cancelled; empty if it failed
    std::string error;    ///< the server's code, or what went wrong on the way

    [[nodiscard]] bool has_first() const { return !std::isnan(first_s); }
    [[nodiscard]] double ttft_ms() const { return (first_s - due_s) * 1e3; }
    /// `count` tokens came in one frame.
    void add_tokens(std::int64_t count, double now_s);
};

}  // namespace takt::cli
