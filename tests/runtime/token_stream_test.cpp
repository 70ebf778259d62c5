// TokenStream: order, merging, pausing, the end, cancellation of a wait, abandonment, and one producer against one consumer on two
// threads.
#include "runtime/token_stream.h"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"

using namespace takt;
namespace net = boost::asio;

namespace {

Chunk chunk_of(int token) {
    Chunk c;
    c.text = std::to_string(token) + ",";
    c.tokens = {token};
    c.ready_ns = token;
    return c;
}

RequestResult result_of(FinishReason reason) {
    RequestResult r;
    r.reason = reason;
    return r;
}

struct Outcome {
    int calls = 0;
    boost::system::error_code error;
    std::optional<Chunk> chunk;
};

struct Fixture {
    net::io_context io;
    int resumed = 0;
    std::shared_ptr<TokenStream> stream = std::make_shared<TokenStream>(io.get_executor(), [this] { ++resumed; });

    void next(Outcome& out) {
        stream->async_next([&out](boost::system::error_code error, std::optional<Chunk> chunk) {
            ++out.calls;
            out.error = error;
            out.chunk = std::move(chunk);
        });
    }
    Outcome next_now() {
        Outcome out;
        next(out);
        CHECK(out.calls == 0);   // never inside the call
        io.restart();
        io.run();
        CHECK(out.calls == 1);
        return out;
    }
};

}  // namespace

TEST_CASE("chunks come in order, then the end, again and again") {
    Fixture f;
    f.stream->push(chunk_of(1));
    f.stream->push(chunk_of(2));
    f.stream->finish({}, result_of(FinishReason::length));
    CHECK_FALSE(f.stream->result().has_value());   // the reader has not seen the end
    CHECK(f.stream->has_ended());
    CHECK(f.next_now().chunk->text == "1,");
    CHECK(f.next_now().chunk->text == "2,");
    for (int i = 0; i < 2; ++i) {
        const Outcome end = f.next_now();
        CHECK_FALSE(end.error);
        CHECK_FALSE(end.chunk.has_value());
    }
    REQUIRE(f.stream->result().has_value());
    CHECK(f.stream->result()->reason == FinishReason::length);
    CHECK_FALSE(f.stream->push(chunk_of(3)));
    CHECK_FALSE(f.stream->try_next().has_value());
}

TEST_CASE("a wait completes with the chunk that is pushed, by post") {
    Fixture f;
    Outcome out;
    f.next(out);
    f.io.poll();
    CHECK(out.calls == 0);
    CHECK_FALSE(f.stream->push(chunk_of(7)));
    CHECK(out.calls == 0);
    f.io.restart();
    f.io.run();
    REQUIRE(out.chunk.has_value());
    CHECK(out.chunk->tokens == std::vector<int32_t>{7});
}

TEST_CASE("an outstanding wait keeps run() from returning") {
    Fixture f;
    Outcome out;
    f.next(out);
    std::thread producer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        f.stream->push(chunk_of(1));
    });
    f.io.run();
    producer.join();
    CHECK(out.calls == 1);
}

TEST_CASE("the first end stands, with its error") {
    Fixture f;
    Outcome out;
    f.next(out);
    f.stream->finish(errc::device_lost, result_of(FinishReason::error));
    f.stream->finish({}, result_of(FinishReason::stop));
    f.io.run();
    CHECK(out.calls == 1);
    CHECK(out.error == make_error_code(errc::device_lost));
    CHECK(f.next_now().error == make_error_code(errc::device_lost));
    CHECK(f.stream->result()->reason == FinishReason::error);
}

TEST_CASE("a second wait is refused and leaves the first alone") {
    Fixture f;
    Outcome first, second;
    f.next(first);
    f.next(second);
    CHECK_FALSE(f.stream->try_next().has_value());
    f.io.poll();
    CHECK(second.error == make_error_code(errc::bad_request));
    CHECK(first.calls == 0);
    f.stream->push(chunk_of(1));
    f.io.run();
    CHECK(first.chunk->text == "1,");
}

