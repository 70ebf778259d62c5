// WsSocket: one WebSocket as the sessions see it: whole messages in, whole text messages out. The real one is over Beast
// (ws_beast.cpp). At most one read and one write at a time; all on the server's thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace takt::server {

namespace asio = boost::asio;

struct WsMessage {
    enum class Kind { text, binary, closed } kind = Kind::closed;
    std::string data;
};

/// The close codes of RFC 6455 and its registry that takt sends; the library below it sends 1002, 1007, 1009 and the answer to a peer's
/// close.
enum class CloseCode : std::uint16_t { going_away = 1001, try_again_later = 1013 };

class WsSocket {
public:
    virtual ~WsSocket() = default;
    WsSocket(const WsSocket&) = delete;
    WsSocket& operator=(const WsSocket&) = delete;

    /// The next message; `closed` for every kind of end. Over-long messages, protocol violations and bad UTF-8 have closed
    /// the socket with 1009, 1002 and 1007 by then, and messages without room beside those of other sockets with 1013.
    virtual asio::awaitable<WsMessage> read() = 0;
    /// Hands a text message to the system without waiting; false: it cannot now, nothing was sent, write() is the way. Not while
    /// a write() is outstanding.
    virtual bool write_now(std::string_view text) = 0;
    /// Completes once the message was handed to the system; false: the socket is dead.
    virtual asio::awaitable<bool> write(std::string text) = 0;
    /// Sends a close frame and waits for the peer's, at most the handshake time-out.
    virtual asio::awaitable<void> close(CloseCode code) = 0;
    /// Ends every outstanding operation at once.
    virtual void abort() = 0;
    [[nodiscard]] virtual asio::any_io_executor executor() const = 0;

protected:
    WsSocket() = default;
};

}  // namespace takt::server
