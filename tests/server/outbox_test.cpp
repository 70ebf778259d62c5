// The outbox against a socket that the test opens and shuts: order, bounds, a dead socket frees every sender.
#include "server/outbox.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "catch.h"
#include "server/fake_socket.h"
#include "server/task_group.h"

using namespace takt::server;

namespace {

struct Sender {
    explicit Sender(asio::io_context& io) : slot(io.get_executor()) {}
    Outbox::Slot slot;
    int num_sent = 0;
    bool refused = false;
};

asio::awaitable<void> send_many(Outbox& outbox, Sender& sender, std::string name, int count) {
    for (int i = 0; i < count; ++i) {
        const bool sent = co_await outbox.send(sender.slot, name + std::to_string(i));
        if (!sent) {
            sender.refused = true;
            co_return;
        }
        ++sender.num_sent;
    }
}

}  // namespace

TEST_CASE("a slow socket holds each sender at one frame; frames keep their order and take turns") {
    asio::io_context io(1);
    FakeSocket socket(io);
    Outbox outbox(socket);
    TaskGroup tasks(io.get_executor(), TaskGroup::Sink());
    Sender a(io);
    Sender b(io);
    tasks.spawn(send_many(outbox, a, "a", 3));
    tasks.spawn(send_many(outbox, b, "b", 3));
    io.poll();
    // One frame is with the socket and one waits; nobody runs ahead.
    CHECK(a.num_sent + b.num_sent == 0);
    CHECK(outbox.busy());
    CHECK(socket.written.empty());
    socket.allow(6);
    io.poll();
    CHECK(socket.written == std::vector<std::string>{"a0", "b0", "a1", "b1", "a2", "b2"});
    CHECK(a.num_sent == 3);
    CHECK_FALSE(outbox.busy());
    CHECK(tasks.size() == 0);
}

TEST_CASE("a socket that dies frees every sender") {
    asio::io_context io(1);
    FakeSocket socket(io);
    Outbox outbox(socket);
    TaskGroup tasks(io.get_executor(), TaskGroup::Sink());
    std::vector<std::unique_ptr<Sender>> senders;
    for (int i = 0; i < 50; ++i) {
        senders.push_back(std::make_unique<Sender>(io));
        tasks.spawn(send_many(outbox, *senders.back(), "x", 10));
    }
    io.poll();
    CHECK(tasks.size() == 50);
    socket.break_now();
    io.poll();
    CHECK(tasks.size() == 0);
    CHECK(outbox.dead());
    for (const auto& sender : senders) CHECK(sender->refused);
}

TEST_CASE("a signal that came before its waiter is kept") {
    asio::io_context io(1);
    Signal signal(io.get_executor());
    int num_resumed = 0;
    const auto wait_twice = [](Signal& s, int& count) -> asio::awaitable<void> {
        co_await s.wait();
        ++count;
        co_await s.wait();
        ++count;
    };
    signal.notify();
    signal.notify();
    asio::co_spawn(io, wait_twice(signal, num_resumed), [](std::exception_ptr) {});
    io.poll();
    CHECK(num_resumed == 1);   // notifies do not add up
    signal.notify();
    io.poll();
    CHECK(num_resumed == 2);
}

TEST_CASE("a socket with room takes a frame at once, but never past those that wait") {
    asio::io_context io;
    FakeSocket socket(io);
    Outbox outbox(socket);
    TaskGroup group(io.get_executor(), [](std::exception_ptr) {});
    Sender a(io);
    socket.takes_at_once = true;
    CHECK(outbox.send_now("now"));
    CHECK(socket.written == std::vector<std::string>{"now"});
    socket.takes_at_once = false;
    CHECK_FALSE(outbox.send_now("later"));
    group.spawn(send_many(outbox, a, "a", 2));
    io.poll();
    CHECK(outbox.busy());
    socket.takes_at_once = true;
    CHECK_FALSE(outbox.send_now("before a0"));
    socket.allow(1);
    io.restart();
    io.poll();
    CHECK(socket.written == std::vector<std::string>{"now", "a0", "a1"});
    CHECK(a.num_sent == 2);
    outbox.fail();
    CHECK_FALSE(outbox.send_now("to the dead"));
}
