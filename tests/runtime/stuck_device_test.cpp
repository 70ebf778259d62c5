// An engine whose device never ends its step can be destroyed: within seconds, with a word about it, and nothing that the device
// may still touch is freed. A program of its own, since that memory is lost on purpose.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <atomic>
#include <future>
#include <string>
#include <thread>

#include <takt/takt.h>

#include "catch.h"

// The leak is what this program is about.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

namespace {

using namespace takt;

Request endless() {
    Request r;
    r.prompt = "never";
    r.max_tokens = 1000;
    r.ignore_eos = true;
    return r;
}

}  // namespace

TEST_CASE("an engine whose device is stuck is destroyed within its bound, and says what it leaves behind") {
    boost::asio::io_context io;
    auto work = boost::asio::make_work_guard(io);
    std::thread thread([&] { io.run(); });
    std::atomic<int> num_left{0};
    Config config = load_config("", {"device.kind=sim", "sim.scale=1000000", "sim.noise=0"});   // a step takes an hour
    config.log = [&](const LogRecord& record) {
        if (record.message.find("did not end its step") != std::string_view::npos) ++num_left;
    };
    Engine engine = Engine::async_load(io.get_executor(), config, boost::asio::use_future).get();
    Reply reply = engine.async_submit(endless(), boost::asio::use_future).get();
    for (int i = 0; i < 1000 && engine.health().expected_step_seconds == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(engine.health().expected_step_seconds > 0);   // the step is launched
    std::future<void> destroyed = std::async(std::launch::async, [&] { engine = Engine(); });
    REQUIRE(destroyed.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    CHECK(num_left == 1);
    CHECK_FALSE(reply.async_next(boost::asio::use_future).get().has_value());   // it has ended as a cancelled one
    CHECK(reply.result()->reason == FinishReason::cancelled);
    work.reset();
    thread.join();
}
