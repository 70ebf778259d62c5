// `takt bench`: checks its options, runs the loads against each server in turn, prints and writes what came out.
// One io_context on the main thread.
#include <takt/error.h>
#include <takt/short_turns.h>
#include <takt/simulate.h>
#include <takt/version.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <csignal>
#include <cstdio>

#include "cli/bench/insertion.h"
#include "cli/bench/options.h"
#include "cli/bench/plot.h"
#include "cli/bench/report.h"
#include "cli/clock.h"
#include "cli/command.h"
#include "cli/text_file.h"

namespace takt::cli {

namespace json = boost::json;

namespace {

constexpr int kDefaultConcurrency = 8;
// Streams outlive the insertion and are broken off when it is over. takt takes more tokens than its context holds as all that it holds.
constexpr int kInsertStreamTokens = 4096, kWholeContext = 10'000'000;
constexpr int kInsertedOutput = 8;
constexpr double kDefaultItlMs = 40;
constexpr double kDefaultTtftMs = 2000;

void check(const BenchOptions& options) {
    const bool insert = options.scenario == "insert";
    const int loads = (options.concurrency.empty() ? 0 : 1) + (options.rate ? 1 : 0) + (options.trace.empty() ? 0 : 1) + (insert ? 1 : 0);
    if (loads > 1) throw config_error("bench: found several loads, allowed one of --concurrency, --rate, --trace, --scenario");
    if (options.itl_factor && !insert) throw config_error("--itl-factor: allowed with --scenario insert");
    if (options.itl_factor && options.itl_ms) throw config_error("bench: found --itl-ms and --itl-factor, allowed one of them");
    for (const int concurrency : options.concurrency) {
        if (concurrency < 1) throw config_error("--concurrency: found " + std::to_string(concurrency) + ", allowed 1 up");
    }
    if (!options.profile.empty() && (loads > 0 || !options.urls.empty())) {
        throw config_error("--profile: measures a device without a server; found a load or --url beside it");
    }
}

// A run of the command. Everything on the io_context.
class Bench {
public:
    explicit Bench(const BenchOptions& options) : options_(options), signals_(io_, SIGINT, SIGTERM) {
        std::vector<std::string> urls = options.urls;
        if (urls.empty()) urls.emplace_back("ws://127.0.0.1:8480/v1/stream");
        for (const std::string& text : urls) {
            LoadSettings settings;
            settings.url = parse_bench_url(text);
            if (settings.url.tls) throw config_error("--url: " + text + ": TLS is not available in this version");
            settings.key = options.key;
            settings.model = options.model;
            settings.chat = options.api == "chat";
            settings.ignore_eos = !options.may_stop;
            settings.origin_ns = origin_ns_;
            names_.push_back(text);
            clients_.push_back(settings.url.websocket ? make_native_client(io_.get_executor(), settings)
                                                      : make_openai_client(io_.get_executor(), settings));
        }
        targets_.itl_ms = options.itl_ms.value_or(kDefaultItlMs);
        targets_.ttft_ms = options.ttft_ms.value_or(kDefaultTtftMs);
        panels_.resize(clients_.size());
    }

    int run() {
        ask_for_short_turns();   // on the server's machine: its gaps are to be measured, not this thread's wait for a core
        signals_.async_wait([this](const boost::system::error_code& ec, int) {
            if (!ec) runner_.interrupt();
        });
        std::exception_ptr problem;
        asio::co_spawn(io_, work(), [&](std::exception_ptr error) {
            problem = error;
            io_.stop();
        });
        io_.run();
        if (problem) std::rethrow_exception(problem);
        report();
        return runner_.interrupted() ? kInterrupted : kDone;
    }

private:
    asio::awaitable<void> work();
    asio::awaitable<void> load(std::size_t server, int round, int concurrency);
    asio::awaitable<void> insertions();
    asio::awaitable<double> plain_token_ms(InsertionPlan plan);
    [[nodiscard]] LoadRequest request_like(int prompt_tokens, int max_tokens) const;
    [[nodiscard]] int stream_tokens(std::size_t server) const;
    [[nodiscard]] Targets targets_of(std::size_t server) const;
    void keep_gaps(std::size_t server, const RequestSample& sample);
    void report();
    [[nodiscard]] json::object settings_json() const;

