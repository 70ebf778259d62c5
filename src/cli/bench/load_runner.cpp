// Closed and open loops.
#include "cli/bench/load_runner.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace takt::cli {

namespace {

std::vector<RequestSample> take_samples(const std::vector<std::shared_ptr<LoadRun>>& runs) {
    std::vector<RequestSample> out;
    out.reserve(runs.size());
    for (const auto& run : runs) out.push_back(std::move(run->sample));
    return out;
}

}  // namespace

LoadRunner::LoadRunner(asio::io_context& io, std::uint64_t origin_ns)
    : io_(io), origin_ns_(origin_ns), tasks_(io.get_executor(), [this](std::exception_ptr problem) { problem_ = problem; }) {}

std::shared_ptr<LoadRun> LoadRunner::make_run(double due_s) {
    auto run = std::make_shared<LoadRun>(io_.get_executor());
    run->sample.due_s = due_s;
    run->stopping = interrupted_;
    return run;
}

asio::awaitable<void> LoadRunner::follow(LoadClient& client, LoadRequest request, std::shared_ptr<LoadRun> run) {
    running_.insert(run);
    // Every prompt is its own, so that no prefix cache shortens a prefill.
    request.seed = request.seed * 1'000'003 + next_seed_++;
    co_await client.run(request, run);
    running_.erase(run);
}

std::shared_ptr<LoadRun> LoadRunner::start(LoadClient& client, LoadRequest request) {
    std::shared_ptr<LoadRun> run = make_run(now_s());
    tasks_.spawn(follow(client, request, run));
    return run;
}

asio::awaitable<void> LoadRunner::work(LoadClient& client, int& left, LoadRequest model, std::vector<std::shared_ptr<LoadRun>>& runs) {
    while (left > 0 && !interrupted_) {
        --left;
        runs.push_back(make_run(now_s()));
        std::shared_ptr<LoadRun> run = runs.back();
        co_await follow(client, model, run);
    }
}

asio::awaitable<std::vector<RequestSample>> LoadRunner::closed(LoadClient& client, int concurrency, int count, LoadRequest model) {
    std::vector<std::shared_ptr<LoadRun>> runs;
    int left = count;
    for (int i = 0; i < concurrency; ++i) tasks_.spawn(work(client, left, model, runs));
    co_await tasks_.empty();
    if (problem_) std::rethrow_exception(problem_);
    co_return take_samples(runs);
}

asio::awaitable<std::vector<RequestSample>> LoadRunner::open(LoadClient& client, const std::vector<BenchArrival>& arrivals,
                                                             LoadRequest model) {
    std::vector<std::shared_ptr<LoadRun>> runs;
    asio::steady_timer timer(io_);
    const double begin_s = now_s();
    for (const BenchArrival& arrival : arrivals) {
        // Short waits, so that an interrupt is seen.
        for (double wait_s = begin_s + arrival.at_s - now_s(); wait_s > 0 && !interrupted_; wait_s = begin_s + arrival.at_s - now_s()) {
            timer.expires_after(std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(wait_s, 0.1) * 1e9)));
            auto waited = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
            static_cast<void>(waited);
        }
        if (interrupted_) break;
        LoadRequest request = model;
        request.prompt_tokens = arrival.prompt_tokens;
        request.max_tokens = arrival.max_tokens;
        runs.push_back(make_run(begin_s + arrival.at_s));
        tasks_.spawn(follow(client, request, runs.back()));
    }
    co_await tasks_.empty();
    if (problem_) std::rethrow_exception(problem_);
    co_return take_samples(runs);
}

void LoadRunner::interrupt() {
    interrupted_ = true;
    for (const auto& run : running_) run->stop();
}

}  // namespace takt::cli
