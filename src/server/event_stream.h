// EventStream: one answer of server-sent events. Senders queue whole events and wait until the writer took them; when
// nothing is sent for a while the writer sends a comment line, so that no proxy cuts the connection. Server thread.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <string>

#include "server/http_message.h"
#include "server/wake_signal.h"

namespace takt::server {

class EventStream {
public:
    EventStream(Exchange& exchange, double ping_seconds);

    /// Sends the head. False: the client is gone.
    asio::awaitable<bool> open(HttpHeaders headers);
    /// Queues `data: TEXT` (with `event: NAME` if a name is given) and waits while the queue is long. False: gone.
    asio::awaitable<bool> send(std::string data, std::string event);
    /// The writer: until finish() and an empty queue, or the client is gone; then ends the body.
    asio::awaitable<void> run();
    void finish();
    [[nodiscard]] bool gone() const { return gone_; }

private:
    void wake();

    Exchange& exchange_;
    std::chrono::duration<double> ping_;
    asio::steady_timer timer_;          // the writer's wait: expiry = ping, cancel = something to do
    std::deque<std::string> queue_;
    std::deque<Signal*> waiting_;       // senders that found the queue full
    bool finished_ = false;
    bool gone_ = false;
};

}  // namespace takt::server
