// Decode at several batch sizes, from the engine's own step records. The steps that count are those in which the streams' mean context
// lies around the one asked for: streams whose prompt came first have decoded beside the others' prefill, the more the larger the batch.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "step/scenarios.h"

namespace takt::bench {

namespace {

constexpr int kBlockTokens = 16;   // of the KV cache, the setting's default
constexpr int kLeadTokens = 88;    // decoded before the steps that count: more than the first of 256 streams on average while the rest come

/// Tokens a stream has on average by the end of the step: half of every last block is taken to be empty.
double mean_context(const StepRecord& r, int rows) {
    return static_cast<double>(kBlockTokens) * r.kv_blocks_used / rows - 0.5 * (kBlockTokens - 1);
}

/// Pure decode steps of all `rows` rows whose mean context is within half of `steps` of the one asked for.
std::vector<StepRecord> decode_records(const Engine& engine, int rows, int context, int steps) {
    std::vector<StepRecord> found;
    for (const StepRecord& r : engine.recorder()) {
        if (r.num_prefill_rows > 0 || r.num_decode_rows != rows) continue;
        if (std::abs(mean_context(r, rows) - context) <= 0.5 * steps) found.push_back(r);
    }
    return found;
}

void cancel_all(const std::vector<std::shared_ptr<StreamLog>>& logs) {
    for (const auto& log : logs) log->cancel.store(true);
    for (const auto& log : logs) Host::wait(*log);
}

struct Window {
    std::vector<double> step_ms, gap_us, period_ms, host_us, plan_us;
    int64_t graphs = 0, steps = 0;
};

Window window_of(const std::vector<StepRecord>& records) {
    Window w;
    for (size_t i = 0; i < records.size(); ++i) {
        const StepRecord& r = records[i];
        ++w.steps;
        w.graphs += r.graph ? 1 : 0;
        w.step_ms.push_back(static_cast<double>(r.end_ns - r.begin_ns) * 1e-6);
        w.host_us.push_back(static_cast<double>(r.host_ns) * 1e-3);
        w.plan_us.push_back(static_cast<double>(r.plan_ns) * 1e-3);
        if (i == 0 || records[i - 1].step + 1 != r.step) continue;
        w.gap_us.push_back((static_cast<double>(r.begin_ns) - static_cast<double>(records[i - 1].end_ns)) * 1e-3);
        w.period_ms.push_back(static_cast<double>(r.begin_ns - records[i - 1].begin_ns) * 1e-6);
    }
    return w;
}

double mean_context(const std::vector<StepRecord>& records, int rows) {
    double sum = 0;
    for (const StepRecord& r : records) sum += mean_context(r, rows);
    return records.empty() ? 0 : sum / static_cast<double>(records.size());
}

/// A row a step: launched and seen by the engine's clock, begin and end by the device's, host time, the scheduler's part of it,
/// predicted; all in us.
boost::json::array raw_rows(const std::vector<StepRecord>& records) {
    boost::json::array rows;
    const auto us = [](uint64_t ns, uint64_t from) { return (static_cast<double>(ns) - static_cast<double>(from)) * 1e-3; };
    for (const StepRecord& r : records) {
        const StepRecord& first = records.front();
        rows.push_back(boost::json::array{r.step, us(r.launched_ns, first.launched_ns), us(r.seen_ns, first.launched_ns),
                                          us(r.begin_ns, first.begin_ns), us(r.end_ns, first.begin_ns), us(r.host_ns, 0),
                                          us(r.plan_ns, 0), r.predicted_ms * 1e3});
    }
    return rows;
}

boost::json::object measure(Host& host, const BenchOptions& options, int batch) {
    std::vector<std::shared_ptr<StreamLog>> logs;
    const auto vocab = static_cast<int32_t>(host.engine().model().vocab);
    const int lead = options.steps / 2 + kLeadTokens, prompt = std::max(16, options.context - lead);
    for (int i = 0; i < batch; ++i) {
        const auto seed = static_cast<uint64_t>(batch * 1000 + i);
        logs.push_back(host.start(made_up_prompt(seed, prompt, vocab), options.steps * 8 + 64 + lead));
    }
    const int64_t begin = steady_ns();
    constexpr int64_t kLongestNs = 90'000'000'000;
    // The recorder is looked at once, at the end: its copy would be most of the processor time that is measured.
    const auto wait_for = [&](const StreamLog& log, int64_t tokens) {
        while (log.num_tokens.load() < tokens && !log.done.load() && steady_ns() - begin < kLongestNs) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    };
    for (const auto& log : logs) wait_for(*log, 1);
    int64_t made = 0;
    for (const auto& log : logs) made += log->num_tokens.load();
    // From here on each stream gets a token a step: what is lacking on average is what the first one has to get.
    const int64_t first = logs.front()->num_tokens.load(), mean = made / batch;
    const int64_t from = first + std::max<int64_t>(8, options.context - options.steps / 2 - prompt - mean);
    wait_for(*logs.front(), from);
    const double cpu_begin = process_cpu_seconds();
    const int64_t wall_begin = steady_ns();
    wait_for(*logs.front(), from + options.steps + 8);
    const double cpu = process_cpu_seconds() - cpu_begin;
    const double wall = static_cast<double>(steady_ns() - wall_begin) * 1e-9;
    std::vector<StepRecord> records = decode_records(host.engine(), batch, options.context, options.steps);
    cancel_all(logs);
    const Window w = window_of(records);
    boost::json::object out;
    out["batch"] = batch;
    out["context"] = mean_context(records, batch);
    out["steps"] = w.steps;
    out["device_step_ms_median"] = rank_of(w.step_ms, 0.5);
    out["device_step_ms_p99"] = rank_of(w.step_ms, 0.99);
    out["period_ms_median"] = rank_of(w.period_ms, 0.5);
    out["gap_us_median"] = rank_of(w.gap_us, 0.5);
    out["gap_us_p99"] = rank_of(w.gap_us, 0.99);
    out["host_us_a_step_median"] = rank_of(w.host_us, 0.5);
    out["host_us_a_step_p99"] = rank_of(w.host_us, 0.99);
    out["plan_us_a_step_median"] = rank_of(w.plan_us, 0.5);
    out["process_cpu_share"] = wall > 0 ? cpu / wall : 0;
    const double period = rank_of(w.period_ms, 0.5);
    out["tokens_per_second"] = period > 0 ? batch * 1000.0 / period : 0;
    out["graph_share"] = w.steps > 0 ? static_cast<double>(w.graphs) / static_cast<double>(w.steps) : 0;
    if (options.records) out["records"] = raw_rows(records);
    for (const auto& log : logs) {
        if (!log->error.empty()) out["error"] = log->error;
    }
    std::printf("decode B=%d ctx %.0f: step %.3f ms, period %.3f ms, gap %.1f us (p99 %.1f), host %.1f us (plan %.1f), cpu %.2f, "
                "%.0f tok/s, graphs %.3f\n",
                batch, mean_context(records, batch), rank_of(w.step_ms, 0.5), period, rank_of(w.gap_us, 0.5), rank_of(w.gap_us, 0.99),
                rank_of(w.host_us, 0.5), rank_of(w.plan_us, 0.5), wall > 0 ? cpu / wall : 0, period > 0 ? batch * 1000.0 / period : 0,
                w.steps > 0 ? static_cast<double>(w.graphs) / static_cast<double>(w.steps) : 0);
    std::fflush(stdout);
    return out;
}

}  // namespace

boost::json::object run_decode(const BenchOptions& options) {
    std::vector<std::string> set = options.set;
    set.push_back("scheduler.max_running=" + std::to_string(options.max_running));
    set.push_back("sla.itl_ms=100000");   // decode is what is measured: prefill in large slices before it
    set.push_back("kv.prefix_cache=false");
    set.push_back("log.flight_recorder_steps=65536");
    set.push_back("model.max_context=" + std::to_string(options.context + options.steps * 8 + 128));
    Host host(set);
    boost::json::object out;
    out["load_seconds"] = host.load_seconds();
    out["device"] = host.engine().model().device;
    const MemoryPlan plan = host.engine().memory_plan();
    out["plan_weights"] = plan.weights;
    out["plan_kv"] = plan.kv;
    out["plan_workspaces"] = plan.workspaces;
    out["plan_graphs"] = plan.graphs;
    out["plan_inputs"] = plan.inputs;
    out["plan_total"] = plan.total();
    out["memory_used"] = plan.used;
    const double over = plan.total() > 0 ? static_cast<double>(plan.used) / static_cast<double>(plan.total()) - 1 : 0;
    std::printf("memory: planned %.1f MiB, used %.1f MiB, %+.2f %%\n", static_cast<double>(plan.total()) / (1 << 20),
                static_cast<double>(plan.used) / (1 << 20), 100 * over);
    std::printf("loaded in %.2f s on %s\n", host.load_seconds(), host.engine().model().device.c_str());
    std::fflush(stdout);
    boost::json::array batches;
    for (int batch : options.batches) {
        if (batch <= options.max_running) batches.push_back(measure(host, options, batch));
    }
    out["batches"] = std::move(batches);
    return out;
}

}  // namespace takt::bench
