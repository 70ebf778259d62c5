// Whether the engine gives the same tokens however it is run: by graph and eagerly, alone and in company, at depth 0 and 1.
#include <boost/json.hpp>

#include <algorithm>
#include <cstdio>

#include "step/scenarios.h"

namespace takt::bench {

namespace {

constexpr int kEqualTokens = 64;

struct Way {
    const char* name;
    std::vector<std::string> set;
    bool together;   // all prompts at once
};

using Logs = std::vector<std::shared_ptr<StreamLog>>;

/// `with_margins`: the reference, whose steps also say how near the second likeliest token was.
Logs run_way(const BenchOptions& options, const Way& way, const std::vector<std::vector<int32_t>>& prompts, bool with_margins) {
    std::vector<std::string> set = options.set;
    set.insert(set.end(), way.set.begin(), way.set.end());
    set.push_back("kv.prefix_cache=false");
    set.push_back("model.max_context=4096");
    Host host(set);
    Request base;
    if (with_margins) base.sampling.logprobs = 2;
    Logs logs;
    for (const auto& prompt : prompts) {
        logs.push_back(host.start(prompt, kEqualTokens, base));
        if (!way.together) Host::wait(*logs.back());
    }
    for (const auto& log : logs) Host::wait(*log);
    return logs;
}

struct Agreement {
    int equal = 0;
    double shared = 0;           // mean part before the first difference
    double largest_margin = 0;   // of the reference, where a text left it
    std::string error;
};

Agreement compare(const Logs& logs, const Logs& reference) {
    Agreement a;
    for (size_t i = 0; i < logs.size(); ++i) {
        const auto& ours = logs[i]->tokens;
        const auto& theirs = reference[i]->tokens;
        size_t same = 0;
        while (same < ours.size() && same < theirs.size() && ours[same] == theirs[same]) ++same;
        a.equal += same == kEqualTokens ? 1 : 0;
        a.shared += static_cast<double>(same) / kEqualTokens / static_cast<double>(logs.size());
        if (same < reference[i]->margins.size()) a.largest_margin = std::max(a.largest_margin, reference[i]->margins[same]);
        if (!logs[i]->error.empty()) a.error = logs[i]->error;
    }
    return a;
}

}  // namespace

boost::json::object run_equal(const BenchOptions& options) {
    constexpr int kPrompts = 16;
    int64_t vocab = 0;
    {
        Host host(options.set);
        vocab = host.engine().model().vocab;
    }
    std::vector<std::vector<int32_t>> prompts;
    for (int i = 0; i < kPrompts; ++i) {
        prompts.push_back(made_up_prompt(static_cast<uint64_t>(i) + 1, 1 + i * 61, static_cast<int32_t>(vocab)));
    }
    const Way ways[] = {
        {"alone", {"scheduler.pipeline_depth=0", "scheduler.max_running=16"}, false},
        {"alone, again", {"scheduler.pipeline_depth=0", "scheduler.max_running=16"}, false},
        {"eager", {"scheduler.pipeline_depth=0", "scheduler.max_running=16", "device.graphs=false"}, false},
        {"depth 1", {"scheduler.pipeline_depth=1", "scheduler.max_running=16"}, false},
        {"16 together, depth 0", {"scheduler.pipeline_depth=0", "scheduler.max_running=16"}, true},
        {"16 together, depth 1", {"scheduler.pipeline_depth=1", "scheduler.max_running=16"}, true},
        {"chunks of 100", {"scheduler.policy=fixed-chunk", "scheduler.fixed_chunk_tokens=100", "scheduler.max_running=16"}, true},
        {"deterministic, alone", {"device.deterministic=true", "scheduler.pipeline_depth=0", "scheduler.max_running=16"}, false},
        {"deterministic, 16 together", {"device.deterministic=true", "scheduler.max_running=16"}, true},
        {"deterministic, eager, chunks of 100",
         {"device.deterministic=true", "scheduler.policy=fixed-chunk", "scheduler.fixed_chunk_tokens=100", "scheduler.max_running=16",
          "device.graphs=false"}, true},
    };
    boost::json::array rows;
    Logs plain, deterministic;
    bool passed = true;
    for (const Way& way : ways) {
        const bool is_deterministic = std::string(way.name).rfind("deterministic", 0) == 0;
        Logs& reference = is_deterministic ? deterministic : plain;
        const Logs logs = run_way(options, way, prompts, reference.empty());
        if (reference.empty()) reference = logs;
        const Agreement a = compare(logs, reference);
        // The fast kernels add in an order that changes from run to run: a near tie may go either way.
        passed = passed && a.error.empty() && (is_deterministic ? a.equal == kPrompts : a.largest_margin < kNearTie);
        rows.push_back(boost::json::object{{"way", way.name}, {"equal", a.equal}, {"of", kPrompts}, {"shared_prefix", a.shared},
                                           {"largest_margin_at_a_difference", a.largest_margin}, {"error", a.error}});
        std::printf("equal: %-36s %2d of %d texts, mean equal part %.3f, largest margin at a difference %.4f %s\n", way.name, a.equal,
                    kPrompts, a.shared, a.largest_margin, a.error.c_str());
        std::fflush(stdout);
    }
    boost::json::object out;
    out["tokens"] = kEqualTokens;
    out["rule"] = "deterministic: every text equal; else: texts part only where the two likeliest tokens are within 0.1";
    out["ways"] = std::move(rows);
    out["passed"] = passed;
    return out;
}

}  // namespace takt::bench
