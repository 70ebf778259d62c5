// EventStream. Server thread.
#include "server/event_stream.h"

#include <boost/asio/as_tuple.hpp>
#include <utility>

namespace takt::server {

namespace {

// Enough that the writer joins several small events into one piece, few enough that a slow reader stops its senders.
constexpr std::size_t kMaxQueued = 16;

}  // namespace

EventStream::EventStream(Exchange& exchange, double ping_seconds)
    : exchange_(exchange), ping_(ping_seconds), timer_(exchange.executor()) {}

asio::awaitable<bool> EventStream::open(HttpHeaders headers) {
    HttpReply head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = std::move(headers);
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    const bool sent = co_await exchange_.begin(std::move(head));
    gone_ = !sent;
    co_return sent;
}

asio::awaitable<bool> EventStream::send(std::string data, std::string event) {
    while (queue_.size() >= kMaxQueued && !gone_) {
        Signal room(exchange_.executor());
        waiting_.push_back(&room);
        co_await room.wait();
    }
    if (gone_) co_return false;
    std::string text;
    if (!event.empty()) text = "event: " + event + "\n";
    text += "data: ";
    text += data;
    text += "\n\n";
    queue_.push_back(std::move(text));
    wake();
    co_return true;
}

void EventStream::wake() { timer_.cancel(); }

asio::awaitable<void> EventStream::run() {
    bool alive = true;
    while (alive && !(finished_ && queue_.empty())) {
        std::string bytes;
        for (std::string& text : std::exchange(queue_, {})) bytes += text;
        for (Signal* room : std::exchange(waiting_, {})) room->notify();
        if (bytes.empty()) {
            timer_.expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(ping_));
            auto waited = co_await timer_.async_wait(asio::as_tuple(asio::use_awaitable));
            const bool expired = !std::get<0>(waited);
            if (!expired || !queue_.empty() || finished_) continue;
            bytes = ": ping\n\n";
        }
        alive = co_await exchange_.piece(std::move(bytes));
    }
    gone_ = !alive;
    for (Signal* room : std::exchange(waiting_, {})) room->notify();
    if (alive) co_await exchange_.end();
}

void EventStream::finish() {
    finished_ = true;
    wake();
}

}  // namespace takt::server
