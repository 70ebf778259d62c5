// Outbox: the turns at a WebSocket that takes one frame at a time. Whoever comes while nobody writes writes at once;
// the others wait in order, each with its one frame, so a slow socket stops its senders, nobody else, and the queue is
// bounded by their number. Server thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <deque>
#include <string>
#include <string_view>

#include "server/wake_signal.h"
#include "server/ws_socket.h"

namespace takt::server {

class Outbox {
public:
    explicit Outbox(WsSocket& socket) : socket_(socket) {}

    /// A sender's place in the queue; must outlive its send().
    class Slot {
    public:
        explicit Slot(asio::any_io_executor executor) : turn_(std::move(executor)) {}

    private:
        friend class Outbox;
        Signal turn_;
        bool waiting_ = false;
    };

    /// Sends at once if nobody writes and the socket has room; false: not sent, send() is the way.
    bool send_now(std::string_view frame) { return !busy_ && !dead_ && socket_.write_now(frame); }
    /// Waits for its turn, in the order of calls, and writes the frame; false: the socket is dead, the frame is dropped.
    asio::awaitable<bool> send(Slot& slot, std::string frame);

    /// The socket is dead: no frame is written from now on, and every sender returns false in turn.
    void fail() { dead_ = true; }
    [[nodiscard]] bool dead() const { return dead_; }
    /// A frame is being written.
    [[nodiscard]] bool busy() const { return busy_; }

private:
    void pass_on();

    WsSocket& socket_;
    std::deque<Slot*> queue_;
    bool busy_ = false;
    bool dead_ = false;
};

}  // namespace takt::server
