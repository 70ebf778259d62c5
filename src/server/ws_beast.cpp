// WebSocket over Beast: the one file of the server that compiles beast/websocket. Server thread.
#include "server/ws_beast.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <chrono>
#include <string_view>

namespace takt::server {

namespace {

namespace beast = boost::beast;
namespace websocket = beast::websocket;

constexpr auto kHandshakeTimeout = std::chrono::seconds(10);

// Bytes that are made ready for one read: filled with zeros, that is. Beast alone would make ready all that a frame's head claims, at every
// read anew: of a frame that comes a byte at a time each byte would cost as much as the whole.
constexpr std::size_t kLeastRead = 2 * 1024, kMostRead = 64 * 1024;

class Socket final : public BeastWsSocket {
public:
    explicit Socket(ClientStream stream) : ws_(std::move(stream)) {}

    asio::awaitable<bool> accept(UpgradeRequest request, Options options) override {
        configure(options);
        room_ = options.room;
        on_no_room_ = std::move(options.on_no_room);
        auto result = co_await ws_.async_accept(request, asio::as_tuple(asio::use_awaitable));
        co_return !std::get<0>(result);
    }

    asio::awaitable<WsMessage> read() override {
        WsMessage message;
        MessageRoom::Share share(*room_);
        std::string data;
        auto buffer = asio::dynamic_buffer(data);
        do {
            // Room for the whole frame, which takes no memory before something comes; of that so much is made ready for one read.
            data.reserve(data.size() + ws_.read_size_hint(kLeastRead));
            const std::size_t ready = std::clamp(data.size(), kLeastRead, kMostRead);
            auto result = co_await ws_.async_read_some(buffer, ready, asio::as_tuple(asio::use_awaitable));
            if (std::get<0>(result)) co_return message;
            if (!share.grow_to(data.size())) {
                on_no_room_();
                data = std::string();
                co_await close(CloseCode::try_again_later);
                co_return message;
            }
        } while (!ws_.is_message_done());
        message.kind = ws_.got_text() ? WsMessage::Kind::text : WsMessage::Kind::binary;
        message.data = std::move(data);
        co_return message;
    }

    bool write_now(std::string_view text) override {
        if (!ws_.is_open()) return false;
        // An unmasked text frame in one piece. What control frames Beast sends meanwhile go through the same stream, whole.
        frame_ = '\x81';
        if (text.size() < 126) {
            frame_ += static_cast<char>(text.size());
        } else {
            const int num_bytes = text.size() < 65536 ? 2 : 8;
            frame_ += static_cast<char>(num_bytes == 2 ? 126 : 127);
            for (int i = num_bytes - 1; i >= 0; --i) frame_ += static_cast<char>(std::uint64_t{text.size()} >> (8 * i));
        }
        frame_ += text;
        return ws_.next_layer().write_now(frame_);
    }

    asio::awaitable<bool> write(std::string text) override {
        auto result = co_await ws_.async_write(asio::buffer(text), asio::as_tuple(asio::use_awaitable));
        co_return !std::get<0>(result);
    }

    asio::awaitable<void> close(CloseCode code) override {
        const websocket::close_reason reason(static_cast<std::uint16_t>(code));
        auto result = co_await ws_.async_close(reason, asio::as_tuple(asio::use_awaitable));
        static_cast<void>(result);
    }

    void abort() override { beast::get_lowest_layer(ws_).close(); }

    asio::any_io_executor executor() const override {
        return const_cast<websocket::stream<ClientStream>&>(ws_).get_executor();
    }

private:
    void configure(const Options& options) {
        // From here on the WebSocket's own timers watch the peer.
        beast::get_lowest_layer(ws_).expires_never();
        websocket::stream_base::timeout timeout{};
        timeout.handshake_timeout = kHandshakeTimeout;
        // Beast pings at half of the idle time: every ping_seconds, and gives up on a peer silent for twice that.
        timeout.idle_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(options.ping_seconds * 2000));
        timeout.keep_alive_pings = true;
        ws_.set_option(timeout);
        const std::string subprotocol = options.subprotocol;
        const std::string request_id = options.request_id;
        ws_.set_option(websocket::stream_base::decorator([subprotocol, request_id](websocket::response_type& response) {
            response.set(beast::http::field::server, "takt");
            response.set("x-request-id", request_id);
            if (!subprotocol.empty()) response.set(beast::http::field::sec_websocket_protocol, subprotocol);
        }));
        ws_.read_message_max(options.max_message_bytes);
        ws_.auto_fragment(false);
        ws_.text(true);
    }

    websocket::stream<ClientStream> ws_;
    std::string frame_;     // that is written at once
    MessageRoom* room_ = nullptr;
    std::function<void()> on_no_room_;
};

}  // namespace

std::unique_ptr<BeastWsSocket> make_ws_socket(ClientStream stream) {
    return std::make_unique<Socket>(std::move(stream));
}

}  // namespace takt::server
