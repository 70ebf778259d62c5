// What the public headers promise about threads: one engine is used by many at once, each reply by one at a time, and whatever was asked
// is answered exactly once, also by an engine that ends meanwhile. Its worth is under the thread sanitizer.
#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include <takt/takt.h>

#include "catch.h"
#include "model/synthetic_gguf.h"
#include "temporary_folder.h"

namespace {

using namespace takt;
namespace asio = boost::asio;

/// An io_context of its own on a thread of its own, as an embedding program has it.
class Context {
public:
    ~Context() {
        work_.reset();
        thread_.join();
    }
    asio::io_context io;

private:
    asio::executor_work_guard<asio::io_context::executor_type> work_{io.get_executor()};
    std::thread thread_{[this] { io.run(); }};
};

Engine load(asio::io_context& io) {
    const Config config = load_config("", {"device.kind=sim", "sim.scale=0", "scheduler.max_running=8"});
    return Engine::async_load(io.get_executor(), config, asio::use_future).get();
}

Request request_of(int max_tokens) {
    Request r;
    r.prompt = "threads";
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    return r;
}

/// What the threads found; a Catch assertion is for one thread.
struct Tally {
    std::atomic<int> waits{0}, completions{0}, wrong{0};
};

/// One wait whose completion is counted on `io`'s thread; the future is set with it.
std::future<boost::system::error_code> counted_wait(Reply& reply, asio::io_context& io, Tally& tally, asio::cancellation_slot slot = {}) {
    auto told = std::make_shared<std::promise<boost::system::error_code>>();
    std::future<boost::system::error_code> out = told->get_future();
    ++tally.waits;
    auto handler = [told, &tally](boost::system::error_code error, std::optional<Chunk>) {
        ++tally.completions;
        told->set_value(error);
    };
    reply.async_next(asio::bind_cancellation_slot(slot, asio::bind_executor(io.get_executor(), std::move(handler))));
    return out;
}

void read_to_the_end(Reply reply, int64_t num_tokens, Tally& tally) {
    int64_t tokens = 0;
    while (const auto chunk = reply.async_next(asio::use_future).get()) tokens += static_cast<int64_t>(chunk->tokens.size());
    const bool right = tokens == num_tokens && reply.result() && reply.result()->reason == FinishReason::length;
    if (!right) ++tally.wrong;
}

/// Each way to end a stream, over and over.
void use_engine(Engine& engine, Tally& tally) {
    Context own;
    for (int i = 0; i < 40; ++i) {
        Reply reply = engine.async_submit(request_of(i % 4 == 0 ? 50 : 100'000), asio::use_future).get();
        if (i % 4 == 0) {
            read_to_the_end(std::move(reply), 50, tally);
        } else if (i % 4 == 1) {   // cancelled by another thread while this one waits
            std::thread other([&reply] { reply.cancel(); });
            while (reply.async_next(asio::use_future).get()) {
            }
            other.join();
            if (reply.result()->reason != FinishReason::cancelled) ++tally.wrong;
        } else if (i % 4 == 2) {   // destroyed under an outstanding wait
            auto told = counted_wait(reply, own.io, tally);
            reply = Reply();
            const boost::system::error_code error = told.get();
            if (error && error != errc::cancelled) ++tally.wrong;
        } else {   // a wait given up by its slot: the request lives on
            asio::cancellation_signal signal;
            auto told = counted_wait(reply, own.io, tally, signal.slot());
            signal.emit(asio::cancellation_type::terminal);
            const boost::system::error_code error = told.get();
            if (error && error != asio::error::operation_aborted) ++tally.wrong;
            if (!reply.async_next(asio::use_future).get()) ++tally.wrong;
        }
    }
}

void look_at(const Engine& engine, const std::atomic<bool>& ended, Tally& tally) {
    while (!ended) {
        const std::vector<int32_t> tokens = engine.tokenize("look");
        const bool sound = engine.detokenize(tokens) == "look" && engine.health().loaded && !engine.metrics().series.empty() &&
                           engine.model().vocab > 0 && engine.memory_plan().fits;
        if (!sound) ++tally.wrong;
        (void)engine.recorder();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

}  // namespace

TEST_CASE("many threads submit, read, cancel and leave while others look on") {
    Context context;
    Tally tally;
    {
        Engine engine = load(context.io);
        std::atomic<bool> ended{false};
        std::thread observer([&] { look_at(engine, ended, tally); });
        std::vector<std::thread> users;
        for (int i = 0; i < 3; ++i) users.emplace_back([&] { use_engine(engine, tally); });
        for (std::thread& user : users) user.join();
        ended = true;
        observer.join();
    }
    CHECK(tally.wrong == 0);
    CHECK(tally.waits == 3 * 20);
    CHECK(tally.completions == tally.waits);
}

// The compute threads of a real device beside those of its users; int8 K and V have scales that others write behind the elements.
TEST_CASE("many threads read the same tokens from the CPU device with int8 K and V as one alone, while others leave") {
    const test::TemporaryFolder folder;
    const std::string path = folder.write("model.gguf", test::synthetic_gguf(test::SyntheticModel(test::SyntheticShape())));
    Context context;
    const Config config = load_config("", {"device.kind=cpu", "device.threads=2", "model.path=" + path, "kv.dtype=int8",
                                           "model.max_context=128", "scheduler.max_running=4"});
    Engine engine = Engine::async_load(context.io.get_executor(), config, asio::use_future).get();
    const auto submit = [&engine](int user) {
        Request request = request_of(40);
        request.prompt = {};
        request.tokens = std::vector<int32_t>(static_cast<size_t>(10 + 9 * user), 3 + user);
        request.sampling.temperature = 0;
        return engine.async_submit(std::move(request), asio::use_future).get();
    };
    const auto tokens_of = [](Reply reply) {
        std::vector<int32_t> tokens;
        while (const auto chunk = reply.async_next(asio::use_future).get()) {
            tokens.insert(tokens.end(), chunk->tokens.begin(), chunk->tokens.end());
        }
        return tokens;
    };
    std::vector<std::vector<int32_t>> alone;
    for (int user = 0; user < 3; ++user) alone.push_back(tokens_of(submit(user)));
    std::atomic<int> wrong{0};
    std::vector<std::thread> users;
    for (int user = 0; user < 3; ++user) {
        users.emplace_back([&, user] {
            for (int i = 0; i < 8; ++i) {
                if (i % 4 == 3) {
                    Reply left = submit(user);
                    left.async_next(asio::use_future).get();   // then nobody reads on
                } else if (tokens_of(submit(user)) != alone[static_cast<size_t>(user)]) {
                    ++wrong;
                }
            }
        });
    }
    for (std::thread& user : users) user.join();
    CHECK(alone.front().size() == 40);
    CHECK(wrong == 0);
}

TEST_CASE("an engine that is destroyed under the readers of other threads ends each of their streams once") {
    for (int round = 0; round < 5; ++round) {
        Context context;
        Tally tally;
        Engine engine = load(context.io);
        std::atomic<int> reading{0};
        std::vector<std::thread> readers;
        for (int i = 0; i < 3; ++i) {
            Reply reply = engine.async_submit(request_of(100'000), asio::use_future).get();
            readers.emplace_back([&, reply = std::move(reply)]() mutable {
                Context own;
                auto told = counted_wait(reply, own.io, tally);
                ++reading;
                while (!told.get() && !reply.result()) told = counted_wait(reply, own.io, tally);
                const bool right = reply.result() && reply.result()->reason == FinishReason::cancelled;
                if (!right) ++tally.wrong;
            });
        }
        while (reading < 3) std::this_thread::yield();
        engine = Engine();
        for (std::thread& reader : readers) reader.join();
        CHECK(tally.wrong == 0);
        CHECK(tally.completions == tally.waits);
    }
}
