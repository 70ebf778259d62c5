// Whether the engine gives float32's tokens, step by step along float32's own text (forced) and running free. Beside it stands what
// transformers in bf16 makes of the same steps, where the oracle brought that: the same error is no fault, a larger one is.
#include <boost/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "step/scenarios.h"

namespace takt::bench {

namespace {

constexpr int kFreeRuns = 3;   // of each text: the fast kernels add in an order that changes
constexpr int kFirstRuns = 8;  // of each text's first step, alone

struct TruthRow {
    std::vector<int32_t> prompt, greedy, seconds, peer_greedy;
    std::vector<double> margins, logprobs, peer_margins;   // peer: transformers in bf16; its margin of greedy[i] over seconds[i]
};

template <class T>
std::vector<T> numbers(const boost::json::object& object, const char* key) {
    std::vector<T> all;
    if (const boost::json::value* found = object.if_contains(key)) {
        for (const auto& v : found->as_array()) all.push_back(v.to_number<T>());
    }
    return all;
}

std::vector<TruthRow> read_truth(const std::string& path) {
    std::vector<TruthRow> rows;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        const boost::json::object o = boost::json::parse(line).as_object();
        rows.push_back({numbers<int32_t>(o, "prompt_ids"), numbers<int32_t>(o, "f32_ids"), numbers<int32_t>(o, "f32_seconds"),
                        numbers<int32_t>(o, "bf16_ids"), numbers<double>(o, "f32_margins"), numbers<double>(o, "f32_logprobs"),
                        numbers<double>(o, "bf16_margins")});
    }
    return rows;
}

/// By how much the margin between float32's two likeliest tokens was off, over all steps that had the same two.
struct MarginError {
    double squares = 0, largest = 0;
    int count = 0;
    size_t prompt = 0, step = 0;   // where the largest was
    double theirs = 0;
    void add(const TruthRow& row, size_t i, double ours) {
        const double error = std::abs(ours - row.margins[i]);
        squares += error * error;
        ++count;
        if (error <= largest) return;
        largest = error;
        prompt = row.prompt.size();
        step = i;
        theirs = row.margins[i];
    }
    [[nodiscard]] double rms() const { return count == 0 ? 0 : std::sqrt(squares / count); }
    [[nodiscard]] boost::json::object report() const {
        return {{"steps", count}, {"rms", rms()}, {"largest", largest}, {"at_prompt_of", prompt}, {"at_step", step}, {"at_margin", theirs}};
    }
};

struct Tally {
    int steps = 0, near_ties = 0, flips = 0, bad_flips = 0, peer_flips = 0;
    int texts = 0, equal = 0, left_badly = 0;
    double epsilon = kNearTie;   // margins that bf16 activations may turn
    double largest_logprob = 0, largest_left = 0;
    MarginError forced, free, peer;
    boost::json::array differences, first_steps;
    std::string error;

    void add_difference(const char* way, const TruthRow& row, size_t step, int32_t token, double ours) {
        differences.push_back(boost::json::object{{"way", way}, {"prompt_tokens", row.prompt.size()}, {"step", step},
                                                  {"expected", row.greedy[step]}, {"got", token}, {"margin", row.margins[step]},
                                                  {"our_margin", ours}});
        std::printf("truth: %s, prompt of %zu, step %zu: %d for %d, float32's margin %.4f, ours %.4f\n", way, row.prompt.size(), step,
                    token, row.greedy[step], row.margins[step], ours);
    }

