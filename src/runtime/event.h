// EventQueue: waiters on device events. `poll` looks at each stream once and posts the waiters whose event has been reached;
// nothing is ever resumed inside poll or wait. Engine thread only; streams outlive the queue.
#pragma once

#include <boost/asio/async_result.hpp>
#include <deque>
#include <list>
#include <utility>

#include "kernels/device.h"
#include "runtime/task.h"

namespace takt {

class EventQueue {
public:
    using Handler = net::any_completion_handler<void(Status)>;

    explicit EventQueue(net::io_context& io) : io_(io) {}
    EventQueue(const EventQueue&) = delete;
    EventQueue& operator=(const EventQueue&) = delete;

    void add_stream(Stream& stream) { streams_.emplace_back(&stream); }

    /// Completes, by post on the engine's io_context, once `event` is reached; the Status is the stream's sticky error.
    /// Not cancellable: a launched step always ends (a failed stream makes its events ready).
    template <class Token>
    auto async_wait(Event event, Token&& token) {
        return net::async_initiate<Token, void(Status)>(
            [this](auto handler, Event e) { add(e, Handler(std::move(handler))); }, token, event);
    }

    /// Posts the waiters of reached events. Returns whether any was posted.
    bool poll();
    [[nodiscard]] bool empty() const;

private:
    struct Waiter {
        Waiter(uint64_t v, Handler h) : value(v), handler(std::move(h)) {}
        uint64_t value;
        Handler handler;
    };
    struct Line {
        explicit Line(Stream* s) : stream(s) {}
        Stream* stream;
        std::list<Waiter> waiters;   // ascending value; a list: Boost 1.81 cannot assign type-erased handlers
    };
    void add(Event event, Handler handler);

    net::io_context& io_;
    std::deque<Line> streams_;
};

}  // namespace takt
