// Tables and JSON of a bench run.
#include "cli/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace takt::cli {

namespace json = boost::json;

namespace {

std::string number(double value) {
    char buffer[32];
    const int places = value >= 1000 ? 0 : value >= 100 ? 1 : 2;
    std::snprintf(buffer, sizeof(buffer), "%.*f", places, value);
    return buffer;
}

std::string percent(double share) {
    char buffer[32];
    std::snprintf(buffer, sizeof(buffer), "%.2f %%", share * 100);
    return buffer;
}

std::string trio(const Percentiles& p) { return number(p.p50) + " / " + number(p.p95) + " / " + number(p.p99); }

std::string quartet(const Percentiles& p) { return trio(p) + " / " + number(p.max); }

using Row = std::vector<std::string>;

// Columns as wide as their widest cell, the first two to the left.
std::string aligned(const std::vector<Row>& rows) {
    std::vector<std::size_t> widths;
    for (const Row& row : rows) {
        widths.resize(std::max(widths.size(), row.size()), 0);
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string out;
    for (const Row& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string pad(widths[i] - row[i].size(), ' ');
            if (i > 0) line += "  ";
            line += i < 2 ? row[i] + pad : pad + row[i];
        }
        while (!line.empty() && line.back() == ' ') line.pop_back();
        out += line + '\n';
    }
    return out;
}

json::object json_of(const Percentiles& p) {
    json::object out;
    out["count"] = p.count;
    out["p50"] = p.p50;
    out["p95"] = p.p95;
    out["p99"] = p.p99;
    out["max"] = p.max;
    out["mean"] = p.mean;
    return out;
}

json::object json_of(const Lateness& late) {
    json::object out;
    out["gaps"] = late.num_gaps;
    out["share"] = late.share;
    out["ms_per_1000_tokens"] = late.ms_per_1000_tokens;
    return out;
}

std::string errors_text(const PointFigures& figures) {
    std::string out;
    for (const auto& [code, count] : figures.errors) {
        if (!out.empty()) out += ", ";
        out += std::to_string(count) + " " + code;
    }
    return out;
}

// How lateness was judged where it was not gap by gap.
template <class Point>
std::string envelope_notes(const std::vector<Point>& points) {
    std::set<std::string> urls;
    for (const Point& point : points) {
        if (point.targets.envelope) urls.insert(point.url);
    }
    std::string out;
    for (const std::string& url : urls)
        out += url + ": late by the envelope that was asked for: a stream ahead of its pace may wait longer\n";
    return out;
}

const char* judgement(const Targets& targets) { return targets.envelope ? "envelope" : "gap"; }

}  // namespace

std::string load_table(const std::vector<LoadPoint>& points) {
    std::vector<Row> rows;
    rows.push_back({"load", "server", "done", "TTFT ms p50/p95/p99", "n", "TPOT ms p50/p95/p99", "n", "ITL ms p50/p95/p99/max", "n", "late",
                    "late ms/1k", "output tok/s", "prefill tok/s", "goodput /s", "share"});
    for (const LoadPoint& point : points) {
        const PointFigures& f = point.figures;
        rows.push_back({point.load, point.url, std::to_string(f.num_done) + "/" + std::to_string(f.num_requests), trio(f.ttft_ms),
                        std::to_string(f.ttft_ms.count), trio(f.tpot_ms), std::to_string(f.tpot_ms.count), quartet(f.itl_ms),
                        std::to_string(f.itl_ms.count), percent(f.late.share), number(f.late.ms_per_1000_tokens),
                        number(f.output_tokens_per_s), number(f.prefill_tokens_per_s), number(f.goodput_per_s), percent(f.goodput_share)});
    }
    std::string out = aligned(rows);
    const Targets targets = points.empty() ? Targets() : points.front().targets;
    out += "late: gaps over " + number(targets.itl_ms) + " ms; good: first token within " + number(targets.ttft_ms) +
           " ms and no late gap; n: values counted\n";
    out += envelope_notes(points);
    for (const LoadPoint& point : points) {
        const std::string errors = errors_text(point.figures);
        if (!errors.empty()) out += point.load + " " + point.url + ": not done: " + errors + "\n";
    }
    return out;
}

