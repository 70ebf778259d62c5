// Figures: see the header.
#include "runtime/sim/figures.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace takt::sim {
namespace {

constexpr double kGoodGapShare = 0.99;

uint64_t ttft_promise(const SimOptions& options, const SimRequest& r) {
    return r.ttft_ns != 0 ? r.ttft_ns : options.scheduler.classes[static_cast<size_t>(r.class_index)].ttft_ns;
}

uint64_t itl_promise(const SimOptions& options, const SimRequest& r) {
    return r.itl_ns != 0 ? r.itl_ns : options.scheduler.classes[static_cast<size_t>(r.class_index)].itl_ns;
}

struct Sums {
    std::vector<double> ttft, tpot, whole, jitter;
    double late = 0, late_ms = 0, gaps = 0;
    uint64_t good = 0, good_all = 0, good_tpot = 0;
};

void add_request(const SimOptions& options, const SimRequest& spec, const SimOutcome& out, SimulateGroup& group, Sums& sums) {
    ++group.requests;
    group.finished += out.end == SimEnd::finished ? 1 : 0;
    group.refused += out.end == SimEnd::refused ? 1 : 0;
    if (out.end == SimEnd::refused) return;
    group.input_tokens += static_cast<uint64_t>(spec.prompt_tokens);
    group.output_tokens += static_cast<uint64_t>(out.num_tokens);
    if (out.num_tokens == 0) return;
    const uint64_t ttft_ns = out.first_ns - spec.arrival_ns;
    sums.ttft.push_back(static_cast<double>(ttft_ns) * 1e-6);
    sums.whole.push_back(static_cast<double>(out.last_ns - spec.arrival_ns) * 1e-6);
    const int32_t num_gaps = out.num_tokens - 1;
    double mean_gap = 0;
    if (num_gaps > 0) {
        mean_gap = static_cast<double>(out.last_ns - out.first_ns) * 1e-6 / num_gaps;
        sums.tpot.push_back(mean_gap);
        sums.jitter.push_back(std::sqrt(std::max(0.0, out.gap_square_ms / num_gaps - mean_gap * mean_gap)));
        sums.late += out.num_late;
        sums.late_ms += static_cast<double>(out.late_ns) * 1e-6;
        sums.gaps += num_gaps;
    }
    if (out.end != SimEnd::finished || ttft_ns > ttft_promise(options, spec)) return;
    sums.good += out.num_late <= (1 - kGoodGapShare) * num_gaps ? 1 : 0;
    sums.good_all += out.num_late == 0 ? 1 : 0;
    sums.good_tpot += mean_gap <= static_cast<double>(itl_promise(options, spec)) * 1e-6 ? 1 : 0;
}

SimulateGroup group_of(const SimOptions& options, const std::vector<SimRequest>& workload, const SimReport& report, double seconds,
                       const std::string& name, const std::function<bool(const SimRequest&)>& belongs) {
    SimulateGroup group;
    group.name = name;
    Sums sums;
    for (size_t i = 0; i < workload.size(); ++i) {
        if (belongs(workload[i])) add_request(options, workload[i], report.requests[i], group, sums);
    }
    group.ttft_ms = percentiles(std::move(sums.ttft));
    group.tpot_ms = percentiles(std::move(sums.tpot));
    group.request_ms = percentiles(std::move(sums.whole));
    group.jitter_ms = percentiles(std::move(sums.jitter));
    const double requests = std::max(1.0, static_cast<double>(group.requests));
    group.late_share = sums.late / std::max(1.0, sums.gaps);
    group.late_ms_per_1000 = sums.late_ms / std::max(1.0, static_cast<double>(group.output_tokens)) * 1000;
    group.goodput_share = static_cast<double>(sums.good) / requests;
    group.goodput_all_gaps = static_cast<double>(sums.good_all) / requests;
    group.goodput_tpot = static_cast<double>(sums.good_tpot) / requests;
    group.goodput_per_s = static_cast<double>(sums.good) / std::max(seconds, 1e-9);
    return group;
}

Percentiles gap_percentiles(const std::vector<std::vector<uint32_t>>& gaps_us, size_t first, size_t last) {
    std::vector<double> gaps;
    for (size_t c = first; c < last; ++c) {
        for (const uint32_t us : gaps_us[c]) gaps.push_back(us * 1e-3);
    }
    return percentiles(std::move(gaps));
}

void add_tenants(const SimOptions& options, const std::vector<SimRequest>& workload, const SimReport& report,
                 const FigureNames& names, SimulateResult& out) {
    double sum = 0, squares = 0, all = 0;
    for (const double ms : report.tenant_ms) all += ms;
    int32_t count = 0;
    for (size_t t = 0; t < names.tenants.size(); ++t) {
        const auto index = static_cast<int32_t>(t);
        SimulateGroup group = group_of(options, workload, report, out.seconds, names.tenants[t],
                                       [index](const SimRequest& r) { return r.tenant_index == index; });
        if (group.requests == 0) continue;
        group.device_share = report.tenant_ms[t] / std::max(all, 1e-9);
        const double share = report.tenant_ms[t] / std::max(options.scheduler.tenants[t].weight, 1e-9);
        sum += share;
        squares += share * share;
        ++count;
        out.tenants.push_back(std::move(group));
    }
    if (count > 0 && squares > 0) out.tenant_fairness = sum * sum / (count * squares);
    if (out.tenants.size() < 2) out.tenants.clear();
}

}  // namespace

SimulateResult make_figures(const SimOptions& options, const std::vector<SimRequest>& workload, SimReport& report,
                            const FigureNames& names) {
    SimulateResult out;
    uint64_t last_ns = 1;
    for (const SimOutcome& r : report.requests) last_ns = std::max(last_ns, r.last_ns);
    const uint64_t first_ns = workload.empty() ? 0 : workload.front().arrival_ns;
    out.seconds = static_cast<double>(last_ns - std::min(first_ns, last_ns)) * 1e-9;
    out.total = group_of(options, workload, report, out.seconds, "all", [](const SimRequest&) { return true; });
    out.total.device_share = 1;
    out.total.itl_ms = gap_percentiles(report.gaps_us, 0, report.gaps_us.size());
    for (size_t c = 0; c < names.classes.size() && names.classes.size() > 1; ++c) {
        const auto index = static_cast<int32_t>(c);
        out.classes.push_back(group_of(options, workload, report, out.seconds, names.classes[c],
                                       [index](const SimRequest& r) { return r.class_index == index; }));
        out.classes.back().itl_ms = gap_percentiles(report.gaps_us, c, c + 1);
    }
    add_tenants(options, workload, report, names, out);
    out.output_tokens_per_s = static_cast<double>(out.total.output_tokens) / std::max(out.seconds, 1e-9);
    out.prefill_tokens_per_s = static_cast<double>(report.prefill_rows) / std::max(out.seconds, 1e-9);
    out.busy_share = static_cast<double>(report.busy_ns) * 1e-9 / std::max(out.seconds, 1e-9);
    out.steps = report.num_steps;
    out.preemptions = report.num_preemptions;
    out.swapped = report.num_swapped;
    out.cached_tokens = report.hit_tokens;
    out.digest = report.digest;
    out.over_budget_share = static_cast<double>(report.num_over_budget) / std::max(1.0, static_cast<double>(report.num_decode_steps));
    out.model_error = report.mean_error;
    out.tenant_gap_ms = report.greatest_share_gap_ms;
    out.wrong = report.wrong;
    return out;
}

}  // namespace takt::sim
