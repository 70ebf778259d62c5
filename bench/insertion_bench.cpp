// A long prompt is inserted beside a running stream: does the stream keep its promise, and what does the prompt pay for it?
// Policies in one run, in shuffled order: the millisecond budget, fixed chunks, and one unsplit prefill.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <boost/json/array.hpp>
#include <chrono>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "engine_driver.h"

namespace {

using namespace takt;

struct Options {
    std::string model = std::string(TAKT_SOURCE_ROOT) + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    std::string device = "cpu";
    std::string output;
    std::string steps;      // CSV: step, decode rows, prefill rows, then ms: predicted, budget, device, since the last, in all, host
    int threads = 2;
    int prompt = 2000;
    int repeat = 5;
    std::vector<double> multiples = {4};
    std::vector<int> chunks;
};

struct Policy {
    std::string name;
    int chunk = 0;          // 0: the millisecond budget
    double itl_ms = 0;
};

Config make_config(const Options& options, const Policy& policy) {
    Config config;
    config.model.path = options.model;
    config.model.max_context = 8192;
    config.device.kind = options.device;
    config.device.threads = options.threads;
    config.kv.prefix_cache = false;
    config.scheduler.max_running = 16;
    config.sla.itl_ms = policy.itl_ms;
    if (policy.chunk > 0) {
        config.scheduler.policy = "fixed-chunk";
        config.scheduler.fixed_chunk_tokens = policy.chunk;
    }
    validate(config);
    return config;
}

// The plain decode step of the stream that the prompt will meet: the median gap of one undisturbed stream as long as that one is by then,
// the median of seven, since shared cores have slow spells.
double decode_step_ms(bench::EngineDriver& driver) {
    std::vector<double> steps;
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        const Request request = bench::random_request(seed, 16, 400, driver.engine().model().vocab);
        const double step = bench::median(driver.run({request})[0].gaps_ms());
        if (seed > 1) steps.push_back(step);   // the first warms up
    }
    return bench::median(steps);
}

struct Round {
    std::vector<double> gaps;   // of the running stream that end while the inserted prompt is unfinished
    double ttft_ms = 0;
    std::vector<StepRecord> steps;   // of the device meanwhile
    std::vector<double> plain;  // gaps of a stream alone, right after
};

Round insert_once(bench::EngineDriver& driver, const Options& options, uint64_t seed) {
    const int64_t vocab = driver.engine().model().vocab;
    const Request base = bench::random_request(seed, 16, 4000, vocab);
    const Request document = bench::random_request(seed + 1, options.prompt, 1, vocab);
    auto [stream, inserted] = driver.insert(base, 48, document, 8);
    Round round;
    round.ttft_ms = inserted.result.timings.ttft_ms;
    const int64_t first = inserted.ready_ns.front();
    const int64_t from = first - static_cast<int64_t>(round.ttft_ms * 1e6);
    for (size_t i = 1; i < stream.ready_ns.size(); ++i) {
        if (stream.ready_ns[i] < from || stream.ready_ns[i] > first) continue;
        round.gaps.push_back(static_cast<double>(stream.ready_ns[i] - stream.ready_ns[i - 1]) / 1e6);
    }
    for (const StepRecord& step : driver.engine().recorder()) {
        const auto seen = static_cast<int64_t>(step.seen_ns);
        if (seen > from && seen <= first) round.steps.push_back(step);
    }
    round.plain = driver.run({bench::random_request(seed + 2, 16, 256, vocab)})[0].gaps_ms();
    return round;
}

/// What the machine does to a step of nothing but arithmetic on all threads, which meet at its end: its 98th percentile over its median.
/// No policy that keeps 98 gaps in a hundred can use more than the inverse of that of a promise.
double machine_p98_over_p50(int threads, int num_steps) {
    constexpr int kRounds = 5'000'000;   // about ten milliseconds
    std::vector<double> steps;
    std::barrier<> meet(threads);
    std::atomic<double> sink = 0;
    const auto work = [&](bool keeps_time) {
        for (int i = 0; i < num_steps; ++i) {
            meet.arrive_and_wait();
            const auto begin = std::chrono::steady_clock::now();
            double x = 1;
            for (int k = 0; k < kRounds; ++k) x = x * 1.0000001 + 1e-9;
            sink.store(x, std::memory_order_relaxed);
            meet.arrive_and_wait();
            if (keeps_time) steps.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
    };
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work, false);
    work(true);
    return bench::quantile(steps, 0.98) / bench::median(steps);
}

double device_ms(const StepRecord& step) { return static_cast<double>(step.end_ns - step.begin_ns) / 1e6; }

double share_over(const std::vector<double>& gaps, double promise_ms) {
    const auto late = std::count_if(gaps.begin(), gaps.end(), [&](double gap) { return gap > promise_ms; });
    return gaps.empty() ? 0.0 : static_cast<double>(late) / static_cast<double>(gaps.size());
}

// Steps of one insertion as the flight recorder saw them: what the model predicted, what the budget was, what came of it.
void write_steps(const std::string& path, const std::string& policy, const std::vector<StepRecord>& steps) {
    std::ofstream out(path, std::ios::app);
    for (size_t i = 1; i < steps.size(); ++i) {
        const StepRecord& s = steps[i];
        out << policy << ',' << s.step << ',' << s.num_decode_rows << ',' << s.num_prefill_rows << ',' << s.predicted_ms << ','
            << s.budget_ms << ',' << device_ms(s) << ',' << static_cast<double>(s.seen_ns - steps[i - 1].seen_ns) * 1e-6 << ','
            << static_cast<double>(s.seen_ns - s.launched_ns) * 1e-6 << ',' << static_cast<double>(s.host_ns) * 1e-6 << '\n';
    }
}

