// Outbox: the frames waiting for a WebSocket's one writer. Each sender has at most one frame here and waits until the
// writer took it, so the queue is bounded by the number of senders and a slow socket stops its senders, nobody else.
// Server thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <deque>
#include <string>

#include "server/wake_signal.h"
#include "server/ws_socket.h"

namespace takt::server {

class Outbox {
public:
    explicit Outbox(WsSocket& socket) : socket_(socket), writer_signal_(socket.executor()) {}

    /// A sender's place in the queue; must outlive its send().
    class Slot {
    public:
        explicit Slot(asio::any_io_executor executor) : taken_(std::move(executor)) {}

    private:
        friend class Outbox;
        std::string frame_;
        Signal taken_;
        bool queued_ = false;
    };

    /// Queues the frame and waits until the writer took it; false: the socket is dead, the frame is dropped.
    asio::awaitable<bool> send(Slot& slot, std::string frame);

    /// The writer: returns after finish() once the queue is empty, or when the socket is dead.
    asio::awaitable<void> run();
    /// No more frames come.
    void finish();
    /// The socket is dead: every sender returns false.
    void fail();
    [[nodiscard]] bool dead() const { return dead_; }

private:
    WsSocket& socket_;
    Signal writer_signal_;
    std::deque<Slot*> queue_;
    bool finished_ = false;
    bool dead_ = false;
};

}  // namespace takt::server
