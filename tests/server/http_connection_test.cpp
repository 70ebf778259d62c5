// One HTTP connection over the loopback, its handlers run one by one: whenever the next request of a kept-alive connection comes,
// it is answered.
#include "server/http_connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "catch.h"
#include "server/loaded_state.h"

using namespace takt::server;
using boost::asio::ip::tcp;

namespace {

constexpr int kBuffer = 16 * 1024;   // of either end's socket

/// By default answered with ten times what the sockets hold, in pieces: the client decides when the next one goes out.
std::string request(std::size_t num_spaces = 0) {
    const std::string body = R"({"prompt":")" + std::string(40'000, 'x') + "\"}" + std::string(num_spaces, ' ');
    return "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

class Connection {
public:
    explicit Connection(LoadedState& host) : host_(host) {
        tcp::acceptor acceptor(client_io_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
        client_.open(tcp::v4());
        client_.set_option(tcp::socket::receive_buffer_size(kBuffer));
        client_.connect(acceptor.local_endpoint());
        client_.set_option(tcp::no_delay(true));
        client_.non_blocking(true);
        tcp::socket accepted(host.io);
        accepted.assign(tcp::v4(), acceptor.accept().release());
        accepted.set_option(tcp::socket::send_buffer_size(kBuffer));
        boost::asio::co_spawn(host.io, serve_connection(host.state, ClientStream(std::move(accepted), nullptr)),
                              [this](std::exception_ptr) { ended_ = true; });
    }
    ~Connection() {
        boost::system::error_code ignored;
        client_.close(ignored);
        if (!host_.run_until([this] { return ended_; })) std::abort();   // it is still named by handlers
    }
    /// The first bytes go out before any handler runs, and before anything is read.
    bool send(std::string_view text) {
        return host_.run_until([&] {
            boost::system::error_code error;
            text.remove_prefix(client_.write_some(boost::asio::buffer(text), error));
            if (!text.empty()) read_all();
            return text.empty();
        });
    }
    void read_all() {
        char bytes[4096];
        boost::system::error_code error;
        for (size_t n; (n = client_.read_some(boost::asio::buffer(bytes), error)) > 0;) received_.append(bytes, n);
    }
    /// Whole answers that were read.
    [[nodiscard]] int num_answers() const {
        int count = 0;
        for (size_t at = 0; (at = received_.find("\"count\":40000", at)) != std::string::npos; ++at) ++count;
        return count;
    }
    bool hears(std::string_view text) {
        return host_.run_until([&] {
            read_all();
            return received_.find(text) != std::string::npos;
        });
    }
    void close() {
        boost::system::error_code ignored;
        client_.close(ignored);
        host_.run_until([this] { return ended_; });
    }
    bool answers(int count) {
        return host_.run_until([&] {
            read_all();
            return num_answers() == count;
        });
    }

private:
    LoadedState& host_;
    boost::asio::io_context client_io_;
    tcp::socket client_{client_io_};
    std::string received_;
    bool ended_ = false;
};

}  // namespace

TEST_CASE("the next request of a kept-alive connection is answered, whenever it comes") {
    LoadedState host;
    const std::string whole = request();
    constexpr int kRounds = 24;
    int num_early = 0;
    for (int round = 0; round < kRounds; ++round) {   // pieces of the answer that the client has read before it sends again
        Connection connection(host);
        REQUIRE(connection.send(whole));
        for (int i = 0; i < round; ++i) {
            host.io.run_for(std::chrono::milliseconds(3));
            connection.read_all();
        }
        if (connection.num_answers() == 0) ++num_early;
        if (round == kRounds - 1) REQUIRE(connection.answers(1));   // on a slow machine it is not whole before
        // The server learns at once that it may write its last piece and that there is more to read.
        INFO("after " << round << " pieces");
        REQUIRE(connection.send(whole));
        REQUIRE(connection.answers(2));
        REQUIRE(connection.send(whole));
        REQUIRE(connection.answers(3));
    }
    CHECK(num_early > 3);   // the rounds reach from the middle of the first answer to after it
}

TEST_CASE("bodies take from the room that messages share, and each gives back what it took") {
    LoadedState host;
    constexpr std::size_t kFree = MessageRoom::kFreeBytes, kAll = kFree + MessageRoom::kBytes;
    const auto is_whole = [&] { return MessageRoom::Share(host.state.message_room).grow_to(kAll); };
    const std::string small = request(), large = request(80'000);
    {
        MessageRoom::Share others(host.state.message_room);
        REQUIRE(others.grow_to(kAll - 10'000));
        Connection refused(host), usual(host);
        REQUIRE(refused.send(large));
        CHECK(refused.hears("HTTP/1.1 503 "));
        CHECK(refused.hears("\r\nRetry-After: 1\r\n"));
        CHECK(refused.hears("\"queue_full\""));
        REQUIRE(usual.send(small));
        CHECK(usual.answers(1));
    }
    CHECK(is_whole());
    Connection kept(host), left(host);
    REQUIRE(kept.send(large));
    CHECK(kept.answers(1));
    CHECK(host.run_until(is_whole));   // the connection lives on
    REQUIRE(left.send(std::string_view(large).substr(0, 100'000)));
    CHECK(host.run_until([&] { return !is_whole(); }));
    left.close();
    CHECK(is_whole());
}
