// Inserting one long prompt into running streams: what the streams feel and what the prompt pays.
#include <algorithm>
#include <cstdio>

#include "step/scenarios.h"

namespace takt::bench {

namespace {

std::vector<std::string> settings(const BenchOptions& options, int num_streams) {
    std::vector<std::string> set = options.set;
    set.push_back("scheduler.max_running=" + std::to_string(num_streams + 1));
    set.push_back("kv.prefix_cache=false");
    set.push_back("log.flight_recorder_steps=65536");
    set.push_back("model.max_context=" + std::to_string(std::max(options.insert_tokens, 24576) + 256));
    return set;
}

void wait_for_tokens(const StreamLog& log, int64_t count) {
    while (!log.done.load() && log.num_tokens.load() < count) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

struct Insertion {
    double first_ms = 0, largest_gap_ms = 0, plain_gap_ms = 0;
    std::vector<StepRecord> mixed;   // its steps with both kinds of rows
    std::string error;
};

/// `num_streams` run (0: the prompt is alone), the prompt comes, the streams go on until it has its first token.
Insertion insert_once(Host& host, const BenchOptions& options, int num_streams, double itl_ms, uint64_t seed) {
    const auto vocab = static_cast<int32_t>(host.engine().model().vocab);
    std::vector<std::shared_ptr<StreamLog>> streams;
    Request base;
    base.itl_ms = itl_ms;
    for (int i = 0; i < num_streams; ++i) {
        streams.push_back(host.start(made_up_prompt(seed + static_cast<uint64_t>(i), options.context, vocab), 20000, base));
    }
    for (const auto& s : streams) wait_for_tokens(*s, 64);
    std::vector<size_t> from;
    for (const auto& s : streams) from.push_back(static_cast<size_t>(s->num_tokens.load()));
    Request long_one;
    long_one.itl_ms = 100000;
    const std::vector<StepRecord> before = host.engine().recorder();
    const uint64_t first_step = before.empty() ? 0 : before.back().step;
    const auto inserted = host.start(made_up_prompt(seed + 500, options.insert_tokens, vocab), 4, long_one);
    Host::wait(*inserted);
    for (const auto& s : streams) s->cancel.store(true);
    for (const auto& s : streams) Host::wait(*s);
    Insertion out;
    for (const StepRecord& r : host.engine().recorder()) {
        if (r.step > first_step && r.num_prefill_rows > 0 && r.num_decode_rows > 0) out.mixed.push_back(r);
    }
    out.first_ms = inserted->first_ms();
    out.error = inserted->error;
    std::vector<double> plain;
    for (size_t i = 0; i < streams.size(); ++i) {
        out.largest_gap_ms = std::max(out.largest_gap_ms, streams[i]->largest_gap_ms(from[i] > 0 ? from[i] - 1 : 0));
        const auto& at = streams[i]->ready_ns;
        for (size_t t = 9; t < from[i] && t < at.size(); ++t) plain.push_back(static_cast<double>(at[t] - at[t - 1]) * 1e-6);
    }
    out.plain_gap_ms = rank_of(plain, 0.5);
    return out;
}

boost::json::object report(const char* policy, int num_streams, double itl_ms, const std::vector<Insertion>& runs, double unsplit_ms) {
    std::vector<double> first, gap, plain, rows, device, predicted, budget;
    boost::json::object out;
    for (const StepRecord& r : runs.back().mixed) {
        rows.push_back(r.num_prefill_rows);
        device.push_back(static_cast<double>(r.end_ns - r.begin_ns) * 1e-6);
        predicted.push_back(r.predicted_ms);
        budget.push_back(r.budget_ms);
    }
    out["mixed_steps"] = rows.size();
    out["prefill_rows_median"] = rank_of(rows, 0.5);
    out["prefill_rows_p90"] = rank_of(rows, 0.9);
    out["device_ms_median"] = rank_of(device, 0.5);
    out["device_ms_p99"] = rank_of(device, 0.99);
    out["predicted_ms_median"] = rank_of(predicted, 0.5);
    out["budget_ms_median"] = rank_of(budget, 0.5);
    for (const Insertion& r : runs) {
        first.push_back(r.first_ms);
        gap.push_back(r.largest_gap_ms);
        plain.push_back(r.plain_gap_ms);
        if (!r.error.empty()) out["error"] = r.error;
    }
    out["policy"] = policy;
    out["streams"] = num_streams;
    out["itl_ms"] = itl_ms;
    out["ttft_ms"] = rank_of(first, 0.5);
    out["largest_gap_ms"] = rank_of(gap, 0.5);
    out["plain_gap_ms"] = rank_of(plain, 0.5);
    const double ratio = unsplit_ms > 0 ? rank_of(first, 0.5) / unsplit_ms : 1;
    out["ttft_over_unsplit"] = ratio;
    std::printf("insert into %d, %s, itl %.1f: ttft %.1f ms (x %.3f), largest gap %.2f ms, plain gap %.2f ms; %zu mixed steps of "
                "%.0f rows, %.2f ms (predicted %.2f, budget %.2f)\n", num_streams, policy, itl_ms, rank_of(first, 0.5), ratio,
                rank_of(gap, 0.5), rank_of(plain, 0.5), rows.size(), rank_of(rows, 0.5), rank_of(device, 0.5), rank_of(predicted, 0.5),
                rank_of(budget, 0.5));
    std::fflush(stdout);
    return out;
}

}  // namespace

boost::json::object run_insert(const BenchOptions& options) {
    constexpr int kRepeats = 3;
    boost::json::array rows;
    double unsplit_ms = 0;
    for (int num_streams : options.streams) {
        std::vector<std::string> fixed = settings(options, num_streams);
        fixed.push_back("scheduler.policy=fixed-chunk");
        fixed.push_back("scheduler.fixed_chunk_tokens=" + std::to_string(options.insert_tokens));
        {
            Host host(fixed);
            std::vector<Insertion> alone, unsplit;
            for (uint64_t i = 0; i <= kRepeats; ++i) {   // the first one warms up
                const Insertion once = insert_once(host, options, 0, 100000, 7000 + i * 1000);
                if (i > 0) alone.push_back(once);
            }
            std::vector<double> first;
            for (const Insertion& r : alone) first.push_back(r.first_ms);
            unsplit_ms = rank_of(first, 0.5);
            rows.push_back(report("unsplit, alone", 0, 0, alone, unsplit_ms));
            for (uint64_t i = 0; i < kRepeats; ++i) {
                unsplit.push_back(insert_once(host, options, num_streams, 100000, 17000 + i * 1000));
            }
            rows.push_back(report("unsplit", num_streams, 0, unsplit, unsplit_ms));
        }
        Host host(settings(options, num_streams));
        (void)insert_once(host, options, num_streams, 20, 27000);   // records the shapes, teaches the cost model
        for (double itl_ms : options.itl_ms) {
            std::vector<Insertion> runs;
            for (uint64_t i = 0; i <= kRepeats; ++i) {
                const uint64_t seed = 37000 + i * 1000 + static_cast<uint64_t>(itl_ms * 7);
                const Insertion once = insert_once(host, options, num_streams, itl_ms, seed);
                if (i > 0) runs.push_back(once);
            }
            rows.push_back(report("time-sliced", num_streams, itl_ms, runs, unsplit_ms));
        }
    }
    boost::json::object out;
    out["insert_tokens"] = options.insert_tokens;
    out["context"] = options.context;
    out["rows"] = std::move(rows);
    return out;
}

}  // namespace takt::bench