TEST_CASE("chunks that wait are merged, nothing is lost, and memory is bounded by tokens") {
    Fixture f;
    std::string expected, found;
    for (int i = 0; i < 100; ++i) {
        expected += chunk_of(i).text;
        f.stream->push(chunk_of(i));
    }
    f.stream->finish({}, {});
    size_t num_chunks = 0;
    std::vector<int32_t> tokens;
    int64_t last_ns = 0;
    while (auto chunk = f.stream->try_next()) {
        found += chunk->text;
        tokens.insert(tokens.end(), chunk->tokens.begin(), chunk->tokens.end());
        last_ns = chunk->ready_ns;
        ++num_chunks;
    }
    CHECK(found == expected);
    CHECK(num_chunks == TokenStream::kMaxChunks);
    CHECK(tokens.size() == 100);
    CHECK(tokens.back() == 99);
    CHECK(last_ns == 99);
}

TEST_CASE("the producer is told once to pause, and the reader resumes it once") {
    Fixture f;
    int told = 0;
    for (int i = 0; i < TokenStream::kPauseTokens + 50; ++i) told += f.stream->push(chunk_of(i)) ? 1 : 0;
    CHECK(told == 1);
    CHECK(f.resumed == 0);
    while (f.stream->try_next()) {
    }
    CHECK(f.resumed == 1);
    for (int i = 0; i < TokenStream::kPauseTokens; ++i) told += f.stream->push(chunk_of(i)) ? 1 : 0;
    CHECK(told == 2);
    while (f.next_now().chunk->tokens.back() != TokenStream::kPauseTokens - 1) {
    }
    CHECK(f.resumed == 2);
}

TEST_CASE("cancelling a wait ends the wait only") {
    Fixture f;
    net::cancellation_signal signal;
    boost::system::error_code ended;
    int calls = 0;
    const auto wait = [&] {
        f.stream->async_next(net::bind_cancellation_slot(
            signal.slot(), [&](boost::system::error_code e, std::optional<Chunk>) {
                ended = e;
                ++calls;
            }));
    };
    wait();
    signal.emit(net::cancellation_type::terminal);
    f.io.run();
    CHECK(calls == 1);
    CHECK(ended == net::error::operation_aborted);
    f.stream->push(chunk_of(1));
    CHECK(f.next_now().chunk->text == "1,");
    // A cancellation that comes after its wait has completed ends no later one.
    wait();
    f.stream->push(chunk_of(2));
    f.io.restart();
    f.io.run();
    CHECK(calls == 2);
    CHECK_FALSE(ended);
    Outcome later;
    f.next(later);
    signal.emit(net::cancellation_type::terminal);
    f.io.restart();
    f.io.poll();
    CHECK(later.calls == 0);
    f.stream->finish({}, {});
    f.io.run();
    CHECK(later.calls == 1);
}

TEST_CASE("an abandoned stream cancels the wait and drops what comes") {
    Fixture f;
    Outcome out;
    f.next(out);
    f.stream->abandon();
    f.io.run();
    CHECK(out.error == make_error_code(errc::cancelled));
    CHECK_FALSE(f.stream->push(chunk_of(1)));
    CHECK_FALSE(f.stream->try_next().has_value());
    CHECK(f.next_now().error == make_error_code(errc::cancelled));
}

TEST_CASE("producer and consumer on two threads: every token once and in order") {
    constexpr int kTokens = 20000;
    net::io_context io;
    auto work = net::make_work_guard(io);
    std::thread runner([&] { io.run(); });
    std::atomic<int> resumes{0};
    auto stream = std::make_shared<TokenStream>(io.get_executor(), [&] { ++resumes; });
    std::thread producer([stream, &resumes] {
        int pauses = 0;
        for (int i = 0; i < kTokens; ++i) {
            if (!stream->push(chunk_of(i))) continue;
            ++pauses;
            while (resumes.load() < pauses) std::this_thread::yield();   // as the engine does: no rows until the reader has drained
        }
        stream->finish({}, result_of(FinishReason::length));
    });
    int expected = 0;
    bool in_order = true;
    const auto next = [&stream] {
        std::promise<std::optional<Chunk>> promise;
        std::future<std::optional<Chunk>> chunk = promise.get_future();
        stream->async_next([&promise](boost::system::error_code, std::optional<Chunk> c) { promise.set_value(std::move(c)); });
        return chunk.get();
    };
    while (auto chunk = next()) {
        for (const int32_t token : chunk->tokens) in_order = in_order && token == expected++;
        while (auto more = stream->try_next()) {
            for (const int32_t token : more->tokens) in_order = in_order && token == expected++;
        }
    }
    producer.join();
    work.reset();
    runner.join();
    CHECK(in_order);
    CHECK(expected == kTokens);
}

