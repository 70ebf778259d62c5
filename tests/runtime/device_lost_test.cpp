// An engine whose GPU is lost under it: every request ends with device_lost, new ones are refused, health says so, nothing hangs. In a
// process of its own, since the context does not come back. Needs a CUDA device and a model file named by TAKT_TEST_MODEL.
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <takt/takt.h>

#include "catch.h"
#include "conformance/on_every_device.h"

namespace {

using namespace takt;

std::string model_path() {
    const char* path = std::getenv("TAKT_TEST_MODEL");
    return path == nullptr ? "" : path;
}

Request endless(int32_t first_token) {
    Request r;
    r.tokens = std::vector<int32_t>{first_token, 300, 301};
    r.max_tokens = 2000;
    r.ignore_eos = true;
    return r;
}

/// Whether the stream ends with device_lost before long.
bool ends_lost(Reply& reply) {
    for (;;) {
        auto next = reply.async_next(boost::asio::use_future);
        if (next.wait_for(std::chrono::seconds(20)) != std::future_status::ready) return false;
        try {
            if (!next.get()) return false;
        } catch (const boost::system::system_error& error) {
            return error.code() == make_error_code(errc::device_lost);
        }
    }
}

}  // namespace

TEST_CASE("a lost device ends every request in words and hangs nobody") {
    if (model_path().empty()) {
        SUCCEED("skipped: TAKT_TEST_MODEL names no model");
        return;
    }
    conformance::in_child_with_cuda("[cuda-lost]");
}

TEST_CASE("cuda alone: the device is lost under an engine", "[.cuda-lost]") {
    boost::asio::io_context io;
    auto work = boost::asio::make_work_guard(io);
    std::thread thread([&] { io.run(); });
    {
        const std::vector<std::string> set{"device.kind=cuda", "model.path='" + model_path() + "'", "model.max_context=2048"};
        Engine engine = Engine::async_load(io.get_executor(), load_config("", set), boost::asio::use_future).get();
        std::vector<Reply> replies;
        for (int32_t i = 0; i < 8; ++i) {
            replies.push_back(engine.async_submit(endless(256 + i), boost::asio::use_future).get());
            CHECK(replies.back().async_next(boost::asio::use_future).get().has_value());
        }
        CHECK_FALSE(engine.health().device_lost);
        // Another device object over the same context: its failure is everybody's.
        const auto rig = conformance::make_rig(conformance::RigKind::cuda, true);
        REQUIRE(rig != nullptr);
        {
            const auto stream = rig->device().stream(0).value();
            rig->fail(*stream);
            (void)stream->synchronize();
        }
        for (Reply& reply : replies) CHECK(ends_lost(reply));
        CHECK(engine.health().device_lost);
        CHECK_THROWS_AS(engine.async_submit(endless(400), boost::asio::use_future).get(), boost::system::system_error);
        replies.clear();
    }
    work.reset();
    thread.join();
}
