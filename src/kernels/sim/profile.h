// Profile: how long a step takes on the pretended device. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/status.h"
#include "kernels/step_input.h"

namespace takt::sim {

class Profile {
public:
    /// "h100-7b".
    static Result<Profile> built_in(const std::string& name);
    /// CSV lines "rows,linear_ms" in ascending rows (a heading line is skipped), and optional lines "kd_ns,V" (a decode context
    /// token), "ka_ns,V" (a prefill query-key pair), "decode_ms,V" and "mixed_ms,V" (the rest of a step).
    static Result<Profile> parse(const std::string& text);

    /// Nanoseconds without noise of a step launched with `padded_rows` rows.
    [[nodiscard]] double step_ns(int32_t padded_rows, const StepHeader& header) const;

private:
    struct Point {
        double rows, ns;
    };
    std::vector<Point> points_;
    double kd_ns_ = 47, ka_ns_ = 1.5, decode_ns_ = 150'000, mixed_ns_ = 400'000;
};

}  // namespace takt::sim
