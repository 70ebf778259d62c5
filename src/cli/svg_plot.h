// SvgPlot: line and point plots as SVG text, for files that any browser shows. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace takt::cli {

struct PlotSeries {
    std::string name;
    std::vector<std::pair<double, double>> points;
    bool is_line = true;              ///< else a mark for each point, with the series' name beside it
};

struct PlotPanel {
    std::string title, x_label, y_label;
    std::vector<PlotSeries> series;
    bool log_x = false, log_y = false;
    double rule_y = 0;                ///< a dashed line at this height; 0: none
};

/// The panels below one another.
std::string svg_plot(const std::vector<PlotPanel>& panels);

}  // namespace takt::cli
