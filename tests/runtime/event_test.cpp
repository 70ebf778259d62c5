// EventQueue: waiters complete by post, in the order of their events, never inside poll or wait, and with the stream's error.
#include "runtime/event.h"

#include <vector>

#include "catch.h"

using namespace takt;

namespace {

/// A stream whose progress the test decides.
class HandStream final : public Stream {
public:
    explicit HandStream(uint32_t id) : id_(id) {}
    [[nodiscard]] uint32_t id() const override { return id_; }
    [[nodiscard]] Device& device() override { std::abort(); }
    Status copy(void*, const void*, size_t) override { return {}; }
    Status fill(void*, uint8_t, size_t) override { return {}; }
    Event record() override { return {id_, ++recorded_}; }
    Status wait(Event) override { return {}; }
    Status stamp(uint64_t*, const int32_t*, size_t) override { return {}; }
    Status begin_capture() override { return {}; }
    Result<std::unique_ptr<Graph>> end_capture() override { return Error{"none"}; }
    Status launch(Graph&) override { return {}; }
    [[nodiscard]] uint64_t completed() override { return done; }
    [[nodiscard]] Status error() override { return failure; }
    Status synchronize() override { return {}; }

    uint64_t done = 0;
    Status failure;

private:
    const uint32_t id_;
    uint64_t recorded_ = 0;
};

}  // namespace

TEST_CASE("waiters of reached events are posted in order of their events") {
    net::io_context io;
    HandStream stream(3);
    EventQueue queue(io);
    queue.add_stream(stream);
    std::vector<int> order;
    const Event first = stream.record();
    const Event second = stream.record();
    const Event third = stream.record();
    const auto wait = [&](Event event, int name) {
        queue.async_wait(event, [&order, name](Status status) {
            CHECK(status.ok());
            order.push_back(name);
        });
    };
    wait(third, 3);
    wait(first, 1);
    wait(second, 2);
    wait(first, 11);
    CHECK_FALSE(queue.empty());
    CHECK_FALSE(queue.poll());
    stream.done = 2;
    CHECK(queue.poll());
    CHECK(order.empty());   // posted, not called
    io.run();
    CHECK(order == std::vector<int>{1, 11, 2});
    CHECK_FALSE(queue.poll());
    stream.done = 3;
    CHECK(queue.poll());
    CHECK(queue.empty());
    io.restart();
    io.run();
    CHECK(order == std::vector<int>{1, 11, 2, 3});
}

TEST_CASE("a wait on an event already reached still completes by post") {
    net::io_context io;
    HandStream stream(1);
    EventQueue queue(io);
    queue.add_stream(stream);
    const Event event = stream.record();
    stream.done = 1;
    bool called = false;
    queue.async_wait(event, [&](Status) { called = true; });
    CHECK_FALSE(called);
    CHECK(queue.poll());
    CHECK_FALSE(called);
    io.run();
    CHECK(called);
}

TEST_CASE("streams are told apart, and a failed one ends its waiters with its error") {
    net::io_context io;
    HandStream good(1), bad(2);
    EventQueue queue(io);
    queue.add_stream(good);
    queue.add_stream(bad);
    int good_code = 99, bad_code = 99;
    queue.async_wait(good.record(), [&](Status s) { good_code = s.code; });
    queue.async_wait(bad.record(), [&](Status s) { bad_code = s.code; });
    bad.failure = {kStatusDeviceLost, "gone"};
    bad.done = 1;
    CHECK(queue.poll());
    io.run();
    CHECK(good_code == 99);
    CHECK(bad_code == kStatusDeviceLost);
    good.done = 1;
    CHECK(queue.poll());
    io.restart();
    io.run();
    CHECK(good_code == 0);
    CHECK(queue.empty());
}
