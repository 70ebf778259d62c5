// HttpExchange. Server thread.
#include "server/http_exchange.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace takt::server {

namespace {
constexpr int kClientGone = 499;                  // the status that logs elsewhere show for it; never sent
constexpr std::size_t kPieceBytes = 256 * 1024;   // of a whole answer: the client's time is counted anew for each
}  // namespace

HttpExchange::HttpExchange(ClientStream& stream, std::chrono::nanoseconds patience, bool http_1_0, bool head_only, HttpHeaders extra)
    : stream_(stream), patience_(patience), extra_(std::move(extra)), http_1_0_(http_1_0), head_only_(head_only) {}

std::string_view status_text(int status) {
    switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 426: return "Upgrade Required";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return status >= 500 ? "Internal Server Error" : "Error";
    }
}

std::string HttpExchange::head_text(const HttpReply& reply, bool chunked) {
    std::string out = "HTTP/1.1 " + std::to_string(reply.status) + ' ';
    out += status_text(reply.status);
    out += "\r\nServer: takt\r\n";
    if (reply.status != 204) out += "Content-Type: " + reply.content_type + "\r\n";
    if (chunked && !http_1_0_) {
        out += "Transfer-Encoding: chunked\r\n";
    } else if (!chunked && reply.status != 204) {
        out += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    }
    if (chunked && http_1_0_) keep_alive = false;
    if (!keep_alive) out += "Connection: close\r\n";
    if (keep_alive && http_1_0_) out += "Connection: keep-alive\r\n";
    const HttpHeaders* const sources[] = {&extra_, &reply.headers};
    for (const HttpHeaders* headers : sources) {
        for (const auto& [name, value] : *headers) out += name + ": " + value + "\r\n";
    }
    out += "X-Content-Type-Options: nosniff\r\n\r\n";
    status_ = reply.status;
    return out;
}

asio::awaitable<bool> HttpExchange::write(std::string bytes) {
    if (gone) co_return false;
    auto result = co_await asio::async_write(stream_, asio::buffer(bytes), asio::as_tuple(asio::use_awaitable));
    if (std::get<0>(result)) gone = true;
    co_return !gone;
}

asio::awaitable<bool> HttpExchange::reply(HttpReply whole) {
    if (gone) whole.status = kClientGone;   // for the log alone
    std::string bytes = head_text(whole, false);
    if (!head_only_) bytes += whole.body;
    for (std::size_t at = 0; !gone && at < bytes.size(); at += kPieceBytes) {
        stream_.expires_after(patience_);
        co_await write(bytes.substr(at, kPieceBytes));
    }
    stream_.expires_never();
    co_return !gone;
}

asio::awaitable<bool> HttpExchange::begin(HttpReply head) {
    std::string bytes = head_text(head, true);
    return write(std::move(bytes));
}

asio::awaitable<bool> HttpExchange::piece(std::string bytes) {
    if (http_1_0_) return write(std::move(bytes));
    constexpr char digits[] = "0123456789abcdef";
    std::string size;
    for (std::size_t left = bytes.size(); left > 0; left /= 16) size.insert(size.begin(), digits[left % 16]);
    return write(size + "\r\n" + bytes + "\r\n");
}

asio::awaitable<bool> HttpExchange::end() { return write(http_1_0_ ? std::string() : std::string("0\r\n\r\n")); }

asio::any_io_executor HttpExchange::executor() const { return stream_.get_executor(); }

}  // namespace takt::server
