// Inserting one long prompt into running streams: what the streams feel and what the prompt pays.
#include <algorithm>
#include <cstdio>
#include <map>

#include "step/scenarios.h"

namespace takt::bench {

namespace {

constexpr int kBurstStreams = 32, kBurstPrompts = 8, kBurstTokens = 4096;
constexpr double kBurstItlMs = 20;
constexpr int kMostStreams = 40;   // of the burst, with its prompts

/// One setting for all runs: `policy` is all that differs.
std::vector<std::string> settings(const BenchOptions& options, const std::vector<std::string>& policy) {
    std::vector<std::string> set = options.set;
    const int longest = *std::max_element(options.inserts.begin(), options.inserts.end());
    set.push_back("scheduler.max_running=" + std::to_string(kMostStreams));
    set.push_back("kv.prefix_cache=false");
    set.push_back("log.flight_recorder_steps=65536");
    set.push_back("model.max_context=" + std::to_string(std::max(longest + 256, 24576)));
    set.insert(set.end(), policy.begin(), policy.end());
    return set;
}

struct Insertion {
    double first_ms = 0, largest_gap_ms = 0, plain_gap_ms = 0;
    double gap_before_ms = 0;        // the one before the largest: of the tokens in flight when that step was launched
    std::vector<StepRecord> mixed;   // its steps with both kinds of rows
    std::string error;
};

/// `num_streams` run (0: the prompt is alone), the prompt comes, the streams go on until it has its first token.
Insertion insert_once(Host& host, const BenchOptions& options, int num_tokens, int num_streams, double itl_ms, uint64_t seed) {
    const auto vocab = static_cast<int32_t>(host.engine().model().vocab);
    std::vector<std::shared_ptr<StreamLog>> streams;
    Request base;
    base.itl_ms = itl_ms;
    for (int i = 0; i < num_streams; ++i) {
        streams.push_back(host.start(made_up_prompt(seed + static_cast<uint64_t>(i), options.context, vocab), 20000, base));
    }
    for (const auto& s : streams) Host::wait(*s, 64);
    std::vector<size_t> from;
    for (const auto& s : streams) from.push_back(static_cast<size_t>(s->num_tokens.load()));
    Request long_one;
    long_one.itl_ms = 100000;
    const std::vector<StepRecord> before = host.engine().recorder();
    const uint64_t first_step = before.empty() ? 0 : before.back().step;
    const auto inserted = host.start(made_up_prompt(seed + 500, num_tokens, vocab), 4, long_one);
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
        const auto& at = streams[i]->ready_ns;
        const auto gap_ms = [&](size_t t) { return static_cast<double>(at[t] - at[t - 1]) * 1e-6; };
        size_t largest = 0;
        for (size_t t = std::max<size_t>(from[i], 1); t < at.size(); ++t) {
            if (largest == 0 || gap_ms(t) > gap_ms(largest)) largest = t;
        }
        if (largest > 0) out.largest_gap_ms = std::max(out.largest_gap_ms, gap_ms(largest));
        if (largest > 1) out.gap_before_ms = std::max(out.gap_before_ms, gap_ms(largest - 1));
        for (size_t t = 9; t < from[i] && t < at.size(); ++t) plain.push_back(static_cast<double>(at[t] - at[t - 1]) * 1e-6);
    }
    out.plain_gap_ms = rank_of(plain, 0.5);
    return out;
}

/// A row a mixed step: its prompt's rows, the shape that ran; on the device, predicted and allowed in ms.
boost::json::array step_rows(const std::vector<StepRecord>& steps) {
    boost::json::array rows;
    for (const StepRecord& r : steps) {
        const double device_ms = static_cast<double>(r.end_ns - r.begin_ns) * 1e-6;
        rows.push_back(boost::json::array{r.num_prefill_rows, r.padded_rows, device_ms, r.predicted_ms, r.budget_ms});
    }
    return rows;
}

boost::json::object report(const BenchOptions& options, const std::string& policy, int num_tokens, int num_streams, double itl_ms,
                           const std::vector<Insertion>& runs, double unsplit_ms) {
    std::vector<double> first, gap, before, plain, rows, device, predicted, budget;
    boost::json::object out;
    for (const StepRecord& r : runs.back().mixed) {
        rows.push_back(r.num_prefill_rows);
        device.push_back(static_cast<double>(r.end_ns - r.begin_ns) * 1e-6);
        predicted.push_back(r.predicted_ms);
        budget.push_back(r.budget_ms);
    }
    for (const Insertion& r : runs) {
        first.push_back(r.first_ms);
        gap.push_back(r.largest_gap_ms);
        before.push_back(r.gap_before_ms);
        plain.push_back(r.plain_gap_ms);
        if (!r.error.empty()) out["error"] = r.error;
    }
    const double ratio = unsplit_ms > 0 ? rank_of(first, 0.5) / unsplit_ms : 1;
    out["policy"] = policy;
    out["insert_tokens"] = num_tokens;
    out["streams"] = num_streams;
    out["itl_ms"] = itl_ms;
    out["ttft_ms"] = rank_of(first, 0.5);
    out["ttft_over_unsplit"] = ratio;
    out["largest_gap_ms"] = rank_of(gap, 0.5);
    out["gap_before_largest_ms"] = rank_of(before, 0.5);
    out["plain_gap_ms"] = rank_of(plain, 0.5);
    out["mixed_steps"] = rows.size();
    out["prefill_rows_median"] = rank_of(rows, 0.5);
    out["prefill_rows_p90"] = rank_of(rows, 0.9);
    out["device_ms_median"] = rank_of(device, 0.5);
    out["device_ms_p99"] = rank_of(device, 0.99);
    out["predicted_ms_median"] = rank_of(predicted, 0.5);
    out["budget_ms_median"] = rank_of(budget, 0.5);
    if (options.records) out["steps"] = step_rows(runs.back().mixed);
    std::printf("insert %d into %d, %s, itl %.1f: ttft %.1f ms (x %.3f), largest gap %.2f ms (before it %.2f), plain gap %.2f ms; "
                "%zu mixed steps of %.0f rows, %.2f ms (predicted %.2f, budget %.2f)\n", num_tokens, num_streams, policy.c_str(), itl_ms,
                rank_of(first, 0.5), ratio, rank_of(gap, 0.5), rank_of(before, 0.5), rank_of(plain, 0.5), rows.size(),
                rank_of(rows, 0.5), rank_of(device, 0.5), rank_of(predicted, 0.5), rank_of(budget, 0.5));
    std::fflush(stdout);
    return out;
}

/// Several prompts at once beside many streams.
boost::json::object burst(Host& host, const BenchOptions& options, uint64_t seed) {
    const auto vocab = static_cast<int32_t>(host.engine().model().vocab);
    Request base;
    base.itl_ms = kBurstItlMs;
    std::vector<std::shared_ptr<StreamLog>> streams, prompts;
    for (int i = 0; i < kBurstStreams; ++i) {
        streams.push_back(host.start(made_up_prompt(seed + static_cast<uint64_t>(i), options.context, vocab), 20000, base));
    }
    for (const auto& s : streams) Host::wait(*s, 64);
    std::vector<size_t> from;
    for (const auto& s : streams) from.push_back(static_cast<size_t>(s->num_tokens.load()));
    for (int i = 0; i < kBurstPrompts; ++i) {
        prompts.push_back(host.start(made_up_prompt(seed + 500 + static_cast<uint64_t>(i), kBurstTokens, vocab), 64, base));
    }
    std::vector<double> first;
    for (const auto& p : prompts) {
        Host::wait(*p, 1);
    }
    for (const auto& s : streams) s->cancel.store(true);
    double gap = 0;
    for (size_t i = 0; i < streams.size(); ++i) {
        Host::wait(*streams[i]);
        gap = std::max(gap, streams[i]->largest_gap_ms(from[i] > 0 ? from[i] - 1 : 0));
    }
    for (const auto& p : prompts) {
        p->cancel.store(true);
        Host::wait(*p);
        first.push_back(p->first_ms());
    }
    boost::json::object out;
    out["streams"] = kBurstStreams;
    out["prompts"] = kBurstPrompts;
    out["prompt_tokens"] = kBurstTokens;
    out["itl_ms"] = kBurstItlMs;
    out["ttft_first_ms"] = rank_of(first, 0);
    out["ttft_median_ms"] = 0.5 * (rank_of(first, 0.5) + rank_of(first, 0.49));
    out["ttft_last_ms"] = rank_of(first, 1);
    out["largest_gap_ms"] = gap;
    std::printf("burst: %d prompts of %d beside %d streams: ttft first %.1f, median %.1f, last %.1f ms; largest gap %.2f ms\n",
                kBurstPrompts, kBurstTokens, kBurstStreams, rank_of(first, 0), out["ttft_median_ms"].as_double(), rank_of(first, 1), gap);
    std::fflush(stdout);
    return out;
}

int repeats_of(int num_tokens) { return num_tokens > 16384 ? 2 : 3; }

std::vector<Insertion> repeat(Host& host, const BenchOptions& options, int num_tokens, int num_streams, double itl_ms, uint64_t seed) {
    std::vector<Insertion> runs;
    for (int i = 0; i < repeats_of(num_tokens); ++i) {
        runs.push_back(insert_once(host, options, num_tokens, num_streams, itl_ms, seed + static_cast<uint64_t>(i) * 1000));
    }
    return runs;
}

}  // namespace

