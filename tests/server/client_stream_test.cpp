// ClientStream's direct writes over a real connection: whole, in part with what is written later behind it, and given up with the stream.
#include "server/client_stream.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <deque>

#include "catch.h"
#include "server/second_sender.h"

using namespace takt::server;
using asio::ip::tcp;

namespace {

struct Pair {
    asio::io_context io{1};
    tcp::socket client{io};
    std::shared_ptr<SecondSender> second;
    std::unique_ptr<ClientStream> stream;

    explicit Pair(bool helped = false) {
        tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
        client.open(tcp::v4());
        client.set_option(asio::socket_base::receive_buffer_size(4096));
        client.connect(acceptor.local_endpoint());
        tcp::socket accepted = acceptor.accept();
        accepted.set_option(asio::socket_base::send_buffer_size(4096));
        if (helped) second = std::make_shared<SecondSender>(io.get_executor(), true);
        stream = std::make_unique<ClientStream>(std::move(accepted), nullptr, second);
        // So many messages at once that the next ones are given away.
        for (int i = 0; helped && i < 8; ++i) static_cast<void>(second->wants_more());
    }
    std::string read(std::size_t count) {
        std::string out(count, '\0');
        std::size_t done = 0;
        asio::async_read(client, asio::buffer(out), [&done](boost::system::error_code, std::size_t n) { done = n; });
        io.restart();
        while (done == 0 && io.run_one() > 0) {
        }
        CHECK(done == count);
        return out;
    }
};

std::string message(const std::string& head, const std::string& body) { return head + body; }

}  // namespace

TEST_CASE("a message that fits is handed over at once") {
    Pair pair(GENERATE(false, true));
    CHECK(pair.stream->write_now(message("head ", "body")));
    CHECK(pair.read(9) == "head body");
}

TEST_CASE("messages by the second thread and writes by the event loop come in order") {
    Pair pair(true);
    std::string wanted;
    int num_writes = 0, num_written = 0;
    std::deque<std::string> texts;
    for (int i = 0; i < 2000; ++i) {
        const std::string text = std::to_string(i) + " ";
        // A write of the event loop's goes on alone, as a socket's owner makes it.
        if (num_writes == num_written && i % 7 != 0 && pair.stream->write_now(text)) {
            wanted += text;
        } else if (num_writes == num_written) {
            wanted += text;
            texts.push_back(text);
            ++num_writes;
            asio::async_write(*pair.stream, asio::buffer(texts.back()),
                              [&num_written](boost::system::error_code error, std::size_t) { num_written += error ? 0 : 1; });
        }
        if (i % 3 == 0) {
            pair.io.restart();
            pair.io.poll_one();
        }
    }
    CHECK(num_writes > 100);
    CHECK(pair.read(wanted.size()) == wanted);
}

TEST_CASE("a stream closed or gone while the second thread has its message is no crash") {
    Pair pair(true);
    const bool closes = GENERATE(false, true);
    CHECK(pair.stream->write_now("a message"));
    if (closes) pair.stream->close();
    if (!closes) pair.stream.reset();
    pair.io.restart();
    pair.io.poll();
    CHECK(pair.read(9) == "a message");
}

TEST_CASE("of a message that fits in part the rest goes out ahead of later writes") {
    Pair pair(GENERATE(false, true));
    const std::string body(4 << 20, 'b');   // more than both sides' buffers
    CHECK(pair.stream->write_now(message("head", body)));
    CHECK_FALSE(pair.stream->write_now(message("not", "now")));
    const std::string later = "later";
    bool written = false;
    asio::async_write(*pair.stream, asio::buffer(later), [&written](boost::system::error_code error, std::size_t) { written = !error; });
    const std::string all = pair.read(4 + body.size() + later.size());
    CHECK(all.compare(0, 4, "head") == 0);
    CHECK(all.find_first_not_of('b', 4) == 4 + body.size());
    CHECK(all.compare(4 + body.size(), later.size(), later) == 0);
    pair.io.restart();
    pair.io.poll();
    CHECK(written);
    CHECK(pair.stream->write_now(message("free", " again")));
    CHECK(pair.read(10) == "free again");
}

TEST_CASE("a full socket takes nothing, and a write that waits for the rest ends with the stream") {
    Pair pair(GENERATE(false, true));
    const std::string body(4 << 20, 'b');
    CHECK(pair.stream->write_now(message("head", body)));
    boost::system::error_code ended;
    const std::string later = "later";
    asio::async_write(*pair.stream, asio::buffer(later), [&ended](boost::system::error_code error, std::size_t) { ended = error; });
    pair.io.poll();
    pair.stream->close();
    pair.stream.reset();
    pair.io.restart();
    pair.io.poll();
    CHECK(ended);
    pair.client.close();
}

TEST_CASE("a peer that is gone is no crash: the long way tells") {
    Pair pair;
    pair.client.close();
    for (int i = 0; i < 10; ++i) {
        const bool taken = pair.stream->write_now(message("a", "b"));
        if (!taken) break;
    }
    CHECK_FALSE(pair.stream->write_now(message("a", "b")));
}