std::string insert_table(const std::vector<InsertPoint>& points) {
    std::vector<Row> rows;
    rows.push_back({"server", "rounds", "promise ms", "plain ITL ms p50/p95/p99/max", "n", "ITL ms during p50/p95/p99/max", "n", "late",
                    "late ms/1k", "inserted tokens", "TTFT ms p50", "prefill tok/s"});
    for (const InsertPoint& point : points) {
        const InsertFigures& f = point.figures;
        rows.push_back({point.url, std::to_string(f.num_rounds), number(point.targets.itl_ms), quartet(f.plain_itl_ms),
                        std::to_string(f.plain_itl_ms.count), quartet(f.itl_ms), std::to_string(f.itl_ms.count), percent(f.late.share),
                        number(f.late.ms_per_1000_tokens), std::to_string(f.inserted_tokens), number(f.ttft_ms.p50),
                        number(f.prefill_tokens_per_s)});
    }
    std::string out = aligned(rows) + envelope_notes(points);
    for (const InsertPoint& point : points) {
        if (!point.figures.outlived) out += point.url + ": a stream ended before the inserted prompt was read; raise --max-tokens\n";
    }
    return out;
}

json::object load_json(const LoadPoint& point) {
    const PointFigures& f = point.figures;
    json::object out;
    out["url"] = point.url;
    out["load"] = point.load;
    out["offered"] = point.offered;
    out["round"] = point.round;
    out["requests"] = f.num_requests;
    out["done"] = f.num_done;
    json::object errors;
    for (const auto& [code, count] : f.errors) errors[code] = count;
    out["errors"] = std::move(errors);
    out["seconds"] = f.seconds;
    out["ttft_ms"] = json_of(f.ttft_ms);
    out["tpot_ms"] = json_of(f.tpot_ms);
    out["itl_ms"] = json_of(f.itl_ms);
    out["send_lag_ms"] = json_of(f.send_lag_ms);
    out["late"] = json_of(f.late);
    out["late_by"] = judgement(point.targets);
    out["output_tokens"] = f.output_tokens;
    out["frames"] = f.num_frames;
    out["prefill_tokens"] = f.prefill_tokens;
    out["output_tokens_per_s"] = f.output_tokens_per_s;
    out["prefill_tokens_per_s"] = f.prefill_tokens_per_s;
    out["requests_per_s"] = f.requests_per_s;
    out["goodput_per_s"] = f.goodput_per_s;
    out["goodput_share"] = f.goodput_share;
    out["goodput_tpot_per_s"] = f.goodput_tpot_per_s;
    out["goodput_tpot_share"] = f.goodput_tpot_share;
    return out;
}

json::object insert_json(const InsertPoint& point) {
    const InsertFigures& f = point.figures;
    json::object out;
    out["url"] = point.url;
    out["promise_itl_ms"] = point.targets.itl_ms;
    out["rounds"] = f.num_rounds;
    out["outlived"] = f.outlived;
    out["plain_itl_ms"] = json_of(f.plain_itl_ms);
    out["plain_token_ms"] = json_of(f.plain_token_ms);
    out["itl_ms"] = json_of(f.itl_ms);
    out["late"] = json_of(f.late);
    out["late_by"] = judgement(point.targets);
    out["late_inside"] = json_of(f.late_inside);
    out["ttft_ms"] = json_of(f.ttft_ms);
    json::array gaps;
    for (const double gap : f.gaps_ms) gaps.push_back(std::round(gap * 1e3) / 1e3);
    out["gaps_ms"] = std::move(gaps);
    out["inserted_tokens"] = f.inserted_tokens;
    out["prefill_tokens_per_s"] = f.prefill_tokens_per_s;
    return out;
}

}  // namespace takt::cli
