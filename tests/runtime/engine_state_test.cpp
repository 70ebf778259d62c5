// The doors of an engine that goes away: whatever was asked of it is answered exactly once, and a reply that outlives it is harmless.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <takt/takt.h>

#include "catch.h"

namespace {

using namespace takt;

struct Host {
    boost::asio::io_context io;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
    std::thread thread{[this] { io.run(); }};
    Engine engine = load();

    Engine load() {
        const Config config = load_config("", {"device.kind=sim", "sim.scale=0"});
        return Engine::async_load(io.get_executor(), config, boost::asio::use_future).get();
    }

    ~Host() {
        engine = Engine();
        work.reset();
        thread.join();
    }
};

Request request_of(size_t prompt_bytes) {
    Request r;
    r.prompt = std::string(prompt_bytes, 'x');
    r.max_tokens = 1000;
    r.ignore_eos = true;
    return r;
}

}  // namespace

TEST_CASE("submissions that wait for the tokeniser are answered when the engine is destroyed") {
    int num_cancelled = 0;
    for (int round = 0; round < 5; ++round) {
        Host host;
        std::vector<std::future<Reply>> submitted;
        for (int i = 0; i < 200; ++i) submitted.push_back(host.engine.async_submit(request_of(50'000), boost::asio::use_future));
        host.engine = Engine();
        for (auto& future : submitted) {
            REQUIRE(future.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
            try {
                Reply reply = future.get();
            } catch (const boost::system::system_error& error) {   // a broken promise would be another exception
                REQUIRE(error.code() == make_error_code(errc::cancelled));
                ++num_cancelled;
            }
        }
    }
    CHECK(num_cancelled > 0);
}

TEST_CASE("a reply that outlives its engine ends, and its calls do nothing") {
    Host host;
    Reply reply = host.engine.async_submit(request_of(10), boost::asio::use_future).get();
    (void)reply.async_next(boost::asio::use_future).get();
    host.engine = Engine();
    while (reply.async_next(boost::asio::use_future).get()) {
    }
    REQUIRE(reply.result().has_value());
    CHECK((reply.result()->reason == FinishReason::cancelled || reply.result()->reason == FinishReason::length));
    reply.cancel();
    CHECK_FALSE(reply.try_next().has_value());
}

TEST_CASE("a drain that the engine's end overtakes completes") {
    Host host;
    Reply reply = host.engine.async_submit(request_of(10), boost::asio::use_future).get();
    auto drained = host.engine.async_drain(std::chrono::steady_clock::time_point::max(), boost::asio::use_future);
    host.engine = Engine();
    REQUIRE(drained.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
    try {
        drained.get();
    } catch (const boost::system::system_error&) {   // an error is an answer too
    }
}
