// Signal: lets one coroutine of the server's thread wait until something of the same thread calls notify(). A notify
// with nobody waiting is kept, so check-then-wait loses nothing. Not thread-safe; knows no sockets.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <utility>

namespace takt::server {

namespace asio = boost::asio;

class Signal {
public:
    explicit Signal(asio::any_io_executor executor) : executor_(std::move(executor)) {}
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;

    /// Resumes, by post, after the next notify(), or after one that nobody waited for. One waiter at a time.
    asio::awaitable<void> wait() {
        return asio::async_initiate<const asio::use_awaitable_t<>, void()>(
            [this](auto handler) {
                handler_.emplace(std::move(handler));
                if (std::exchange(pending_, false)) resume();
            },
            asio::use_awaitable);
    }

    void notify() {
        if (handler_) {
            resume();
        } else {
            pending_ = true;
        }
    }

private:
    using Handler = asio::any_completion_handler<void()>;

    // Posted, never inline: the waiter must not run inside the notifier.
    void resume() {
        Handler handler(std::move(*handler_));
        handler_.reset();
        asio::post(executor_, std::move(handler));
    }

    asio::any_io_executor executor_;
    std::optional<Handler> handler_;
    bool pending_ = false;
};

}  // namespace takt::server
