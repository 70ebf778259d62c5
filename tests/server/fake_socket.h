// A WebSocket that the test opens and shuts: it says what is read, and each write waits for its permission. One thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/wake_signal.h"
#include "server/ws_socket.h"

namespace takt::server {

class FakeSocket final : public WsSocket {
public:
    explicit FakeSocket(asio::io_context& io) : io_(io), come_(io.get_executor()), go_(io.get_executor()) {}

    // As over a real socket, every read goes once round the loop.
    asio::awaitable<WsMessage> read() override {
        co_await asio::post(io_, asio::use_awaitable);
        while (inbox_.empty() && !broken) co_await come_.wait();
        if (broken) co_return WsMessage();
        WsMessage message = std::move(inbox_.front());
        inbox_.pop_front();
        ++num_read;
        co_return message;
    }
    bool write_now(std::string_view text) override {
        if (!takes_at_once) return false;
        written.emplace_back(text);
        return true;
    }
    asio::awaitable<bool> write(std::string text) override {
        while (num_allowed == 0 && !broken) co_await go_.wait();
        if (broken) co_return false;
        --num_allowed;
        written.push_back(std::move(text));
        co_return true;
    }
    asio::awaitable<void> close(CloseCode) override { co_return; }
    void abort() override { break_now(); }
    asio::any_io_executor executor() const override { return io_.get_executor(); }

    void receive(std::string text) {
        WsMessage message;
        message.kind = WsMessage::Kind::text;
        message.data = std::move(text);
        inbox_.push_back(std::move(message));
        come_.notify();
    }
    void allow(int count) {
        num_allowed += count;
        go_.notify();
    }
    void break_now() {
        broken = true;
        come_.notify();
        go_.notify();
    }

    int num_allowed = 0;
    int num_read = 0;
    bool broken = false;
    bool takes_at_once = false;     // a socket with room; else every write waits for its permission
    std::vector<std::string> written;

private:
    asio::io_context& io_;
    Signal come_;
    Signal go_;
    std::deque<WsMessage> inbox_;
};

}  // namespace takt::server
