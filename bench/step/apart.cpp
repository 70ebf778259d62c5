// Prefill on a stream of its own, against the mixed forward: two engines on one device, so that the steps of running streams and the
// slices of a prompt are on two of its streams and share its multiprocessors as the hardware deals them.
#include <algorithm>
#include <cstdio>

#include "step/scenarios.h"

namespace takt::bench {

namespace {

constexpr int kRepeats = 3;
constexpr int kStreamTokens = 20000;

std::vector<std::string> settings(const BenchOptions& options, int max_running, const std::vector<std::string>& more) {
    std::vector<std::string> set = options.set;
    const int longest = *std::max_element(options.inserts.begin(), options.inserts.end());
    set.push_back("scheduler.max_running=" + std::to_string(max_running));
    set.push_back("kv.prefix_cache=false");
    set.push_back("sla.itl_ms=100000");
    set.push_back("device.memory_budget_mib=40000");
    set.push_back("model.max_context=" + std::to_string(std::max(longest + 256, 24576)));
    set.insert(set.end(), more.begin(), more.end());
    return set;
}

struct Apart {
    std::vector<double> first_ms, largest_gap_ms, median_gap_ms;
    std::string error;
};

/// `decoder` runs `num_streams`, `prefiller` gets the prompt beside them; 0: the prompt is alone on the device.
void insert_once(Host& decoder, Host& prefiller, const BenchOptions& options, int num_tokens, int num_streams, uint64_t seed, Apart& out) {
    const auto vocab = static_cast<int32_t>(decoder.engine().model().vocab);
    std::vector<std::shared_ptr<StreamLog>> streams;
    for (int i = 0; i < num_streams; ++i) {
        const auto prompt = made_up_prompt(seed + static_cast<uint64_t>(i), options.context, vocab);
        streams.push_back(decoder.start(prompt, kStreamTokens));
    }
    for (const auto& s : streams) Host::wait(*s, 64);
    std::vector<size_t> from, to;
    for (const auto& s : streams) from.push_back(static_cast<size_t>(s->num_tokens.load()));
    const auto inserted = prefiller.start(made_up_prompt(seed + 500, num_tokens, vocab), 1);
    Host::wait(*inserted);
    for (const auto& s : streams) to.push_back(static_cast<size_t>(s->num_tokens.load()));
    for (const auto& s : streams) s->cancel.store(true);
    double largest = 0;
    std::vector<double> gaps;
    for (size_t i = 0; i < streams.size(); ++i) {
        Host::wait(*streams[i]);
        const auto& at = streams[i]->ready_ns;
        for (size_t t = std::max<size_t>(from[i], 1); t < std::min(to[i] + 1, at.size()); ++t) {
            gaps.push_back(static_cast<double>(at[t] - at[t - 1]) * 1e-6);
            largest = std::max(largest, gaps.back());
        }
        if (!streams[i]->error.empty()) out.error = streams[i]->error;
    }
    if (!inserted->error.empty()) out.error = inserted->error;
    out.first_ms.push_back(inserted->first_ms());
    out.largest_gap_ms.push_back(largest);
    out.median_gap_ms.push_back(rank_of(gaps, 0.5));
}

Apart repeat(Host& decoder, Host& prefiller, const BenchOptions& options, int num_tokens, int num_streams, uint64_t seed) {
    Apart out;
    for (int i = 0; i < kRepeats; ++i) {
        insert_once(decoder, prefiller, options, num_tokens, num_streams, seed + static_cast<uint64_t>(i) * 1000, out);
    }
    return out;
}

}  // namespace

boost::json::object run_apart(const BenchOptions& options) {
    boost::json::array rows;
    const int most = *std::max_element(options.streams.begin(), options.streams.end());
    Host decoder(settings(options, most, {}));
    double unsplit_ms = 0;
    const int longest = *std::max_element(options.inserts.begin(), options.inserts.end());
    std::vector<int> chunks = options.chunks;
    chunks.insert(chunks.begin(), longest);   // unsplit
    for (const int chunk : chunks) {
        Host prefiller(settings(options, 2, {"scheduler.policy=fixed-chunk", "scheduler.fixed_chunk_tokens=" + std::to_string(chunk)}));
        const int tokens = options.inserts.front();
        Apart warm;
        insert_once(decoder, prefiller, options, tokens, 1, 9000, warm);
        if (unsplit_ms == 0) unsplit_ms = rank_of(repeat(decoder, prefiller, options, tokens, 0, 17000).first_ms, 0.5);
        for (const int num_streams : options.streams) {
            const Apart a = repeat(decoder, prefiller, options, tokens, num_streams, 27000);
            const double first = rank_of(a.first_ms, 0.5), gap = rank_of(a.largest_gap_ms, 0.5);
            rows.push_back(boost::json::object{{"chunk", chunk}, {"insert_tokens", tokens}, {"streams", num_streams}, {"ttft_ms", first},
                                               {"ttft_over_unsplit", first / unsplit_ms}, {"largest_gap_ms", gap},
                                               {"median_gap_ms", rank_of(a.median_gap_ms, 0.5)}, {"error", a.error}});
            std::printf("apart %d into %d, chunks of %d: ttft %.1f ms (x %.3f), largest gap %.2f ms, median %.2f ms %s\n", tokens,
                        num_streams, chunk, first, first / unsplit_ms, gap, rank_of(a.median_gap_ms, 0.5), a.error.c_str());
            std::fflush(stdout);
        }
    }
    boost::json::object out;
    out["unsplit_ms"] = unsplit_ms;
    out["rows"] = std::move(rows);
    return out;
}

}  // namespace takt::bench
