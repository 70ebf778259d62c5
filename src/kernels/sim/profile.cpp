// See profile.h.
#include "kernels/sim/profile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "kernels/sim/h100_table.h"

namespace takt::sim {

Result<Profile> Profile::built_in(const std::string& name) {
    if (name != "h100-7b") return Error{"profile \"" + name + "\" found, \"h100-7b\" or a file expected"};
    Profile p;
    for (const ProfilePoint& point : kH100Llama7b) p.points_.push_back({static_cast<double>(point.rows), point.microseconds * 1000.0});
    return p;
}

Result<Profile> Profile::parse(const std::string& text) {
    Profile p;
    std::istringstream in(text);
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
        const size_t comma = line.find(',');
        if (line.empty() || line[0] == '#' || line.rfind("rows,", 0) == 0) continue;
        auto bad = [&](const char* what) { return Error{"profile line " + std::to_string(number) + ": " + what}; };
        if (comma == std::string::npos) return bad("expected NAME,VALUE");
        const std::string name = line.substr(0, comma);
        char* end = nullptr;
        const double value = std::strtod(line.c_str() + comma + 1, &end);
        if (end == line.c_str() + comma + 1 || !std::isfinite(value) || value < 0) return bad("expected a number of 0 or more");
        if (name == "kd_ns") {
            p.kd_ns_ = value;
        } else if (name == "ka_ns") {
            p.ka_ns_ = value;
        } else if (name == "decode_ms") {
            p.decode_ns_ = value * 1e6;
        } else if (name == "mixed_ms") {
            p.mixed_ns_ = value * 1e6;
        } else {
            const double rows = std::strtod(name.c_str(), &end);
            if (*end != '\0' || !(rows >= 1)) return bad("expected a row count");
            if (!p.points_.empty() && rows <= p.points_.back().rows) return bad("row counts must ascend");
            p.points_.push_back({rows, value * 1e6});
        }
    }
    if (p.points_.empty()) return Error{"the profile has no line \"rows,linear_ms\""};
    return p;
}

double Profile::step_ns(int32_t padded_rows, const StepHeader& header) const {
    const double rows = std::max(1, padded_rows);
    const auto above = std::lower_bound(points_.begin(), points_.end(), rows, [](const Point& p, double r) { return p.rows < r; });
    double linear = 0;
    if (above == points_.end()) {
        linear = points_.back().ns * rows / points_.back().rows;
    } else if (above == points_.begin() || above->rows == rows) {
        linear = above->ns;
    } else {
        const Point& below = *(above - 1);
        linear = below.ns + (above->ns - below.ns) * (rows - below.rows) / (above->rows - below.rows);
    }
    const double rest = header.prefill_pairs > 0 ? mixed_ns_ : decode_ns_;
    return linear + kd_ns_ * static_cast<double>(header.kv_read_tokens) + ka_ns_ * static_cast<double>(header.prefill_pairs) + rest;
}

}  // namespace takt::sim