TEST_CASE("a queue hands the producer's completions over together, in order, one that throws included") {
    net::io_context io;
    auto queue = std::make_shared<takt::DeliveryQueue>(io.get_executor());
    std::vector<std::shared_ptr<TokenStream>> streams;
    std::vector<std::string> seen;
    for (int i = 0; i < 5; ++i) {
        streams.push_back(std::make_shared<TokenStream>(io.get_executor(), [] {}, queue));
        streams.back()->async_next([&seen, i](boost::system::error_code, std::optional<Chunk> chunk) {
            seen.push_back(std::to_string(i) + (chunk ? chunk->text : "-"));
            if (i == 1) throw std::runtime_error("a reader's own fault");
        });
    }
    for (int i = 0; i < 4; ++i) streams[static_cast<size_t>(i)]->push(chunk_of(7));
    streams[4]->finish({}, {});
    queue->add_action([&seen] { seen.push_back("all"); });
    CHECK(seen.empty());
    CHECK(io.poll_one() == 1);   // one hand-over for all of them
    CHECK(seen.empty());
    CHECK_THROWS_AS(io.poll(), std::runtime_error);
    CHECK(seen == std::vector<std::string>{"07,", "17,"});
    io.poll();
    CHECK(seen == std::vector<std::string>{"07,", "17,", "27,", "37,", "4-", "all"});
}

TEST_CASE("what a queue is given while its hand-over runs follows without another's post") {
    net::io_context io;
    auto queue = std::make_shared<takt::DeliveryQueue>(io.get_executor());
    auto stream = std::make_shared<TokenStream>(io.get_executor(), [] {}, queue);
    int num_seen = 0;
    std::function<void(boost::system::error_code, std::optional<Chunk>)> read = [&](boost::system::error_code, std::optional<Chunk> chunk) {
        if (!chunk) return;
        ++num_seen;
        stream->async_next(read);
        if (num_seen < 100) stream->push(chunk_of(num_seen));   // as the engine does while the reader is awake
    };
    stream->async_next(read);
    stream->push(chunk_of(0));
    io.poll();
    CHECK(num_seen == 100);
    io.restart();
    stream->push(chunk_of(100));   // the hand-over had ended; this begins another
    io.poll();
    CHECK(num_seen == 101);
    stream->abandon();
    io.poll();
}

TEST_CASE("a wait whose executor is named completes on it, the stream's own or another's, and keeps it in work") {
    net::io_context io, other;
    auto queue = std::make_shared<takt::DeliveryQueue>(io.get_executor());
    for (net::io_context* named : {&io, &other}) {
        auto stream = std::make_shared<TokenStream>(io.get_executor(), [] {}, queue);
        std::vector<bool> ran_there;
        const auto wait = [&] {
            const net::any_io_executor executor = named->get_executor();
            stream->async_next(net::bind_executor(executor, [&ran_there, named](boost::system::error_code, std::optional<Chunk> chunk) {
                ran_there.push_back(chunk && named->get_executor().running_in_this_thread());
            }), executor);
        };
        const auto settle = [&] {
            for (net::io_context* one : {&io, &other}) {
                one->restart();
                one->poll();
            }
        };
        wait();
        settle();
        CHECK_FALSE(named->stopped());      // a wait is work
        stream->push(chunk_of(1));          // handed over by the queue
        settle();
        settle();
        CHECK(ran_there == std::vector<bool>{true});
        CHECK(named->stopped());
        stream->push(chunk_of(2));          // there before the wait
        wait();
        CHECK(ran_there.size() == 1);       // never inside the call
        settle();
        settle();
        CHECK(ran_there == std::vector<bool>{true, true});
    }
}
