// takt::simulate: the server's own scheduler over a trace, on a virtual clock and a device that is a table of step times.
// Deterministic: the same configuration, trace and options give the same figures. Formulas: docs/scheduling.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <takt/config.h>
#include <takt/percentiles.h>
#include <takt/trace.h>

namespace takt {

struct SimulateOptions {
    /// What to compare, each with the same arrivals: "ms" (the configuration's own scheduler), "ms-fcfs" (its budget, prompts in
    /// order of arrival), "chunk:N" (N prompt tokens a step), "budget:N" (N rows a step, decodes among them), "unchunked",
    /// "p-pas" (2048 tokens while several prompts wait and something decodes, else 16384). Empty: what `config` says.
    std::vector<std::string> policies;
    std::string profile;             ///< text of a profile file; empty: config.sim.profile
    double rate = 1;                 ///< arrivals a second are multiplied by it
    double seconds = 0;              ///< of the trace, before scaling; 0: all
    int64_t requests = 0;            ///< as many, the trace repeated where it ends; 0: as many as it has
    uint64_t seed = 0;               ///< of noise and spreading; 0: config.sim.seed
    bool spread = true;              ///< spread batched stamps over the time to the next one
    int64_t swap_mib = 0;            ///< host memory that keeps the KV of preempted requests, copied at 50 GB/s; 0: computed again
    bool check = false;              ///< hold every plan against the invariants, text included: slow
    int32_t num_plot_points = 400;   ///< of gaps over time
    int32_t num_explained = 0;       ///< how many of the worst gaps to explain
};

/// Step times of the device and model that `config` names, measured on it without a server, as the text of a profile file.
/// Takes the device for some seconds. Any thread. @throws config_error, load_error.
std::string profile(const Config& config);

/// The figures of all requests, or of a class's or a tenant's.
struct SimulateGroup {
    std::string name;
    uint64_t requests = 0, finished = 0, refused = 0;
    uint64_t input_tokens = 0, output_tokens = 0;
    Percentiles ttft_ms, tpot_ms, request_ms;
    Percentiles itl_ms;              ///< pooled over all gaps
    Percentiles jitter_ms;           ///< a request's standard deviation of gaps
    double late_share = 0;           ///< of gaps over the promise
    double late_ms_per_1000 = 0;     ///< milliseconds over the promise, a thousand tokens
    double goodput_share = 0;        ///< of offered requests: TTFT kept, and 99 % of gaps kept
    double goodput_all_gaps = 0;     ///< ... and every gap kept
    double goodput_tpot = 0;         ///< ... and the mean gap kept
    double goodput_per_s = 0;
    double device_share = 0;         ///< of all device time, by rows
};

/// A late gap and what made it.
struct ExplainedGap {
    double at_s = 0, gap_ms = 0, promised_ms = 0, step_ms = 0, predicted_ms = 0;
    uint64_t request = 0;
    int32_t prefill_rows = 0, decode_rows = 0;
    std::string cause;               ///< prefill, padding, preemption, host, reader, device
};

struct SimulateResult {
    std::string policy;
    SimulateGroup total;
    /// Tenants only where the trace or the configuration has some; one that the configuration names has its class and weight.
    std::vector<SimulateGroup> classes, tenants;
    double seconds = 0;              ///< of virtual time, first arrival to last token
    double output_tokens_per_s = 0, prefill_tokens_per_s = 0;
    double busy_share = 0;           ///< of the device
    uint64_t cut_requests = 0;       ///< longer than model.max_context, cut to it
    uint64_t swapped = 0;            ///< of the preemptions
    uint64_t steps = 0, preemptions = 0, cached_tokens = 0, digest = 0;
    double over_budget_share = 0;    ///< of steps with decode rows
    double model_error = 0;          ///< mean relative error of predictions, over all regimes
    double tenant_fairness = 1;      ///< Jain's index of device time over weight
    double tenant_gap_ms = 0;        ///< greatest difference of counters of tenants that both had work
    std::vector<double> plot_s, plot_gap_ms;       ///< the largest gap of each stretch of time
    std::vector<ExplainedGap> explained;
    std::vector<double> late_ms_by_cause;          ///< in the order of `cause` above
    std::string wrong;               ///< with check: the first broken invariant
};

/// @throws config_error for a policy that does not exist, a profile that cannot be read, or a configuration that cannot be simulated.
std::vector<SimulateResult> simulate(const Config& config, const Trace& trace, const SimulateOptions& options);

}  // namespace takt
