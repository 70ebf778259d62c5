// See simulate_json.h.
#include "cli/simulate_json.h"

#include <takt/version.h>

#include <boost/json.hpp>
#include <cmath>

namespace takt::cli {

namespace {

namespace json = boost::json;

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

json::object percentiles(const Percentiles& p) {
    return {{"count", p.count},       {"mean", rounded(p.mean)}, {"p50", rounded(p.p50)},
            {"p95", rounded(p.p95)}, {"p99", rounded(p.p99)},   {"max", rounded(p.max)}};
}

json::object group(const SimulateGroup& g) {
    return {{"name", g.name},
            {"requests", g.requests},
            {"finished", g.finished},
            {"refused", g.refused},
            {"input_tokens", g.input_tokens},
            {"output_tokens", g.output_tokens},
            {"ttft_ms", percentiles(g.ttft_ms)},
            {"tpot_ms", percentiles(g.tpot_ms)},
            {"itl_ms", percentiles(g.itl_ms)},
            {"request_ms", percentiles(g.request_ms)},
            {"jitter_ms", percentiles(g.jitter_ms)},
            {"late_share", g.late_share},
            {"late_ms_per_1000", rounded(g.late_ms_per_1000)},
            {"goodput_share", rounded(g.goodput_share)},
            {"goodput_all_gaps", rounded(g.goodput_all_gaps)},
            {"goodput_tpot", rounded(g.goodput_tpot)},
            {"goodput_per_s", rounded(g.goodput_per_s)},
            {"device_share", rounded(g.device_share)}};
}

json::object result_object(const SimulateResult& r) {
    json::object out{{"policy", r.policy},
                     {"total", group(r.total)},
                     {"seconds", rounded(r.seconds)},
                     {"output_tokens_per_s", rounded(r.output_tokens_per_s)},
                     {"prefill_tokens_per_s", rounded(r.prefill_tokens_per_s)},
                     {"busy_share", rounded(r.busy_share)},
                     {"steps", r.steps},
                     {"cut_requests", r.cut_requests},
                     {"preemptions", r.preemptions},
                     {"swapped", r.swapped},
                     {"cached_tokens", r.cached_tokens},
                     {"over_budget_share", r.over_budget_share},
                     {"model_error", rounded(r.model_error)},
                     {"digest", std::to_string(r.digest)}};
    json::array classes, tenants, causes;
    for (const SimulateGroup& g : r.classes) classes.push_back(group(g));
    for (const SimulateGroup& g : r.tenants) tenants.push_back(group(g));
    for (const double ms : r.late_ms_by_cause) causes.push_back(rounded(ms));
    out["late_ms_by_cause"] = std::move(causes);
    if (!classes.empty()) out["classes"] = std::move(classes);
    if (!tenants.empty()) {
        out["tenants"] = std::move(tenants);
        out["tenant_fairness"] = rounded(r.tenant_fairness);
    }
    return out;
}

}  // namespace

std::string simulate_json(const SimulateCommand& command, const Config& config, const std::vector<SimulateResult>& results,
                          double wall_s) {
    const std::size_t slash = command.trace.find_last_of('/');
    json::object out{{"takt", version()},
                     {"trace", slash == std::string::npos ? command.trace : command.trace.substr(slash + 1)},
                     {"rate", command.options.rate},
                     {"seconds", command.options.seconds},
                     {"requests", command.options.requests},
                     {"seed", command.options.seed != 0 ? command.options.seed : config.sim.seed},
                     {"profile", command.profile.empty() ? config.sim.profile : "file"},
                     {"pipeline_depth", config.scheduler.pipeline_depth},
                     {"max_running", config.scheduler.max_running},
                     {"itl_ms", config.sla.itl_ms},
                     {"ttft_ms", config.sla.ttft_ms},
                     {"wall_s", rounded(wall_s)}};
    json::array list;
    for (const SimulateResult& r : results) list.push_back(result_object(r));
    out["results"] = std::move(list);
    return json::serialize(out) + "\n";
}

}  // namespace takt::cli
