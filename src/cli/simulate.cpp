// `takt simulate`: the server's scheduler over a recorded trace, on a virtual clock; a table, and as asked JSON, a plot, and the
// causes of late gaps.
#include <takt/error.h>
#include <takt/simulate.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "cli/clock.h"
#include "cli/command.h"
#include "cli/simulate_json.h"
#include "cli/svg_plot.h"
#include "cli/text_file.h"

namespace takt::cli {

namespace {

void print_group(const char* indent, const SimulateGroup& g) {
    std::printf("%s%-12s %8" PRIu64 " %7.1f %8.1f %7.1f %7.1f %8.1f %7.3f %9.1f %8.3f %8.2f\n", indent, g.name.c_str(), g.requests,
                g.ttft_ms.p50, g.ttft_ms.p99, g.itl_ms.p50, g.itl_ms.p99, g.itl_ms.max, 100 * g.late_share, g.late_ms_per_1000,
                g.goodput_share, g.goodput_per_s);
}

void print_results(const std::vector<SimulateResult>& results) {
    std::printf("%-12s %8s %7s %8s %7s %7s %8s %7s %9s %8s %8s\n", "policy", "requests", "ttft50", "ttft99", "itl50", "itl99",
                "itl max", "late %", "late/1000", "goodput", "good/s");
    for (const SimulateResult& r : results) {
        SimulateGroup total = r.total;
        total.name = r.policy;
        print_group("", total);
    }
    std::printf("\n%-12s %9s %9s %6s %8s %8s %8s %8s %8s %7s\n", "policy", "out tok/s", "pre tok/s", "busy", "steps", "preempt",
                "refused", "cached", "over %", "model %");
    for (const SimulateResult& r : results) {
        std::printf("%-12s %9.1f %9.1f %6.3f %8" PRIu64 " %8" PRIu64 " %8" PRIu64 " %8.3f %8.3f %7.2f\n", r.policy.c_str(),
                    r.output_tokens_per_s, r.prefill_tokens_per_s, r.busy_share, r.steps, r.preemptions, r.total.refused,
                    static_cast<double>(r.cached_tokens) / std::max<double>(1, static_cast<double>(r.total.input_tokens)),
                    100 * r.over_budget_share, 100 * r.model_error);
    }
    for (const SimulateResult& r : results) {
        if (r.classes.empty() && r.tenants.empty()) continue;
        std::printf("\n%s: classes and tenants (itl is by class only), Jain's index %.3f\n", r.policy.c_str(), r.tenant_fairness);
        for (const SimulateGroup& g : r.classes) print_group("  ", g);
        for (const SimulateGroup& g : r.tenants) print_group("  ", g);
    }
    std::puts("\nmilliseconds; late/1000: ms over the promise a thousand tokens; goodput: share of offered requests with TTFT kept and "
              "99 % of gaps kept");
}

void print_explained(const std::vector<SimulateResult>& results) {
    const char* const causes[] = {"prefill", "padding", "preemption", "host", "reader", "device"};
    for (const SimulateResult& r : results) {
        std::printf("\n%s: late milliseconds by cause:", r.policy.c_str());
        for (size_t i = 0; i < r.late_ms_by_cause.size(); ++i) std::printf(" %s %.1f", causes[i], r.late_ms_by_cause[i]);
        std::puts("");
        for (const ExplainedGap& g : r.explained) {
            std::printf("  %9.3f s  request %-7" PRIu64 " gap %8.2f of %.1f ms: %s (step %.2f ms, predicted %.2f, %d decode and %d "
                        "prefill rows)\n",
                        g.at_s, g.request, g.gap_ms, g.promised_ms, g.cause.c_str(), g.step_ms, g.predicted_ms, g.decode_rows,
                        g.prefill_rows);
        }
    }
}

std::string plot_of(const std::vector<SimulateResult>& results, double itl_ms) {
    PlotPanel gaps, frontier;
    gaps.title = "Longest gap of each stretch of time";
    gaps.x_label = "s";
    gaps.y_label = "ms";
    gaps.log_y = true;
    gaps.rule_y = itl_ms;
    frontier.title = "Gaps against time to the first token";
    frontier.x_label = "TTFT p50, ms";
    frontier.y_label = "ITL p99, ms";
    frontier.log_x = frontier.log_y = true;
    frontier.rule_y = itl_ms;
    for (const SimulateResult& r : results) {
        PlotSeries line{r.policy, {}, true};
        for (size_t i = 0; i < r.plot_s.size(); ++i) {
            if (r.plot_gap_ms[i] > 0) line.points.emplace_back(r.plot_s[i], r.plot_gap_ms[i]);
        }
        gaps.series.push_back(std::move(line));
        frontier.series.push_back({r.policy, {{r.total.ttft_ms.p50, r.total.itl_ms.p99}}, false});
    }
    return svg_plot({gaps, frontier});
}

}  // namespace

int simulate(const SimulateCommand& command) {
    const Config config = read_config(command.config);
    SimulateOptions options = command.options;
    if (!command.profile.empty()) {
        options.profile = read_text_file(command.profile);
        if (options.profile.empty()) throw config_error(command.profile + ": an empty profile");   // "" would be the built-in one
    }
    const Trace trace = read_trace(command.trace);
    check_writable(command.json);
    check_writable(command.plot);
    const auto begin = steady_now();
    const std::vector<SimulateResult> results = simulate(config, trace, options);
    const double wall_s = std::chrono::duration<double>(steady_now() - begin).count();
    print_results(results);
    if (options.num_explained > 0) print_explained(results);
    if (const uint64_t cut = results.front().cut_requests; cut > 0) {
        std::fprintf(stderr, "%" PRIu64 " requests are longer than the context (model.max_context) and were cut to it\n", cut);
    }
    std::fprintf(stderr, "%.2f s of wall time\n", wall_s);
    if (!command.json.empty()) write_text_file(command.json, simulate_json(command, config, results, wall_s));
    if (!command.plot.empty()) write_text_file(command.plot, plot_of(results, config.sla.itl_ms));
    int code = kDone;
    for (const SimulateResult& r : results) {
        if (r.wrong.empty()) continue;
        std::fprintf(stderr, "takt simulate: %s: %s\n", r.policy.c_str(), r.wrong.c_str());
        code = kFailed;
    }
    return code;
}

}  // namespace takt::cli
