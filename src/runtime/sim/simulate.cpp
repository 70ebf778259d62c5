// takt::simulate: from a configuration and a trace to figures, a policy at a time. See include/takt/simulate.h.
#include <takt/simulate.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <takt/error.h>

#include "runtime/cost_calibration.h"
#include "runtime/scheduler_setup.h"
#include "runtime/sim/figures.h"
#include "runtime/sim/gap_log.h"
#include "runtime/sim/random.h"
#include "runtime/sim/step_time.h"
#include "runtime/sim/workload.h"
#include "runtime/text_file.h"

namespace takt {
namespace {

using namespace sim;   // the simulator behind this door

constexpr int32_t kMaxContext = 131072;
// The stand-in is a 7B model with 8 KV heads in half precision on a card of 80 GiB: bytes of weights and of a token's KV.
constexpr double kWeightBytes = 13.5e9, kTokenBytes = 131072, kDeviceBytes = 80.0 * (1ULL << 30);
constexpr double kHostBytesPerNs = 50;   // of a copy to or from the host's memory

StepTime step_time_of(const Config& config, const SimulateOptions& options) {
    const bool is_built_in = options.profile.empty() && config.sim.profile == "h100-7b";
    Result<Profile> profile = is_built_in ? Profile::built_in("h100-7b")
                                          : Profile::parse(options.profile.empty() ? read_text_file(config.sim.profile) : options.profile);
    if (!profile) throw config_error(profile.error());
    return StepTime(std::move(profile).value());
}

int32_t count_after_colon(const std::string& policy) {
    const size_t colon = policy.find(':');
    int32_t count = 0;
    const char* begin = policy.data() + colon + 1;
    const auto [end, error] = std::from_chars(begin, policy.data() + policy.size(), count);
    if (error != std::errc() || end != policy.data() + policy.size() || count < 1) {
        throw config_error("policy \"" + policy + "\": a number of tokens expected after the colon");
    }
    return count;
}

void set_policy(const std::string& policy, SchedulerConfig& s) {
    if (policy.empty()) return;
    s.fixed_chunk = policy != "ms" && policy != "ms-fcfs";
    s.first_come = policy != "ms";
    s.lone_chunk_tokens = 0;
    s.chunk_holds_decodes = policy.rfind("budget:", 0) == 0;
    if (policy == "unchunked") {
        s.fixed_chunk_tokens = kMaxContext;
    } else if (policy == "p-pas") {
        s.fixed_chunk_tokens = 2048;
        s.lone_chunk_tokens = 16384;
    } else if (policy.rfind("chunk:", 0) == 0 || s.chunk_holds_decodes) {
        s.fixed_chunk_tokens = count_after_colon(policy);
    } else if (s.fixed_chunk) {
        throw config_error("policy \"" + policy + "\" found; ms, ms-fcfs, chunk:N, budget:N, unchunked or p-pas expected");
    }
}

KvConfig kv_of(const Config& config, int32_t max_context) {
    const double fraction = config.device.memory_fraction.value_or(0.9);
    const double bytes = config.device.memory_budget_mib > 0 ? static_cast<double>(config.device.memory_budget_mib) * 1048576.0
                                                             : kDeviceBytes * fraction;
    if (bytes - kWeightBytes < kTokenBytes * config.kv.block_tokens) {
        throw config_error("device memory of " + std::to_string(static_cast<int64_t>(bytes / 1048576)) + " MiB (device.memory_budget_mib "
                           "or memory_fraction): the simulated model's weights alone take " +
                           std::to_string(static_cast<int64_t>(kWeightBytes / 1048576)));
    }
    KvConfig kv;
    kv.block_tokens = config.kv.block_tokens;
    kv.num_blocks = static_cast<int32_t>(std::max(2.0, (bytes - kWeightBytes) / kTokenBytes / kv.block_tokens)) + 1;
    kv.max_running = config.scheduler.max_running;
    kv.max_context = max_context;
    kv.prefix_cache = config.kv.prefix_cache;
    return kv;
}

/// What a device without a cached table does before its first request.
std::string calibrated_table(const SimOptions& o, double noise, uint64_t seed) {
    CostModel cost(o.scheduler.row_ladder, o.scheduler.rows_are_data, o.roofline);
    Random random(seed);
    for (const StepFeatures& f : calibration_steps(cost)) {
        cost.observe(f, static_cast<uint64_t>(o.true_ns(f) * std::exp(noise * random.normal())));
    }
    return cost.save();
}

std::vector<std::string> names_of(const SchedulerConfig& s) {
    std::vector<std::string> names;
    for (const SchedulerClass& c : s.classes) names.push_back(c.name);
    return names;
}

/// Configured tenants by their names, then those of the trace, with weight 1.
std::vector<std::string> configured_tenants(const SchedulerConfig& s) {
    std::vector<std::string> names;
    for (const SchedulerTenant& t : s.tenants) names.push_back(t.name);
    return names;
}

/// A configured tenant's requests are of its class, as on the server; the others of [sla].
void set_classes(const Config& config, const std::vector<std::string>& tenants, const std::vector<std::string>& classes,
                 std::vector<SimRequest>& workload) {
    std::vector<int32_t> class_of(tenants.size(), 0);
    for (size_t i = 0; i < tenants.size(); ++i) {
        const auto named = [&](const TenantSection& t) { return t.name == tenants[i] && !t.sla_class.empty(); };
        const auto tenant = std::find_if(config.tenants.begin(), config.tenants.end(), named);
        if (tenant == config.tenants.end()) continue;
        class_of[i] = static_cast<int32_t>(std::find(classes.begin(), classes.end(), tenant->sla_class) - classes.begin());
    }
    for (SimRequest& r : workload) r.class_index = class_of[static_cast<size_t>(r.tenant_index)];
}

uint64_t count_cut(const Trace& trace, const std::vector<SimRequest>& workload) {
    uint64_t count = 0;
    for (size_t i = 0; i < workload.size(); ++i) {
        const TraceArrival& a = trace.arrivals[i % trace.arrivals.size()];
        count += workload[i].prompt_tokens < a.input_tokens || workload[i].output_tokens < a.output_tokens ? 1 : 0;
    }
    return count;
}

}  // namespace

std::vector<SimulateResult> simulate(const Config& config, const Trace& trace, const SimulateOptions& options) {
    if (trace.arrivals.empty()) throw config_error("the trace has no arrival");
    if (!(options.rate > 0)) throw config_error("the rate must be over 0");
    const StepTime time = step_time_of(config, options);
    validate(config);
    const int32_t max_context = config.model.max_context > 0 ? config.model.max_context : kMaxContext;
    if (max_context < 2) throw config_error("model.max_context: a prompt and its answer take 2 tokens at least");
    SimOptions base;
    base.scheduler = scheduler_basics(config, max_context);
    base.scheduler.row_ladder = h100_ladder(base.scheduler.max_running);
    base.kv = kv_of(config, max_context);
    base.scheduler.swap_tokens = options.swap_mib * 1'048'576 / static_cast<int64_t>(kTokenBytes);
    base.scheduler.swap_ns_per_token = kTokenBytes / kHostBytesPerNs;
    base.roofline = h100_roofline();
    base.true_ns = [&time](const StepFeatures& f) { return time.ns(f); };
    base.noise = config.sim.noise;
    base.seed = options.seed != 0 ? options.seed : config.sim.seed;
    base.depth = config.scheduler.pipeline_depth;
    base.check = options.check;
    base.prefix_block_tokens = trace.prefix_block_tokens;
    base.cost_table = calibrated_table(base, base.noise, base.seed);

    FigureNames names;
    names.classes = names_of(base.scheduler);
    names.tenants = configured_tenants(base.scheduler);
    std::vector<SimRequest> workload = make_workload(trace, options, base.seed, max_context, names.tenants);
    set_classes(config, names.tenants, names.classes, workload);
    for (size_t t = base.scheduler.tenants.size(); t < names.tenants.size(); ++t) {
        base.scheduler.tenants.push_back({names.tenants[t], 1.0, 0, 0});
    }
    std::vector<SimulateResult> results;
    const std::vector<std::string> policies = options.policies.empty() ? std::vector<std::string>{""} : options.policies;
    for (const std::string& policy : policies) {
        SimOptions o = base;
        set_policy(policy, o.scheduler);
        GapLog log(options, workload);
        log.attach(o);
        SimReport report = run(o, workload);
        SimulateResult result = make_figures(o, workload, report, names);
        result.policy = policy.empty() ? (o.scheduler.fixed_chunk ? "chunk:" + std::to_string(o.scheduler.fixed_chunk_tokens) : "ms")
                                       : policy;
        result.cut_requests = count_cut(trace, workload);
        log.write(result);
        results.push_back(std::move(result));
    }
    return results;
}

}  // namespace takt
