// EngineDriver and the small tools of the engine benches.
#include "engine_driver.h"

#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <thread>

#include <takt/percentiles.h>

namespace takt::bench {

namespace asio = boost::asio;

namespace {

void rethrow(std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
}

asio::awaitable<Reply> submit(Engine& engine, Request request) {
    const auto refusal = std::make_shared<Refusal>();
    auto submitted = co_await engine.async_submit(std::move(request), refusal, asio::as_tuple(asio::use_awaitable));
    if (std::get<0>(submitted)) throw std::runtime_error("refused: " + refusal->message);
    co_return std::move(std::get<1>(submitted));
}

// Reads until the end or until `enough` tokens; false at the end.
asio::awaitable<bool> read(Reply& reply, Stream& stream, size_t enough) {
    while (stream.ready_ns.size() < enough) {
        std::optional<Chunk> chunk = co_await reply.async_next(asio::use_awaitable);
        if (!chunk) {
            stream.result = reply.result().value();
            co_return false;
        }
        stream.ready_ns.insert(stream.ready_ns.end(), chunk->tokens.size(), chunk->ready_ns);
    }
    co_return true;
}

constexpr size_t to_the_end = static_cast<size_t>(-1);

asio::awaitable<void> read_whole(Engine& engine, Request request, Stream& stream) {
    Reply reply = co_await submit(engine, std::move(request));
    co_await read(reply, stream, to_the_end);
}

struct Insertion {
    Stream base, inserted;
};

asio::awaitable<void> read_both(Engine& engine, const Request& base, size_t after, const Request& inserted, size_t tail,
                                Insertion& out) {
    Reply stream = co_await submit(engine, base);
    co_await read(stream, out.base, after);
    bool done = false;
    auto executor = co_await asio::this_coro::executor;
    asio::co_spawn(executor, read_whole(engine, inserted, out.inserted), [&done](std::exception_ptr error) {
        done = true;
        rethrow(error);
    });
    size_t goal = after;
    bool running = true;
    while (running && !done) running = co_await read(stream, out.base, ++goal);
    if (running) co_await read(stream, out.base, out.base.ready_ns.size() + tail);
    stream.cancel();
    co_await read(stream, out.base, to_the_end);
}

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
    }
    return "unknown";
}

using Vector = uint64_t __attribute__((vector_size(64)));

// Sums a range with enough independent chains to keep the load ports busy.
uint64_t sum(const Vector* from, const Vector* to) {
    Vector a{}, b{}, c{}, d{};
    for (; from + 4 <= to; from += 4) {
        a += from[0];
        b += from[1];
        c += from[2];
        d += from[3];
    }
    const Vector all = a + b + c + d;
    return all[0] + all[1] + all[7];
}

}  // namespace

std::vector<double> Stream::gaps_ms() const {
    std::vector<double> gaps;
    for (size_t i = 1; i < ready_ns.size(); ++i) gaps.push_back(static_cast<double>(ready_ns[i] - ready_ns[i - 1]) / 1e6);
    return gaps;
}

EngineDriver::EngineDriver(Config config) {
    asio::co_spawn(
        io_,
        [&]() -> asio::awaitable<void> {
            engine_ = co_await Engine::async_load(io_.get_executor(), std::move(config), asio::use_awaitable);
        },
        rethrow);
    io_.run();
}

std::vector<Stream> EngineDriver::run(const std::vector<Request>& requests) {
    std::vector<Stream> streams(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) asio::co_spawn(io_, read_whole(engine_, requests[i], streams[i]), rethrow);
    io_.restart();
    io_.run();
    return streams;
}

std::pair<Stream, Stream> EngineDriver::insert(const Request& base, size_t after_tokens, const Request& inserted,
                                               size_t tail_tokens) {
    Insertion out;
    asio::co_spawn(io_, read_both(engine_, base, after_tokens, inserted, tail_tokens, out), rethrow);
    io_.restart();
    io_.run();
    return {std::move(out.base), std::move(out.inserted)};
}

Request random_request(uint64_t seed, int64_t prompt_tokens, int32_t max_tokens, int64_t vocab) {
    Request request;
    std::vector<int32_t> tokens(static_cast<size_t>(prompt_tokens));
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (int32_t& token : tokens) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        // The first ids of common vocabularies are control tokens.
        token = static_cast<int32_t>(256 + (state >> 33) % static_cast<uint64_t>(vocab - 512));
    }
    request.tokens = std::move(tokens);
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    return request;
}

double quantile(std::vector<double> values, double share) {
    if (values.empty()) throw std::runtime_error("no values to take a quantile of");
    return percentile(values, share);
}

double median(std::vector<double> values) {
    if (values.empty()) throw std::runtime_error("no values to take a median of");
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double read_bandwidth(int threads, size_t bytes, int rounds) {
    std::vector<Vector> buffer(bytes / sizeof(Vector), Vector{1, 2, 3, 4, 5, 6, 7, 8});
    const size_t part = buffer.size() / static_cast<size_t>(threads);
    std::vector<double> seconds(static_cast<size_t>(rounds));
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    std::barrier gather(threads);
    auto work = [&](int index) {
        const Vector* from = buffer.data() + part * static_cast<size_t>(index);
        for (double& round : seconds) {
            gather.arrive_and_wait();
            const auto begin = std::chrono::steady_clock::now();
            sums[static_cast<size_t>(index)] += sum(from, from + part);
            gather.arrive_and_wait();
            if (index == 0) round = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        }
    };
    std::vector<std::jthread> others;
    for (int index = 1; index < threads; ++index) others.emplace_back(work, index);
    work(0);
    others.clear();
    if (sums[0] == 0) throw std::runtime_error("the buffer was not read");
    return static_cast<double>(part * static_cast<size_t>(threads) * sizeof(Vector)) /
           *std::min_element(seconds.begin(), seconds.end());
}

BusyCores::BusyCores(int count) {
    for (int i = 0; i < count; ++i) {
        const pid_t child = fork();
        if (child < 0) throw std::runtime_error("fork failed");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile uint64_t n = 0;;) n = n + 1;
        }
        children_.push_back(child);
    }
}

BusyCores::~BusyCores() {
    for (const int child : children_) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
}

boost::json::object result_head(int argc, char** argv) {
    utsname system{};
    uname(&system);
    char date[32];
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
    std::string command;
    for (int i = 0; i < argc; ++i) {
        const std::string word = argv[i];
        // Folders of one machine say nothing to a reader.
        const size_t slash = word.rfind('/');
        command += (i == 0 ? "" : " ") + (slash == std::string::npos ? word : word.substr(slash + 1));
    }
    boost::json::object head;
    head["date"] = date;
    head["command"] = command;
    head["takt"] = std::string(version());
    head["compiler"] = __VERSION__;
    head["cpu"] = cpu_name();
    head["cores"] = static_cast<int>(std::thread::hardware_concurrency());
    head["kernel"] = system.release;
    return head;
}

int write_result(const std::string& path, const std::function<boost::json::object()>& measure) {
    try {
        const std::string text = boost::json::serialize(measure()) + "\n";
        if (path.empty()) {
            std::cout << text;
            return 0;
        }
        std::ofstream file(path);
        file << text << std::flush;
        if (!file) throw std::runtime_error("cannot write " + path);
    } catch (const std::exception& error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
    return 0;
}

}  // namespace takt::bench