    BenchOptions options_;
    asio::io_context io_{1};
    asio::signal_set signals_;
    const std::uint64_t origin_ns_ = now_ns();
    LoadRunner runner_{io_, origin_ns_};
    std::vector<std::string> names_;
    std::vector<std::unique_ptr<LoadClient>> clients_;
    Targets targets_;
    std::vector<LoadPoint> load_points_;
    std::vector<InsertPoint> insert_points_;
    std::vector<GapPanel> panels_;
};

LoadRequest Bench::request_like(int prompt_tokens, int max_tokens) const {
    LoadRequest out;
    out.prompt_tokens = prompt_tokens;
    out.max_tokens = max_tokens;
    out.seed = options_.seed;
    out.itl_ms = options_.itl_ms;
    out.ttft_ms = options_.ttft_ms;
    return out;
}

int Bench::stream_tokens(std::size_t server) const {
    return options_.max_tokens.value_or(names_[server].starts_with("ws:") ? kWholeContext : kInsertStreamTokens);
}

// Over HTTP the promise that is asked for is an envelope.
Targets Bench::targets_of(std::size_t server) const {
    Targets out = targets_;
    out.envelope = (options_.itl_ms || options_.itl_factor) && !names_[server].starts_with("ws:");
    return out;
}

void Bench::keep_gaps(std::size_t server, const RequestSample& sample) {
    if (!options_.plot.empty()) panels_[server].gaps.insert(panels_[server].gaps.end(), sample.gaps.begin(), sample.gaps.end());
}

asio::awaitable<void> Bench::work() {
    for (const auto& client : clients_) co_await client->probe();
    if (options_.scenario == "insert") {
        co_await insertions();
        co_return;
    }
    std::vector<int> loads = options_.concurrency;
    if (loads.empty()) loads.push_back(kDefaultConcurrency);
    for (const int concurrency : loads) {
        for (int round = 1; round <= options_.repeat; ++round) {
            for (std::size_t server = 0; server < clients_.size() && !runner_.interrupted(); ++server) {
                co_await load(server, round, concurrency);
            }
        }
    }
}

asio::awaitable<void> Bench::load(std::size_t server, int round, int concurrency) {
    const int max_tokens = options_.max_tokens.value_or(128);
    const LoadRequest model = request_like(options_.prompt_tokens, max_tokens);
    LoadPoint point;
    point.url = names_[server];
    point.round = round;
    std::vector<RequestSample> samples;
    if (options_.rate) {
        point.offered = *options_.rate;
        char label[64];
        std::snprintf(label, sizeof(label), "%g /s %s", *options_.rate, options_.arrivals.c_str());
        point.load = label;
        std::vector<BenchArrival> arrivals = steady_arrivals(options_.num_requests, *options_.rate, options_.arrivals == "poisson",
                                                             options_.seed, options_.prompt_tokens, max_tokens);
        while (options_.seconds && !arrivals.empty() && arrivals.back().at_s > *options_.seconds) arrivals.pop_back();
        samples = co_await runner_.open(*clients_[server], arrivals, model);
    } else if (!options_.trace.empty()) {
        std::vector<BenchArrival> arrivals = trace_arrivals(read_trace(options_.trace), options_.time_scale);
        while (options_.seconds && !arrivals.empty() && arrivals.back().at_s > *options_.seconds) arrivals.pop_back();
        arrivals.resize(std::min(arrivals.size(), static_cast<std::size_t>(options_.num_requests)));
        const double span_s = arrivals.empty() ? 0 : arrivals.back().at_s;
        point.offered = span_s > 0 ? static_cast<double>(arrivals.size()) / span_s : 0;
        point.load = "trace";
        samples = co_await runner_.open(*clients_[server], arrivals, model);
    } else {
        point.offered = concurrency;
        point.load = std::to_string(concurrency) + " at once";
        samples = co_await runner_.closed(*clients_[server], concurrency, options_.num_requests, model);
    }
    for (const RequestSample& sample : samples) keep_gaps(server, sample);
    point.targets = targets_of(server);
    point.figures = point_figures(samples, point.targets);
    load_points_.push_back(std::move(point));
}

// What a token takes the first server's streams with nothing put in, in the median.
asio::awaitable<double> Bench::plain_token_ms(InsertionPlan plan) {
    plan.inserted.prompt_tokens = 1;
    plan.inserted.max_tokens = 1;
    std::vector<InsertRound> rounds;
    InsertRound round = co_await run_insertion(runner_, *clients_.front(), plan);
    rounds.push_back(std::move(round));
    co_return insert_figures(rounds, Targets()).plain_token_ms.p50;
}

asio::awaitable<void> Bench::insertions() {
    InsertionPlan plan;
    plan.num_streams = options_.num_streams;
    plan.stream = request_like(options_.prompt_tokens, stream_tokens(0));
    plan.inserted = request_like(options_.insert_tokens, kInsertedOutput);
    if (options_.itl_factor) {
        const double plain = co_await plain_token_ms(plan);
        targets_.itl_ms = plain * *options_.itl_factor;
        if (targets_.itl_ms <= 0) throw load_error(errc::internal, names_.front() + ": the streams gave no tokens");
        plan.stream.itl_ms = targets_.itl_ms;
    }
    std::vector<std::vector<InsertRound>> rounds(clients_.size());
    for (int round = 0; round < options_.repeat; ++round) {
        for (std::size_t server = 0; server < clients_.size() && !runner_.interrupted(); ++server) {
            plan.stream.max_tokens = stream_tokens(server);
            InsertRound one = co_await run_insertion(runner_, *clients_[server], plan);
            for (const RequestSample& stream : one.streams) keep_gaps(server, stream);
            const double end = one.inserted.has_first() ? one.inserted.first_s : one.inserted.end_s;
            panels_[server].shaded.emplace_back(one.inserted.sent_s, end);
            if (!one.inserted.error.empty() && !runner_.interrupted()) {
                throw load_error(errc::internal, names_[server] + ": the inserted request failed: " + one.inserted.error);
            }
            for (const RequestSample& stream : one.streams) {   // those that outlive the prompt are broken off
                if (stream.error.empty() || stream.last_s > end || runner_.interrupted()) continue;
                throw load_error(errc::internal, names_[server] + ": a stream failed: " + stream.error);
            }
            rounds[server].push_back(std::move(one));
        }
    }
    for (std::size_t server = 0; server < clients_.size(); ++server) {
        InsertPoint point;
        point.url = names_[server];
        point.targets = targets_of(server);
        point.figures = insert_figures(rounds[server], point.targets);
        insert_points_.push_back(std::move(point));
    }
}

json::object Bench::settings_json() const {
    json::object out;
    out["scenario"] = options_.scenario.empty() ? "load" : options_.scenario;
    out["itl_ms"] = targets_.itl_ms;
    out["ttft_ms"] = targets_.ttft_ms;
    out["prompt_tokens"] = options_.prompt_tokens;
    if (options_.max_tokens) out["max_tokens"] = *options_.max_tokens;
    out["requests"] = options_.num_requests;
    out["repeat"] = options_.repeat;
    out["seed"] = options_.seed;
    if (options_.scenario == "insert") {
        out["streams"] = options_.num_streams;
        out["insert_tokens"] = options_.insert_tokens;
        if (options_.itl_factor) out["itl_factor"] = *options_.itl_factor;
    } else if (!options_.trace.empty()) {
        out["trace"] = options_.trace;
        out["time_scale"] = options_.time_scale;
    } else if (options_.rate) {
        out["rate"] = *options_.rate;
        out["arrivals"] = options_.arrivals;
    }
    return out;
}

void Bench::report() {
    const bool insert = options_.scenario == "insert";
    const std::string table = insert ? insert_table(insert_points_) : load_table(load_points_);
    std::fputs(table.c_str(), stdout);
    if (!options_.json.empty()) {
        json::object out;
        out["takt"] = version();
        out["time"] = timestamp();
        out["settings"] = settings_json();
        json::array points;
        for (const LoadPoint& point : load_points_) points.push_back(load_json(point));
        for (const InsertPoint& point : insert_points_) points.push_back(insert_json(point));
        out["points"] = std::move(points);
        write_text_file(options_.json, json::serialize(out) + "\n");
    }
    if (options_.plot.empty()) return;
    for (std::size_t server = 0; server < panels_.size(); ++server) {
        panels_[server].title = "gap between tokens, " + names_[server];
        panels_[server].promise_ms = targets_.itl_ms;
    }
    write_text_file(options_.plot, gap_plot(panels_));
}

}  // namespace

int bench(const BenchOptions& options) {
    check(options);
    for (const std::string& path : {options.json, options.plot, options.profile}) check_writable(path);
    if (!options.profile.empty()) {
        write_text_file(options.profile, profile(read_config(options.config)));
        return kDone;
    }
    Bench run(options);
    return run.run();
}

}  // namespace takt::cli
