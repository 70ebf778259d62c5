// GapPlot: gaps over time as an SVG picture, one panel a server, the promise as a line. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/bench/sample.h"

namespace takt::cli {

struct GapPanel {
    std::string title;
    std::vector<TokenGap> gaps;                          ///< in any order
    std::vector<std::pair<double, double>> shaded;       ///< spans of time, e.g. while a prompt was inserted, seconds
    double promise_ms = 0;
};

/// The whole file. Dots that would cover each other are drawn once, so its size does not grow with the run.
std::string gap_plot(const std::vector<GapPanel>& panels);

}  // namespace takt::cli
