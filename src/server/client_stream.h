// ClientStream: one client's TCP connection, with or without TLS on it, as one type: Beast's parsers and WebSocket are
// compiled once over it. Reads and writes are type-erased, an allocation that the system call beside it hides. Server thread.
#pragma once

#include <array>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/role.hpp>
#include <boost/system/error_code.hpp>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>

namespace boost::asio::ssl {
class context;
}

namespace takt::server {

namespace asio = boost::asio;

class SecondSender;

class ClientStream {
public:
    using executor_type = asio::any_io_executor;
    using IoHandler = asio::any_completion_handler<void(boost::system::error_code, std::size_t)>;
    using EndHandler = asio::any_completion_handler<void(boost::system::error_code)>;

    /// What one write takes at most; writes may be partial, so a longer sequence goes out in several.
    struct WriteBuffers {
        std::array<asio::const_buffer, 8> buffers;
        std::size_t count = 0;
        [[nodiscard]] const asio::const_buffer* begin() const { return buffers.data(); }
        [[nodiscard]] const asio::const_buffer* end() const { return buffers.data() + count; }
    };

    /// `tls` null: plain TCP. It must outlive the stream. `second` null: every message is sent by the server's thread.
    ClientStream(asio::ip::tcp::socket socket, asio::ssl::context* tls, std::shared_ptr<SecondSender> second = nullptr);
    ClientStream(ClientStream&&) noexcept;
    ~ClientStream();
    /// False once it was moved from, as when a WebSocket took it; then nothing but close() may be called.
    explicit operator bool() const { return layers_ != nullptr; }

    /// Takes the TLS handshake; true at once without TLS. False: not a TLS client, or gone, or too slow.
    asio::awaitable<bool> handshake();
    /// Says goodbye within a second: TLS's own way, and the end of sending.
    asio::awaitable<void> finish();

    template <class Buffers, class Token>
    auto async_read_some(const Buffers& buffers, Token&& token) {
        asio::mutable_buffer first;
        const auto end = asio::buffer_sequence_end(buffers);
        for (auto it = asio::buffer_sequence_begin(buffers); it != end && first.size() == 0; ++it) first = *it;
        return asio::async_initiate<Token, void(boost::system::error_code, std::size_t)>(
            [this, first](auto handler) { start_read(first, IoHandler(std::move(handler))); }, token);
    }

    template <class Buffers, class Token>
    auto async_write_some(const Buffers& buffers, Token&& token) {
        WriteBuffers taken;
        for (auto it = asio::buffer_sequence_begin(buffers); it != asio::buffer_sequence_end(buffers); ++it) {
            const asio::const_buffer next = *it;
            if (next.size() > 0 && taken.count < taken.buffers.size()) taken.buffers[taken.count++] = next;
        }
        return asio::async_initiate<Token, void(boost::system::error_code, std::size_t)>(
            [this, taken](auto handler) { start_write(taken, IoHandler(std::move(handler))); }, token);
    }

    /// Hands the bytes to the system at once, without a turn of the event loop, or to the second thread, which does so in a moment.
    /// False: nothing was taken (TLS, a write under way, a full socket, a dead one) and the caller writes the long way. Of a message
    /// that fits only in part the rest goes out ahead of every later write.
    bool write_now(std::string_view message);

    /// Bytes that were read too far: the next reads take them before the socket's. Up to then nothing may be reading.
    void put_back(std::string_view bytes);

    /// Of every read and write that starts from now on; a late one fails with beast::error::timeout and closes the socket.
    void expires_after(std::chrono::nanoseconds time);
    void expires_never();
    void close();
    [[nodiscard]] bool secure() const;
    [[nodiscard]] executor_type get_executor() const;
    [[nodiscard]] asio::ip::tcp::socket& socket();

    /// The WebSocket's last act, after both close frames.
    void start_teardown(boost::beast::role_type role, EndHandler handler);

private:
    struct Layers;
    void start_read(asio::mutable_buffer buffer, IoHandler handler);
    void start_write(WriteBuffers buffers, IoHandler handler);
    std::unique_ptr<Layers> layers_;
};

// How Beast's WebSocket closes what lies under it.
inline void beast_close_socket(ClientStream& stream) { stream.close(); }
template <class Handler>
void async_teardown(boost::beast::role_type role, ClientStream& stream, Handler&& handler) {
    stream.start_teardown(role, ClientStream::EndHandler(std::forward<Handler>(handler)));
}

}  // namespace takt::server
