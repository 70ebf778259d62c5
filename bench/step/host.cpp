// Loading, streams and clocks of the bench host; see host.h.
#include "step/host.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <sys/resource.h>

#include <takt/percentiles.h>

#include <algorithm>
#include <chrono>

namespace takt::bench {

namespace asio = boost::asio;

namespace {

asio::awaitable<void> read_stream(Engine& engine, Request request, std::shared_ptr<StreamLog> log) {
    const auto refusal = std::make_shared<Refusal>();
    auto submitted = co_await engine.async_submit(std::move(request), refusal, asio::as_tuple(asio::use_awaitable));
    if (std::get<0>(submitted)) {
        log->error = std::get<0>(submitted).message() + ": " + refusal->message;
        log->done.store(true);
        co_return;
    }
    Reply reply = std::move(std::get<1>(submitted));
    for (bool cancelled = false;;) {
        auto next = co_await reply.async_next(asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(next)) {
            if (!cancelled) log->error = std::get<0>(next).message();
            break;
        }
        if (!std::get<1>(next)) break;
        const Chunk& chunk = *std::get<1>(next);
        for (int32_t token : chunk.tokens) {
            log->tokens.push_back(token);
            log->ready_ns.push_back(chunk.ready_ns);
        }
        for (const TokenLogprob& l : chunk.logprobs) {
            log->logprobs.push_back(l.logprob);
            if (l.top.size() < 2) continue;
            log->margins.push_back(l.top[0].logprob - l.top[1].logprob);
            log->seconds.push_back(l.top[1].token);
        }
        log->num_tokens.store(static_cast<int64_t>(log->tokens.size()));
        if (log->cancel.load() && !cancelled) {
            cancelled = true;
            reply.cancel();
        }
    }
    log->done.store(true);
}

}  // namespace

double StreamLog::first_ms() const {
    return ready_ns.empty() ? 0 : static_cast<double>(ready_ns.front() - submitted_ns) * 1e-6;
}

double StreamLog::largest_gap_ms(size_t from) const {
    double largest = 0;
    for (size_t i = from + 1; i < ready_ns.size(); ++i) {
        largest = std::max(largest, static_cast<double>(ready_ns[i] - ready_ns[i - 1]) * 1e-6);
    }
    return largest;
}

Host::Host(std::vector<std::string> set) {
    const int64_t begin = steady_ns();
    try {
        engine_ = Engine::async_load(io_.get_executor(), load_config("", set), asio::use_future).get();
    } catch (...) {
        work_.reset();
        thread_.join();
        throw;
    }
    load_seconds_ = static_cast<double>(steady_ns() - begin) * 1e-9;
}

Host::~Host() {
    engine_ = Engine();
    work_.reset();
    thread_.join();
}

std::shared_ptr<StreamLog> Host::start(std::vector<int32_t> prompt, int max_tokens, Request base) {
    auto log = std::make_shared<StreamLog>();
    base.tokens = std::move(prompt);
    base.max_tokens = max_tokens;
    base.ignore_eos = true;
    base.sampling.temperature = 0;
    log->submitted_ns = steady_ns();
    const auto on_end = [log](std::exception_ptr error) {
        if (!error) return;
        log->error = "an exception";
        log->done.store(true);
    };
    asio::co_spawn(io_, read_stream(engine_, std::move(base), log), on_end);
    return log;
}

void Host::wait(const StreamLog& log, int64_t num_tokens) {
    while (!log.done.load() && log.num_tokens.load() < num_tokens) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

std::vector<int32_t> Host::run(const std::vector<int32_t>& prompt, int max_tokens) {
    const auto log = start(prompt, max_tokens);
    wait(*log);
    return log->tokens;
}

std::vector<int32_t> made_up_prompt(uint64_t seed, int length, int32_t vocab) {
    std::vector<int32_t> ids;
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < length; ++i) {
        state += 0x9e3779b97f4a7c15ull;
        uint64_t x = state;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        ids.push_back(256 + static_cast<int32_t>((x >> 33) % static_cast<uint64_t>(vocab - 256)));
    }
    return ids;
}

double process_cpu_seconds() {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t steady_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

double rank_of(std::vector<double> values, double share) { return percentile(values, share); }

}  // namespace takt::bench
