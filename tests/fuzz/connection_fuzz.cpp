// Any bytes as everything that a client sends over one connection, from its first byte on: HTTP requests one after the other, an upgrade
// and WebSocket frames behind it, on the server's own connection code over a loopback socket and a simulated engine. Whatever they are,
// the connection ends soon after its client has left, and nothing of it stays behind.
//
// The first byte says how the others come: bits 0 to 2 in how many pieces, bit 3 whether the client leaves with a reset, bit 4 whether
// it leaves without having read.
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "server/http_connection.h"
#include "server/loaded_state.h"

using namespace takt::server;
using boost::asio::ip::tcp;

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "connection_fuzz: %s\n", what);
    std::abort();
}

class Host {
public:
    Host()
        : loaded_({"model.max_context=256", "scheduler.max_running=4", "scheduler.max_waiting=4", "server.max_message_kib=64",
                   "server.admin=true", "server.header_seconds=3600"}),
          acceptor_(client_io_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)) {}

    void serve(std::string_view bytes, std::size_t num_pieces, bool resets, bool reads) {
        tcp::socket client(client_io_);
        connect(client);
        client.non_blocking(true);
        tcp::socket accepted(loaded_.io);
        accepted.assign(tcp::v4(), accept());
        bool has_ended = false;
        boost::asio::co_spawn(loaded_.io, serve_connection(loaded_.state, ClientStream(std::move(accepted), nullptr)),
                              [&has_ended](std::exception_ptr problem) {
                                  require(problem == nullptr, "an exception left the connection");
                                  has_ended = true;
                              });
        const std::size_t piece = bytes.size() / num_pieces + 1;
        for (std::size_t at = 0; at < bytes.size() && !has_ended; at += piece) {
            boost::system::error_code error;
            (void)client.write_some(boost::asio::buffer(bytes.substr(at, piece).data(), std::min(piece, bytes.size() - at)), error);
            if (error && error != boost::asio::error::would_block) break;
            turn(client, reads);
        }
        leave(client, resets);
        require(turn_until(client, [&] { return has_ended; }), "the connection outlives its client");
        require(turn_until(client, [&] { return is_clean(); }), "something of a connection stays behind");
    }

private:
    // The fuzzer's own clock interrupts calls: what has begun goes on.
    void connect(tcp::socket& client) {
        boost::system::error_code error;
        client.connect(acceptor_.local_endpoint(), error);
        while (error == boost::asio::error::interrupted) client.wait(tcp::socket::wait_write, error);
        require(!error, "no connection to itself");
    }
    tcp::socket::native_handle_type accept() {
        for (;;) {
            boost::system::error_code error;
            tcp::socket accepted = acceptor_.accept(error);
            if (!error) return accepted.release();
            require(error == boost::asio::error::interrupted, "no connection from itself");
        }
    }
    // A few turns of the server between two pieces, until it has nothing to do: the engine runs on, on its own thread.
    void turn(tcp::socket& client, bool reads) {
        for (int i = 0; i < 8 && loaded_.io.poll() != 0; ++i) {
            if (reads) read_all(client);
        }
    }
    /// False if a minute or two do not bring it: the time-outs of heads and bodies are an hour here.
    template <class Done>
    bool turn_until(tcp::socket& client, Done done) {
        for (int i = 0; i < 1'000'000; ++i) {
            if (client.is_open()) read_all(client);
            if (done()) return true;
            if (loaded_.io.poll() == 0) loaded_.io.run_one_for(std::chrono::microseconds(50));
        }
        return false;
    }
    static void read_all(tcp::socket& client) {
        char bytes[16384];
        boost::system::error_code error;
        while (client.read_some(boost::asio::buffer(bytes), error) > 0) {
        }
    }
    static void leave(tcp::socket& client, bool resets) {
        boost::system::error_code ignored;
        client.set_option(boost::asio::socket_base::linger(true, 0), ignored);     // no port waits a minute for what may still come
        resets ? client.close(ignored) : client.shutdown(tcp::socket::shutdown_send, ignored);
    }
    [[nodiscard]] bool is_clean() const {
        const ServerState& state = loaded_.state;
        if (!state.connections.empty() || state.num_websockets != 0) return false;
        for (const takt::SeriesSnapshot& series : state.engine.metrics().series) {
            const bool is_held = series.name == "takt_requests_running" || series.name == "takt_requests_waiting" ||
                                 series.name == "takt_kv_blocks_used";
            if (is_held && series.values.at(0).value != 0) return false;
        }
        return true;
    }

    LoadedState loaded_;
    boost::asio::io_context client_io_;
    tcp::acceptor acceptor_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static Host host;
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    host.serve(bytes, 1 + (data[0] & 7u), (data[0] & 8u) != 0, (data[0] & 16u) == 0);
    return 0;
}
