// HttpExchange: Exchange over one TCP stream: heads and chunks as bytes. Server thread.
#pragma once

#include <chrono>
#include <string>

#include "server/client_stream.h"
#include "server/http_message.h"

namespace takt::server {

class HttpExchange final : public Exchange {
public:
    /// `extra`: headers of every answer (request id, CORS). `stream` must outlive this. A client that takes nothing of a whole answer for
    /// `patience` is cut off; one that does not read its stream is paused as long as it stays.
    HttpExchange(ClientStream& stream, std::chrono::nanoseconds patience, bool http_1_0, bool head_only, HttpHeaders extra);

    asio::awaitable<bool> reply(HttpReply whole) override;
    asio::awaitable<bool> begin(HttpReply head) override;
    asio::awaitable<bool> piece(std::string bytes) override;
    asio::awaitable<bool> end() override;
    [[nodiscard]] asio::any_io_executor executor() const override;

    bool keep_alive = true;
    [[nodiscard]] int status() const { return status_; }

private:
    asio::awaitable<bool> write(std::string bytes);
    std::string head_text(const HttpReply& reply, bool chunked);

    ClientStream& stream_;
    std::chrono::nanoseconds patience_;
    HttpHeaders extra_;
    bool http_1_0_ = false;
    bool head_only_ = false;
    int status_ = 0;
};

std::string_view status_text(int status);

}  // namespace takt::server
