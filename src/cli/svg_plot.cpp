// SvgPlot: see the header.
#include "cli/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace takt::cli {

namespace {

constexpr double kWidth = 900, kHeight = 380, kLeft = 70, kRight = 190, kTop = 40, kBottom = 50;
constexpr std::array<const char*, 10> kColours = {"#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd",
                                                  "#8c564b", "#17becf", "#e377c2", "#7f7f7f", "#bcbd22"};

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof(text), std::abs(value) >= 1000 ? "%.0f" : "%.4g", value);
    return text;
}

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '<') {
            out += "&lt;";
        } else if (c == '&') {
            out += "&amp;";
        } else {
            out += c;
        }
    }
    return out;
}

/// Maps values to places along one side, straight or by logarithm.
class Axis {
public:
    Axis(double low, double high, double from, double to, bool is_log) : from_(from), to_(to), is_log_(is_log) {
        low_ = is_log ? std::log10(std::max(low, 1e-3)) : std::min(low, 0.0);
        high_ = is_log ? std::log10(std::max(high, 1e-3)) : high;
        if (high_ <= low_) high_ = low_ + 1;
        if (!is_log) high_ += 0.05 * (high_ - low_);
    }
    [[nodiscard]] double at(double value) const {
        const double v = is_log_ ? std::log10(std::max(value, 1e-3)) : value;
        return from_ + (to_ - from_) * (v - low_) / (high_ - low_);
    }
    [[nodiscard]] std::vector<double> ticks() const {
        std::vector<double> out;
        if (is_log_) {
            for (int decade = static_cast<int>(std::floor(low_)); decade <= static_cast<int>(std::ceil(high_)); ++decade) {
                for (const double step : {1.0, 2.0, 5.0}) {
                    const double value = step * std::pow(10.0, decade);
                    const double v = std::log10(value);
                    if (v >= low_ - 1e-9 && v <= high_ + 1e-9) out.push_back(value);
                }
            }
            return out;
        }
        const double rough = (high_ - low_) / 6, power = std::pow(10.0, std::floor(std::log10(rough)));
        const double step = rough / power < 1.5 ? power : rough / power < 3.5 ? 2 * power : rough / power < 7.5 ? 5 * power : 10 * power;
        for (double v = std::ceil(low_ / step) * step; v <= high_; v += step) out.push_back(v);
        return out;
    }

private:
    double low_ = 0, high_ = 1, from_, to_;
    bool is_log_;
};

std::string text_at(double x, double y, const std::string& text, const char* more) {
    return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + more + ">" + escaped(text) + "</text>\n";
}

std::string line_at(double x1, double y1, double x2, double y2, const char* more) {
    return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" + number(y2) + "\" " + more + "/>\n";
}

std::string frame(const PlotPanel& panel, const Axis& x, const Axis& y, double top) {
    const double left = kLeft, right = kWidth - kRight, bottom = top + kHeight - kBottom;
    std::string out = text_at(left, top + kTop - 15, panel.title, "font-size=\"15\" font-weight=\"bold\"");
    for (const double tick : x.ticks()) {
        out += line_at(x.at(tick), top + kTop, x.at(tick), bottom, "stroke=\"#eee\"");
        out += text_at(x.at(tick), bottom + 16, number(tick), "text-anchor=\"middle\"");
    }
    for (const double tick : y.ticks()) {
        out += line_at(left, y.at(tick), right, y.at(tick), "stroke=\"#eee\"");
        out += text_at(left - 6, y.at(tick) + 4, number(tick), "text-anchor=\"end\"");
    }
    if (panel.rule_y > 0) out += line_at(left, y.at(panel.rule_y), right, y.at(panel.rule_y), "stroke=\"#000\" stroke-dasharray=\"5 4\"");
    out += line_at(left, bottom, right, bottom, "stroke=\"#333\"") + line_at(left, top + kTop, left, bottom, "stroke=\"#333\"");
    out += text_at((left + right) / 2, bottom + 36, panel.x_label, "text-anchor=\"middle\"");
    return out + text_at(left - 55, top + kTop - 15, panel.y_label, "");
}

std::string panel_text(const PlotPanel& panel, double top) {
    double low_x = 1e300, high_x = -1e300, low_y = 1e300, high_y = panel.rule_y > 0 ? panel.rule_y : -1e300;
    for (const PlotSeries& s : panel.series) {
        for (const auto& [px, py] : s.points) {
            low_x = std::min(low_x, px);
            high_x = std::max(high_x, px);
            low_y = std::min(low_y, py);
            high_y = std::max(high_y, py);
        }
    }
    const Axis x(low_x, high_x, kLeft, kWidth - kRight, panel.log_x), y(low_y, high_y, top + kHeight - kBottom, top + kTop, panel.log_y);
    std::string out = frame(panel, x, y, top);
    for (size_t i = 0; i < panel.series.size(); ++i) {
        const PlotSeries& s = panel.series[i];
        const std::string colour = kColours[i % kColours.size()];
        if (s.is_line) {
            out += "<polyline fill=\"none\" stroke=\"" + colour + "\" stroke-width=\"1.3\" points=\"";
            for (const auto& [px, py] : s.points) out += number(x.at(px)) + "," + number(y.at(py)) + " ";
            out += "\"/>\n";
        } else {
            for (const auto& [px, py] : s.points) {
                out += "<circle cx=\"" + number(x.at(px)) + "\" cy=\"" + number(y.at(py)) + "\" r=\"4\" fill=\"" + colour + "\"/>\n";
                out += text_at(x.at(px) + 7, y.at(py) + 4, s.name, "");
            }
        }
        const double key_y = top + kTop + 16 * static_cast<double>(i) + 8;
        out += line_at(kWidth - kRight + 15, key_y, kWidth - kRight + 35, key_y, ("stroke-width=\"3\" stroke=\"" + colour + "\"").c_str());
        out += text_at(kWidth - kRight + 41, key_y + 4, s.name, "");
    }
    return out;
}

}  // namespace

std::string svg_plot(const std::vector<PlotPanel>& panels) {
    const std::string height = number(kHeight * static_cast<double>(panels.size()));
    std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + number(kWidth) + "\" height=\"" + height +
                      "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    for (size_t i = 0; i < panels.size(); ++i) out += panel_text(panels[i], kHeight * static_cast<double>(i));
    return out + "</svg>\n";
}

}  // namespace takt::cli
