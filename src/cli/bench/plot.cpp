// Drawing gaps. The vertical axis is logarithmic: a missed beat is a hundred times a kept one.
#include "cli/bench/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace takt::cli {

namespace {

constexpr double kWidth = 960, kPanelHeight = 300, kLeft = 64, kRight = 16, kTop = 36, kBottom = 36;

// Fixed notation with two places: enough for a pixel.
std::string px(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof(buffer), "%.2f", value);
    return buffer;
}

std::string shortest(double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof(buffer), "%g", value);
    return buffer;
}

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '<') out += "&lt;";
        else if (c == '>') out += "&gt;";
        else if (c == '&') out += "&amp;";
        else out += c;
    }
    return out;
}

class Panel {
public:
    Panel(const GapPanel& panel, double top) : panel_(panel), top_(top) {
        begin_ = end_ = panel.gaps.empty() ? 0 : panel.gaps.front().end_s;
        double low = panel.promise_ms > 0 ? panel.promise_ms : 1;
        double high = low;
        for (const TokenGap& gap : panel.gaps) {
            begin_ = std::min(begin_, gap.end_s);
            end_ = std::max(end_, gap.end_s);
            if (gap.gap_ms > 0) low = std::min(low, gap.gap_ms);
            high = std::max(high, gap.gap_ms);
        }
        if (end_ <= begin_) end_ = begin_ + 1;
        low_ = std::floor(std::log10(std::max(low, 0.01)));
        high_ = std::max(std::ceil(std::log10(high)), low_ + 1);
    }

    void draw(std::string& out) const {
        out += "<text x=\"" + px(kLeft) + "\" y=\"" + px(top_ + 20) + "\" class=\"title\">" + escaped(panel_.title) + "</text>\n";
        for (const auto& [from, to] : panel_.shaded) {
            const double left = x(std::clamp(from, begin_, end_));
            out += "<rect class=\"span\" x=\"" + px(left) + "\" y=\"" + px(top_ + kTop) + "\" width=\"" +
                   px(x(std::clamp(to, begin_, end_)) - left) + "\" height=\"" + px(kPanelHeight - kTop - kBottom) + "\"/>\n";
        }
        draw_axes(out);
        if (panel_.promise_ms > 0) {
            line(out, "promise", kLeft, y(panel_.promise_ms), kWidth - kRight, y(panel_.promise_ms));
            text(out, "promise", kWidth - kRight - 4, y(panel_.promise_ms) - 4, "promised " + shortest(panel_.promise_ms) + " ms");
        }
        draw_dots(out);
    }

private:
    [[nodiscard]] double x(double s) const { return kLeft + (s - begin_) / (end_ - begin_) * (kWidth - kLeft - kRight); }
    [[nodiscard]] double y(double ms) const {
        const double at = (std::log10(std::max(ms, std::pow(10, low_))) - low_) / (high_ - low_);
        return top_ + kPanelHeight - kBottom - at * (kPanelHeight - kTop - kBottom);
    }
    static void line(std::string& out, const char* kind, double x1, double y1, double x2, double y2) {
        out += std::string("<line class=\"") + kind + "\" x1=\"" + px(x1) + "\" y1=\"" + px(y1) + "\" x2=\"" + px(x2) + "\" y2=\"" +
               px(y2) + "\"/>\n";
    }
    static void text(std::string& out, const char* kind, double at_x, double at_y, const std::string& words) {
        out += std::string("<text class=\"") + kind + " end\" x=\"" + px(at_x) + "\" y=\"" + px(at_y) + "\">" + escaped(words) +
               "</text>\n";
    }

    void draw_axes(std::string& out) const {
        for (double decade = low_; decade <= high_; ++decade) {
            const double at = y(std::pow(10, decade));
            line(out, "grid", kLeft, at, kWidth - kRight, at);
            text(out, "tick", kLeft - 6, at + 4, shortest(std::pow(10, decade)) + " ms");
        }
        constexpr int parts = 6;
        for (int i = 0; i <= parts; ++i) {
            const double s = begin_ + (end_ - begin_) * i / parts;
            char label[32];
            std::snprintf(label, sizeof(label), "%.2f s", s - begin_);
            text(out, "tick", x(s) + 16, top_ + kPanelHeight - kBottom + 18, label);
        }
    }

    void draw_dots(std::string& out) const {
        std::set<std::pair<int, int>> drawn;
        for (const TokenGap& gap : panel_.gaps) {
            if (gap.gap_ms <= 0) continue;
            const int px_x = static_cast<int>(std::lround(x(gap.end_s) * 2)), px_y = static_cast<int>(std::lround(y(gap.gap_ms) * 2));
            if (!drawn.insert({px_x, px_y}).second) continue;
            const bool late = panel_.promise_ms > 0 && gap.gap_ms > panel_.promise_ms;
            out += std::string("<circle r=\"1.6\" class=\"") + (late ? "late" : "kept") + "\" cx=\"" + px(px_x / 2.0) + "\" cy=\"" +
                   px(px_y / 2.0) + "\"/>\n";
        }
    }

    const GapPanel& panel_;
    double top_, begin_ = 0, end_ = 1, low_ = 0, high_ = 1;
};

}  // namespace

std::string gap_plot(const std::vector<GapPanel>& panels) {
    const double height = kPanelHeight * static_cast<double>(panels.size());
    std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + px(kWidth) + " " + px(height) +
                      "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                      "<style>.title{font-size:14px;font-weight:600}.tick{fill:#555}.end{text-anchor:end}.grid{stroke:#ddd}"
                      ".span{fill:#f4d58d;opacity:.5}.promise{stroke:#b02a37;stroke-dasharray:6 4}text.promise{fill:#b02a37;stroke:none}"
                      ".kept{fill:#1f5fa8}.late{fill:#b02a37}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    double top = 0;
    for (const GapPanel& panel : panels) {
        Panel(panel, top).draw(out);
        top += kPanelHeight;
    }
    return out + "</svg>\n";
}

}  // namespace takt::cli