// What the steps with a slice made of the promise, and which of the late ones no slice explains: the machine stood still.
void add_steps(const std::vector<Round>& rounds, double promise_ms, boost::json::object& out) {
    constexpr double kStall = 1.3;   // times the prediction
    size_t count = 0, late = 0, stalled = 0;
    double used = 0, rows = 0;
    for (const Round& round : rounds) {
        for (const StepRecord& step : round.steps) {
            ++count;
            used += device_ms(step) / promise_ms;
            rows += step.num_prefill_rows;
            if (device_ms(step) <= promise_ms) continue;
            ++late;
            stalled += device_ms(step) > kStall * step.predicted_ms ? 1 : 0;
        }
    }
    if (count == 0) return;
    const auto all = static_cast<double>(count);
    out["slice_rows_mean"] = rows / all;
    out["promise_used"] = used / all;
    out["late_steps_share"] = static_cast<double>(late) / all;
    out["late_steps_stalled_share"] = static_cast<double>(stalled) / all;
}

boost::json::object summary(const Policy& policy, const std::vector<Round>& rounds, double unsplit_ms) {
    std::vector<double> gaps, ttft, shares, plain;
    for (const Round& round : rounds) {
        gaps.insert(gaps.end(), round.gaps.begin(), round.gaps.end());
        plain.insert(plain.end(), round.plain.begin(), round.plain.end());
        ttft.push_back(round.ttft_ms);
        shares.push_back(share_over(round.gaps, policy.itl_ms));
    }
    boost::json::object out;
    out["policy"] = policy.name;
    out["itl_ms"] = policy.itl_ms;
    out["gaps"] = gaps.size();
    out["late_share"] = share_over(gaps, policy.itl_ms);
    out["late_share_median_round"] = bench::median(shares);
    out["gap_p50_ms"] = bench::median(gaps);
    out["gap_p99_ms"] = bench::quantile(gaps, 0.99);
    out["gap_max_ms"] = *std::max_element(gaps.begin(), gaps.end());
    out["ttft_ms"] = bench::median(ttft);
    out["ttft_over_unsplit"] = bench::median(ttft) / unsplit_ms;
    out["plain_gap_p50_ms"] = bench::median(plain);
    out["plain_late_share"] = share_over(plain, policy.itl_ms);
    // A plain step that takes as much longer than usual as a mixed one may over its prediction: what the machine does to any step.
    out["plain_over_1.3_share"] = share_over(plain, 1.3 * bench::median(plain));
    add_steps(rounds, policy.itl_ms, out);
    return out;
}

std::vector<Policy> make_policies(const Options& options, double step_ms) {
    std::vector<Policy> policies;
    const double reference = options.multiples.front() * step_ms;
    policies.push_back({"unsplit", options.prompt, reference});
    for (const double multiple : options.multiples) {
        policies.push_back({"budget " + std::to_string(multiple).substr(0, 4) + " x step", 0, multiple * step_ms});
    }
    for (const int chunk : options.chunks) policies.push_back({"chunk " + std::to_string(chunk), chunk, reference});
    return policies;
}

boost::json::object run(const Options& options, int argc, char** argv) {
    boost::json::object result = bench::result_head(argc, argv);
    double step_ms = 0;
    {
        bench::EngineDriver driver(make_config(options, {"plain", 0, 1000}));
        step_ms = decode_step_ms(driver);
    }
    const std::vector<Policy> policies = make_policies(options, step_ms);
    std::vector<std::unique_ptr<bench::EngineDriver>> drivers;
    for (const Policy& policy : policies) {
        drivers.push_back(std::make_unique<bench::EngineDriver>(make_config(options, policy)));
        Options warm = options;
        warm.prompt = std::min(options.prompt, 1000);
        insert_once(*drivers.back(), warm, 7);
    }
    std::vector<std::vector<Round>> rounds(policies.size());
    std::mt19937_64 chance(12345);
    for (int repeat = 0; repeat < options.repeat; ++repeat) {
        std::vector<size_t> order(policies.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::shuffle(order.begin(), order.end(), chance);
        for (const size_t i : order) rounds[i].push_back(insert_once(*drivers[i], options, 100 + static_cast<uint64_t>(repeat)));
    }
    for (size_t i = 0; i < policies.size() && !options.steps.empty(); ++i) {
        write_steps(options.steps, policies[i].name, drivers[i]->engine().recorder());
    }
    std::vector<double> unsplit;
    for (const Round& round : rounds[0]) unsplit.push_back(round.ttft_ms);
    result["threads"] = options.threads;
    result["prompt_tokens"] = options.prompt;
    result["decode_step_ms"] = step_ms;
    result["machine_step_p98_over_p50"] = machine_p98_over_p50(options.threads, 200);
    boost::json::array table;
    for (size_t i = 0; i < policies.size(); ++i) table.push_back(summary(policies[i], rounds[i], bench::median(unsplit)));
    result["policies"] = std::move(table);
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("a long prompt inserted beside a running stream");
    app.add_option("--model", options.model, "model file or folder");
    app.add_option("--device", options.device, "cpu, cuda or sim");
    app.add_option("--threads", options.threads, "device threads");
    app.add_option("--prompt", options.prompt, "tokens of the inserted prompt");
    app.add_option("--repeat", options.repeat, "insertions a policy");
    app.add_option("--multiple", options.multiples, "promised gaps, in plain decode steps");
    app.add_option("--chunk", options.chunks, "fixed chunks to compare with");
    app.add_option("--steps", options.steps, "file that the steps of each policy are appended to, as CSV");
    app.add_option("--output", options.output, "result file; standard output if not given");
    CLI11_PARSE(app, argc, argv);
    return bench::write_result(options.output, [&] { return run(options, argc, argv); });
}