boost::json::object run_insert(const BenchOptions& options) {
    boost::json::array rows;
    std::map<int, double> unsplit_ms;
    const int longest = *std::max_element(options.inserts.begin(), options.inserts.end());
    const auto fixed = [](int tokens) {
        return std::vector<std::string>{"scheduler.policy=fixed-chunk", "scheduler.fixed_chunk_tokens=" + std::to_string(tokens)};
    };
    const auto warm = [&](Host& host) { (void)insert_once(host, options, options.inserts.front(), 1, 20, 27000); };
    {
        Host host(settings(options, fixed(longest)));
        warm(host);
        for (const int tokens : options.inserts) {
            const auto alone = repeat(host, options, tokens, 0, 100000, 7000);
            std::vector<double> first;
            for (const Insertion& r : alone) first.push_back(r.first_ms);
            unsplit_ms[tokens] = rank_of(first, 0.5);
            rows.push_back(report(options, "unsplit, alone", tokens, 0, 0, alone, unsplit_ms[tokens]));
            for (const int streams : options.streams) {
                rows.push_back(report(options, "unsplit", tokens, streams, 0, repeat(host, options, tokens, streams, 100000, 17000),
                                      unsplit_ms[tokens]));
            }
        }
    }
    for (const int chunk : options.chunks) {
        Host host(settings(options, fixed(chunk)));
        warm(host);
        for (const int tokens : options.inserts) {
            for (const int streams : options.streams) {
                rows.push_back(report(options, "fixed chunks of " + std::to_string(chunk), tokens, streams, 0,
                                      repeat(host, options, tokens, streams, 100000, 57000), unsplit_ms[tokens]));
            }
        }
    }
    boost::json::object out;
    Host host(settings(options, {}));
    for (int i = 0; i < 2; ++i) warm(host);   // teaches the cost model
    for (const int tokens : options.inserts) {
        for (const int streams : options.streams) {
            for (const double itl_ms : options.itl_ms) {
                const uint64_t seed = 37000 + static_cast<uint64_t>(itl_ms * 7);
                (void)insert_once(host, options, tokens, streams, itl_ms, seed + 90000);
                rows.push_back(report(options, "time-sliced", tokens, streams, itl_ms, repeat(host, options, tokens, streams, itl_ms, seed),
                                      unsplit_ms[tokens]));
            }
        }
    }
    (void)burst(host, options, 77000);
    out["burst"] = burst(host, options, 87000);
    out["context"] = options.context;
    out["rows"] = std::move(rows);
    return out;
}

}  // namespace takt::bench