    /// Notes the margin's error of step `i` as `log` has it at `at`.
    static void note_margin(MarginError& into, const TruthRow& row, size_t i, const StreamLog& log, size_t at) {
        if (i >= row.seconds.size() || at >= log.margins.size()) return;
        const int32_t first = log.tokens[at], second = log.seconds[at];
        if (first == row.greedy[i] && second == row.seconds[i]) into.add(row, i, log.margins[at]);
        if (first == row.seconds[i] && second == row.greedy[i]) into.add(row, i, -log.margins[at]);
    }
};

Request with_margins() {
    Request base;
    base.sampling.logprobs = 2;
    return base;
}

/// All teacher-forced steps of a row at once: step i is a request of its own whose prompt ends before greedy[i].
void run_forced(Host& host, const TruthRow& row, Tally& t) {
    std::vector<std::shared_ptr<StreamLog>> logs;
    std::vector<int32_t> fed = row.prompt;
    for (int32_t next : row.greedy) {
        logs.push_back(host.start(fed, 1, with_margins()));
        fed.push_back(next);
    }
    for (size_t i = 0; i < logs.size(); ++i) {
        const StreamLog& log = *logs[i];
        Host::wait(log);
        if (!log.error.empty()) t.error = log.error;
        if (log.tokens.size() != 1 || log.margins.empty()) continue;
        ++t.steps;
        t.near_ties += row.margins[i] < kNearTie ? 1 : 0;
        Tally::note_margin(t.forced, row, i, log, 0);
        if (log.tokens[0] == row.greedy[i]) {
            t.largest_logprob = std::max(t.largest_logprob, std::abs(log.logprobs[0] - row.logprobs[i]));
            continue;
        }
        ++t.flips;
        t.bad_flips += row.margins[i] >= t.epsilon ? 1 : 0;
        t.add_difference("forced", row, i, log.tokens[0], log.margins[0]);
    }
}

/// One text, alone. `way` names it where it leaves float32's.
void run_free(Host& host, const TruthRow& row, const char* way, const Request& base, Tally& t) {
    const auto log = host.start(row.prompt, static_cast<int>(row.greedy.size()), base);
    Host::wait(*log);
    if (!log->error.empty()) t.error = log->error;
    const size_t length = std::min(log->tokens.size(), row.greedy.size());
    size_t same = 0;
    while (same < length && log->tokens[same] == row.greedy[same]) ++same;
    for (size_t i = 0; i < std::min(same + 1, length); ++i) Tally::note_margin(t.free, row, i, *log, i);
    ++t.texts;
    t.equal += same == row.greedy.size() ? 1 : 0;
    if (same == length) return;
    t.left_badly += row.margins[same] >= t.epsilon ? 1 : 0;
    t.largest_left = std::max(t.largest_left, row.margins[same]);
    t.add_difference(way, row, same, log->tokens[same], same < log->margins.size() ? log->margins[same] : 0);
}

/// The step after the prompt again and again, alone: how far the order of additions moves its margin.
void run_first(Host& host, const TruthRow& row, Tally& t) {
    if (row.seconds.empty()) return;
    MarginError error;
    boost::json::array ours;
    for (int i = 0; i < kFirstRuns; ++i) {
        const auto log = host.start(row.prompt, 1, with_margins());
        Host::wait(*log);
        if (!log->error.empty()) t.error = log->error;
        if (log->margins.empty()) continue;
        Tally::note_margin(error, row, 0, *log, 0);
        ours.push_back(log->tokens[0] == row.greedy[0] ? log->margins[0] : -log->margins[0]);
    }
    t.first_steps.push_back(boost::json::object{{"prompt_tokens", row.prompt.size()}, {"margin", row.margins[0]}, {"ours", std::move(ours)},
                                                {"margin_error", error.report()}});
}

void note_peer(const TruthRow& row, Tally& t) {
    for (size_t i = 0; i < row.peer_greedy.size(); ++i) {
        t.peer.add(row, i, row.peer_margins[i]);
        if (row.peer_greedy[i] == row.greedy[i]) continue;
        ++t.peer_flips;
    }
    t.epsilon = std::max(t.epsilon, t.peer.largest);
}

/// Weights that nobody trained meet many more near ties than real ones do, hence the half of them.
bool passes(const Tally& t) {
    const bool is_rare = t.flips * 100 <= t.steps || t.flips * 2 <= t.near_ties;
    const bool is_near = t.peer.count == 0 || (t.forced.rms() <= t.peer.rms() && t.free.rms() <= t.peer.rms());
    return t.steps > 0 && t.bad_flips == 0 && is_rare && is_near && t.left_badly == 0 && t.error.empty();
}

boost::json::object report(Tally& t) {
    boost::json::object out;
    out["rule"] = "bf16 activations: argmax equal wherever the margin is epsilon or more, 0.1 or the largest error of a margin that "
                  "transformers in bf16 has on these steps; root mean square of the margins' errors no more than theirs; at most 1 % of "
                  "steps different, or half of those at margins under 0.1";
    out["epsilon"] = t.epsilon;
    out["steps"] = t.steps;
    out["steps_at_margin_under_0_1"] = t.near_ties;
    out["different"] = t.flips;
    out["different_at_margin_over_epsilon"] = t.bad_flips;
    out["largest_logprob_difference"] = t.largest_logprob;
    out["margin_error"] = t.forced.report();
    out["free_running_texts"] = t.texts;
    out["free_running_all_equal"] = t.equal;
    out["free_running_left_at_margin_over_epsilon"] = t.left_badly;
    out["free_running_largest_margin_left"] = t.largest_left;
    out["free_running_margin_error"] = t.free.report();
    if (t.peer.count > 0) out["transformers_bf16"] = boost::json::object{{"different", t.peer_flips}, {"margin_error", t.peer.report()}};
    out["differences"] = std::move(t.differences);
    out["first_steps"] = std::move(t.first_steps);
    if (!t.error.empty()) out["error"] = t.error;
    out["passed"] = passes(t);
    std::printf("truth: margin error rms %.4f largest %.4f forced (%d steps); %.4f, %.4f free (%d); transformers in bf16 %.4f, %.4f (%d), "
                "%d differ\n", t.forced.rms(), t.forced.largest, t.forced.count, t.free.rms(), t.free.largest, t.free.count, t.peer.rms(),
                t.peer.largest, t.peer.count, t.peer_flips);
    std::printf("truth: %d of %d forced steps differ (%d at a margin over %.3f), largest log-probability difference %.4f; "
                "%d of %d free texts equal (%d left at such a margin); %s\n", t.flips, t.steps, t.bad_flips, t.epsilon, t.largest_logprob,
                t.equal, t.texts, t.left_badly, passes(t) ? "passed" : "FAILED");
    std::fflush(stdout);
    return out;
}

}  // namespace

boost::json::object run_truth(const BenchOptions& options) {
    std::vector<std::string> set = options.set;
    set.push_back("model.max_context=2048");
    set.push_back("scheduler.max_running=64");
    Host host(set);
    Tally t;
    const std::vector<TruthRow> rows = read_truth(options.truth);
    for (const TruthRow& row : rows) note_peer(row, t);
    for (const TruthRow& row : rows) {
        if (row.prompt.size() + row.greedy.size() > 2000) continue;
        run_forced(host, row, t);
        run_free(host, row, "free", {}, t);
        for (int i = 1; i < kFreeRuns; ++i) run_free(host, row, "free, with margins", with_margins(), t);
        run_first(host, row, t);
    }
    return report(t);
}

}  // namespace takt::bench
