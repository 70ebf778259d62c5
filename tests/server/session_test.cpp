// Both WebSocket sessions over a socket that the test opens and shuts: what is long is parsed on the worker, and a client that does
// not read is read no further once enough ended requests wait for it.
#include <boost/asio/co_spawn.hpp>
#include <string>
#include <thread>

#include "catch.h"
#include "server/fake_socket.h"
#include "server/loaded_state.h"
#include "server/responses_session.h"
#include "server/stream_session.h"

using namespace takt;
using namespace takt::server;

namespace {

/// A session that runs on a fake socket until the socket breaks.
template <class Session>
class Running {
public:
    explicit Running(LoadedState& host) : host_(host), socket(host.io), session_(host.state, socket, Identity()) {
        asio::co_spawn(host.io, session_.run(), [this](std::exception_ptr problem) {
            threw = problem != nullptr;
            ended = true;
        });
    }
    ~Running() {
        socket.break_now();
        if (!host_.run_until([this] { return ended; })) std::abort();   // it is still named by handlers
    }

private:
    LoadedState& host_;

public:
    FakeSocket socket;
    bool ended = false, threw = false;

private:
    Session session_;
};

std::string padded(const std::string& type, size_t bytes) {
    return R"({"type":")" + type + R"(","pad":")" + std::string(bytes, 'x') + "\"}";
}

template <class Session>
void check_long_frames(const std::string& type) {
    LoadedState host;
    Running<Session> running(host);
    running.socket.allow(10);
    host.hold_worker();
    running.socket.receive(padded(type, 1 << 20));
    host.run_until_still([&] { return running.socket.written.size(); });
    CHECK(running.socket.num_read == 1);
    CHECK(running.socket.written.empty());   // the worker has it, and the worker is busy
    host.release_worker();
    CHECK(host.run_until([&] { return running.socket.written.size() == 1; }));
    running.socket.receive(padded(type, 10));   // short ones need no worker
    CHECK(host.run_until([&] { return running.socket.written.size() == 2; }));
    CHECK_FALSE(running.threw);
}

/// Sends `count` frames that are refused or end at once to a session whose socket takes nothing; returns how many it read.
template <class Session, class Frame>
int num_read_of(int count, Frame frame) {
    LoadedState host({"model.max_context=64", "scheduler.max_running=1", "scheduler.max_waiting=2"});
    Running<Session> running(host);
    for (int i = 0; i < count; ++i) running.socket.receive(frame(std::to_string(i)));
    host.run_until_still([&] { return running.socket.num_read; });
    const int num_read = running.socket.num_read;
    running.socket.allow(100000);
    CHECK(host.run_until([&] { return running.socket.num_read == count; }));   // it goes on when its client reads
    return num_read;
}

constexpr int kFrames = 2000;
constexpr int kMostRead = 600;   // 256 that have ended, the one that waits, and those on their way, more the slower the machine

}  // namespace

TEST_CASE("work for the worker runs on another thread, and what follows it on the first one") {
    LoadedState host;
    std::thread::id worked, resumed;
    const auto visit = [](ServerState& state, std::thread::id& at_work, std::thread::id& after) -> asio::awaitable<void> {
        const std::function<std::thread::id()> where = [] { return std::this_thread::get_id(); };
        at_work = co_await on_worker<std::thread::id>(state, where);
        after = std::this_thread::get_id();
    };
    asio::co_spawn(host.io, visit(host.state, worked, resumed), [](std::exception_ptr) {});
    REQUIRE(host.run_until([&] { return resumed != std::thread::id(); }));
    CHECK(worked != std::this_thread::get_id());
    CHECK(resumed == std::this_thread::get_id());
}

TEST_CASE("a long frame of the native protocol is parsed on the worker") { check_long_frames<StreamSession>("unknown"); }

TEST_CASE("a long frame of the Responses dialect is parsed on the worker") { check_long_frames<ResponsesSession>("unknown"); }

TEST_CASE("ended requests that wait for a client who does not read are bounded") {
    const int num_read = num_read_of<StreamSession>(kFrames, [](const std::string& id) {
        return R"({"type":"generate","id":")" + id + R"(","prompt":")" + std::string(100, 'x') + "\"}";
    });
    CHECK(num_read > 200);
    CHECK(num_read <= kMostRead);
}

TEST_CASE("ended responses that wait for a client who does not read are bounded, whatever lanes it names") {
    const int refused = num_read_of<ResponsesSession>(kFrames, [](const std::string& id) {
        return R"({"type":"response.create","stream_id":")" + id + R"(","input":")" + std::string(100, 'x') + "\"}";
    });
    CHECK(refused > 200);
    CHECK(refused <= kMostRead);
    const int empty = num_read_of<ResponsesSession>(kFrames, [](const std::string& id) {
        return R"({"type":"response.create","generate":false,"input":"x","stream_id":")" + id + "\"}";
    });
    CHECK(empty > 200);
    CHECK(empty <= kMostRead);
}
