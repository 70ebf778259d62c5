// Messages given to the second thread: each is sent once, whole or told in part, and ended on the caller's thread.
#include "server/second_sender.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <random>
#include <thread>

#include "catch.h"

using namespace takt::server;

namespace {

bool has_second_core() { return std::thread::hardware_concurrency() > 1; }

// A connected pair: the job writes to one end, read() takes from the other.
struct Line {
    std::array<int, 2> ends{};
    std::shared_ptr<SecondSender::Job> job = std::make_shared<SecondSender::Job>();
    int num_finished = 0;
    bool is_out = false;      // given and not finished

    Line() {
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
        job->socket = ends[0];
        job->finished = [this, thread = std::this_thread::get_id()] {
            CHECK(std::this_thread::get_id() == thread);
            CHECK(is_out);
            is_out = false;
            ++num_finished;
        };
    }
    Line(const Line&) = delete;
    ~Line() {
        ::close(ends[0]);
        ::close(ends[1]);
    }
    void give(SecondSender& sender, std::string bytes) {
        job->bytes = std::move(bytes);
        is_out = true;
        sender.give(job);
    }
    [[nodiscard]] std::string read() const {
        std::string out(1 << 20, '\0');
        const ssize_t count = ::recv(ends[1], out.data(), out.size(), MSG_DONTWAIT);
        out.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
        return out;
    }
};

// Handlers until the condition holds.
template <class Condition>
void run_until(boost::asio::io_context& io, Condition condition) {
    while (!condition()) {
        io.restart();
        io.poll();
        std::this_thread::yield();
    }
}

// As a step's first messages would.
void begin_turn(SecondSender& sender) {
    for (int i = 0; i < 4; ++i) CHECK_FALSE(sender.wants_more());
    CHECK(sender.wants_more() == has_second_core());
}

}  // namespace

TEST_CASE("the first messages of a turn are the caller's, and the second thread keeps few") {
    boost::asio::io_context io(1);
    const auto sender = std::make_shared<SecondSender>(io.get_executor(), true);
    begin_turn(*sender);
    // The next turn sees a message, the one after it none: then it begins anew.
    io.poll();
    io.restart();
    begin_turn(*sender);
}

TEST_CASE("what is given is sent and ended by the executor") {
    boost::asio::io_context io(1);
    const auto sender = std::make_shared<SecondSender>(io.get_executor(), true);
    Line a, b;
    begin_turn(*sender);
    a.give(*sender, "first");
    b.give(*sender, "second");
    run_until(io, [&] { return a.num_finished + b.num_finished == 2; });
    CHECK(a.job->num_sent == 5);
    CHECK(a.read() == "first");
    CHECK(b.read() == "second");
}

TEST_CASE("a job may be seen to its end without the executor") {
    boost::asio::io_context io(1);
    const auto sender = std::make_shared<SecondSender>(io.get_executor(), true);
    Line line;
    begin_turn(*sender);
    for (int i = 1; i <= 200; ++i) {
        line.give(*sender, std::to_string(i));
        sender->finish(line.job);
        CHECK(line.num_finished == i);
        CHECK(line.read() == std::to_string(i));
    }
    run_until(io, [&] { return !line.is_out; });
    CHECK(line.num_finished == 200);
}

TEST_CASE("a full socket takes a part, a dead one nothing, and neither kills the program") {
    boost::asio::io_context io(1);
    const auto sender = std::make_shared<SecondSender>(io.get_executor(), false);
    Line full, dead;
    ::shutdown(dead.ends[1], SHUT_RD);
    begin_turn(*sender);
    full.give(*sender, std::string(8 << 20, 'x'));
    dead.give(*sender, "nobody reads");
    run_until(io, [&] { return full.num_finished + dead.num_finished == 2; });
    CHECK(full.job->num_sent > 0);
    CHECK(full.job->num_sent < full.job->bytes.size());
    CHECK(dead.job->num_sent == 0);
}

TEST_CASE("an end without a turn of the executor loses no thread and no job") {
    boost::asio::io_context io(1);
    Line line;
    {
        const auto sender = std::make_shared<SecondSender>(io.get_executor(), true);
        begin_turn(*sender);
        line.give(*sender, "last");
        sender->finish(line.job);
    }
    io.poll();      // the turn that was posted finds nobody
    CHECK(line.num_finished == 1);
    CHECK(line.read() == "last");
}

TEST_CASE("of many jobs, ended in every way, each message comes once and in order") {
    boost::asio::io_context io(1);
    const auto sender = std::make_shared<SecondSender>(io.get_executor(), true);
    std::array<Line, 16> lines;
    std::array<std::string, 16> wanted;
    std::mt19937 chance(1);
    for (int round = 0; round < 20000; ++round) {
        const std::size_t i = chance() % lines.size();
        Line& line = lines[i];
        if (line.is_out && !sender->finish_if_sent(line.job)) {
            if (chance() % 2 == 0) sender->finish(line.job);
        } else if (sender->wants_more()) {
            const std::string text = std::to_string(round) + " ";
            wanted[i] += text;
            line.give(*sender, text);
        }
        if (chance() % 8 == 0) {
            io.restart();
            io.poll_one();
        }
        // Before the socket is full: it counts some 800 bytes for a message, however small.
        if (wanted[i].size() > 500 && !line.is_out) {
            CHECK(line.read() == wanted[i]);
            wanted[i].clear();
        }
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
        run_until(io, [&] { return !lines[i].is_out; });
        CHECK(lines[i].read() == wanted[i]);
    }
}
