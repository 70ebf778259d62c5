// One connection's requests, over Beast's HTTP parser. Server thread.
#include "server/http_connection.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <optional>

#include "server/clock.h"
#include "server/http_exchange.h"
#include "server/json_text.h"
#include "server/protocol.h"
#include "server/responses_session.h"
#include "server/routes.h"
#include "server/stream_session.h"
#include "server/task_group.h"
#include "server/ws_beast.h"

namespace takt::server {

namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using Parser = http::request_parser<http::string_body>;

constexpr std::uint32_t kMaxHeaderBytes = 16 * 1024;
// What is read and not yet parsed. The parser takes heads, chunk extensions and trailers only whole and leaves their bound to this.
constexpr std::size_t kMaxUnparsedBytes = 64 * 1024;
constexpr auto kIdleSeconds = std::chrono::seconds(75);   // a kept-alive connection without a request
constexpr double kBodyFactor = 6;                         // a body may take this many times header_seconds
constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr auto kPeerCheck = std::chrono::milliseconds(200);

class HttpConnection final : public Closable {
public:
    HttpConnection(ServerState& state, ClientStream stream)
        : state_(state), stream_(std::move(stream)), watch_timer_(stream_.get_executor()) {
        beast::error_code ec;
        loopback_peer_ = stream_.socket().remote_endpoint(ec).address().is_loopback();
        if (ec) loopback_peer_ = false;
        state_.connections.insert(this);
    }
    ~HttpConnection() override { state_.connections.erase(this); }

    asio::awaitable<void> run();
    void wind_down() override;
    void abort() override;

private:
    asio::awaitable<bool> read_request(Parser& parser);
    asio::awaitable<bool> read_body(Parser& parser);
    asio::awaitable<bool> wait_for_request();
    asio::awaitable<void> refuse_unread(beast::error_code ec);
    asio::awaitable<void> refuse_without_room();
    asio::awaitable<void> answer_unread(HttpReply reply);
    asio::awaitable<void> read_off();
    asio::awaitable<bool> serve_one(Parser& parser);
    asio::awaitable<void> watch(HttpExchange& exchange);
    [[nodiscard]] bool peer_has_closed();
    asio::awaitable<void> become_websocket(UpgradeRequest request, HttpRequest plain);
    asio::awaitable<void> run_session(std::unique_ptr<BeastWsSocket> socket, HttpRequest plain);
    std::optional<HttpReply> refuse(HttpRequest& request, bool upgrade);
    std::optional<HttpReply> refuse_upgrade(const HttpRequest& request, std::string& subprotocol);
    HttpRequest plain_request(const UpgradeRequest& message);
    void log_request(const HttpRequest& request, int status, std::uint64_t begin_ns);
    // With a body that comes, and with an answer that is to be taken.
    std::chrono::nanoseconds patience() const { return seconds(state_.config.server.header_seconds * kBodyFactor); }
    std::size_t max_message_bytes() const { return static_cast<std::size_t>(state_.config.server.max_message_kib) * 1024; }
    std::chrono::nanoseconds seconds(double value) const {
        return std::chrono::nanoseconds(static_cast<std::int64_t>(value * 1e9));
    }

    ServerState& state_;
    ClientStream stream_;
    asio::steady_timer watch_timer_;
    beast::flat_buffer buffer_{kMaxUnparsedBytes};
    std::optional<MessageRoom::Share> body_room_;   // of the request that is read or answered
    bool loopback_peer_ = false;
    bool winding_down_ = false;
    bool idle_ = true;
    WsSocket* ws_ = nullptr;
    StreamSession* stream_session_ = nullptr;
    ResponsesSession* responses_session_ = nullptr;
};

void HttpConnection::wind_down() {
    winding_down_ = true;
    if (stream_session_ != nullptr) {
        stream_session_->wind_down();
    } else if (responses_session_ != nullptr) {
        responses_session_->wind_down();
    } else if (idle_) {
        abort();
    }
}

void HttpConnection::abort() {
    if (ws_ != nullptr) {
        ws_->abort();
    } else {
        stream_.close();
    }
}

// False: the peer closed, or sent nothing for too long. Reading on after an end of file would wait for ever.
asio::awaitable<bool> HttpConnection::wait_for_request() {
    stream_.expires_after(kIdleSeconds);
    for (;;) {
        // Empty lines before a request: some clients send one after a body.
        while (std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size()).substr(0, 2) == "\r\n") buffer_.consume(2);
        if (buffer_.size() > 0) co_return true;
        auto read = co_await stream_.async_read_some(buffer_.prepare(1024), asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(read)) co_return false;
        buffer_.commit(std::get<1>(read));
    }
}

// The answer to bytes that are no request: by what the parser said; a peer that closed or dawdled gets none.
asio::awaitable<void> HttpConnection::refuse_unread(beast::error_code ec) {
    int status = 400;
    if (ec == http::error::header_limit || ec == http::error::buffer_overflow) status = 431;
    if (ec == http::error::body_limit) status = 413;
    const bool silent = ec == http::error::end_of_stream || ec == beast::error::timeout ||
                        ec == http::error::partial_message || ec.category() != make_error_code(http::error::bad_method).category();
    if (silent) co_return;
    const errc code = status == 413 ? errc::too_large : errc::bad_request;
    state_.count_refusal(code);
    std::string message = "not a valid HTTP request: " + ec.message();
    if (status == 413) message = "the body is longer than server.max_message_kib";
    if (status == 431) message = "the header is longer than 16 KiB, or a chunk's extension or the trailers longer than 64 KiB";
    HttpReply reply = error_reply(status, error_info(code).code, message);
    co_await answer_unread(std::move(reply));
}

asio::awaitable<void> HttpConnection::refuse_without_room() {
    state_.count_refusal(errc::queue_full);
    state_.log(LogLevel::warning, "no room for a request's body beside others that have not ended: it gets 503");
    HttpReply reply = error_reply(503, error_info(errc::queue_full).code,
                                  "no room for this body beside those of other requests, try again later; one of up to " +
                                      std::to_string(MessageRoom::kFreeBytes / 1024) + " KiB needs none");
    reply.headers.emplace_back("Retry-After", "1");
    co_await answer_unread(std::move(reply));
}

// The answer to a request that was not read to its end, which ends the connection.
asio::awaitable<void> HttpConnection::answer_unread(HttpReply reply) {
    HttpExchange exchange(stream_, patience(), false, false, HttpHeaders());
    exchange.keep_alive = false;
    co_await exchange.reply(std::move(reply));
    co_await read_off();
}

// After an answer to what was not read to its end: closing with unread bytes would reset the connection under the answer. A body that is
// within its bound is read off whole if it comes in time.
asio::awaitable<void> HttpConnection::read_off() {
    co_await stream_.finish();
    std::string rest(4096, '\0');
    for (std::size_t left = max_message_bytes(); left > 0;) {
        auto read = co_await stream_.async_read_some(asio::buffer(rest), asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(read)) co_return;
        left -= std::min(left, std::get<1>(read));
    }
}

asio::awaitable<bool> HttpConnection::read_body(Parser& parser) {
    const auto& message = parser.get();
    if (beast::iequals(message[http::field::expect], "100-continue")) {
        const std::string proceed = "HTTP/1.1 100 Continue\r\n\r\n";
        auto written = co_await asio::async_write(stream_, asio::buffer(proceed), asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(written)) co_return false;
    }
    stream_.expires_after(patience());
    parser.eager(true);   // or a read ends after a head or a chunk's
    while (!parser.is_done()) {
        auto read = co_await http::async_read_some(stream_, buffer_, parser, asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(read)) {
            co_await refuse_unread(std::get<0>(read));
            co_return false;
        }
        if (body_room_->grow_to(message.body().size())) continue;
        co_await refuse_without_room();
        co_return false;
    }
    co_return true;
}

asio::awaitable<bool> HttpConnection::read_request(Parser& parser) {
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(max_message_bytes());
    body_room_.emplace(state_.message_room);
    stream_.expires_after(seconds(state_.config.server.header_seconds));
    auto head = co_await http::async_read_header(stream_, buffer_, parser, asio::as_tuple(asio::use_awaitable));
    if (std::get<0>(head)) {
        co_await refuse_unread(std::get<0>(head));
        co_return false;
    }
    idle_ = false;
    if (!parser.is_done()) {
        const bool whole = co_await read_body(parser);
        if (!whole) co_return false;
    }
    stream_.expires_never();
    co_return true;
}

HttpRequest HttpConnection::plain_request(const UpgradeRequest& message) {
    HttpRequest out;
    out.method = std::string(message.method_string());
    RequestTarget target = parse_target(message.target());
    out.path = std::move(target.path);
    out.query = std::move(target.query);
    if (!target.authority.empty()) out.headers.emplace_back("Host", std::move(target.authority));   // the first one counts
    for (const auto& field : message) out.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    out.loopback_peer = loopback_peer_;
    const std::string_view shown_id = out.header("x-request-id");
    bool usable = !shown_id.empty() && shown_id.size() <= kMaxRequestIdBytes;
    for (const char c : shown_id) usable = usable && c > ' ' && c < 0x7F;
    out.request_id = usable ? std::string(shown_id) : state_.make_id("req_");
    return out;
}

// A message that others on the way could read differently: whose it is, or where it ends.
std::optional<HttpReply> ambiguous(const UpgradeRequest& message) {
    const std::size_t num_hosts = message.count(http::field::host);
    if (num_hosts > 1 || (num_hosts == 0 && message.version() >= 11)) {
        return error_reply(400, "bad_request", "Host: found " + std::to_string(num_hosts) + " of them, allowed one");
    }
    const auto encoding = message.find(http::field::transfer_encoding);
    if (encoding != message.end() && !beast::iequals(encoding->value(), "chunked")) {
        return error_reply(400, "bad_request", "Transfer-Encoding: found " + valid_utf8(std::string_view(encoding->value()).substr(0, 60)) +
                                                   ", allowed chunked");
    }
    return std::nullopt;
}

std::optional<HttpReply> HttpConnection::refuse(HttpRequest& request, bool upgrade) {
    std::optional<HttpReply> out = state_.access.refuse(request, upgrade);
    if (out || request.method == "OPTIONS") return out;
    const std::optional<Identity> identity = state_.access.identify(request);
    if (!identity) {
        state_.count_refusal(errc::unauthorized);
        out = error_reply(401, "unauthorized", "a valid key is needed: Authorization: Bearer KEY");
        out->headers.emplace_back("WWW-Authenticate", "Bearer");
        return out;
    }
    request.identity = *identity;
    return std::nullopt;
}

std::optional<HttpReply> HttpConnection::refuse_upgrade(const HttpRequest& request, std::string& subprotocol) {
    if (request.path != "/v1/stream" && request.path != "/v1/responses") {
        return error_reply(404, "not_found", "there is no WebSocket at this path");
    }
    if (state_.draining || winding_down_) return error_reply(503, "draining", "the server is shutting down");
    if (!state_.engine) return error_reply(503, "draining", "the model is not loaded yet");
    bool others = false;
    for (const std::string& offered : header_list(request.header("sec-websocket-protocol"))) {
        if (offered == kSubprotocol && request.path == "/v1/stream") subprotocol = offered;
        others = others || offered.rfind(kKeySubprotocolPrefix, 0) != 0;
    }
    if (request.path == "/v1/stream" && subprotocol.empty() && others) {
        return error_reply(400, "bad_request", "Sec-WebSocket-Protocol: allowed takt.v1");
    }
    if (!state_.tenants.connect(request.identity.tenant)) {
        return error_reply(429, "rate_limited", "the tenant's max_connections is reached");
    }
    return std::nullopt;
}

void HttpConnection::log_request(const HttpRequest& request, int status, std::uint64_t begin_ns) {
    const bool routine = request.path == "/metrics" || request.path.rfind("/health", 0) == 0;
    std::string line = request.method + ' ' + valid_utf8(request.path) + ' ' + std::to_string(status) + " in ";
    append_json_number(line, static_cast<std::int64_t>((steady_now_ns() - begin_ns) / 1000));
    line += " us, request " + request.request_id;
    if (!request.identity.tenant.empty()) line += ", tenant " + request.identity.tenant;
    state_.log(routine ? LogLevel::debug : LogLevel::info, line);
}

bool HttpConnection::peer_has_closed() {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (getsockopt(stream_.socket().native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return true;
    return info.tcpi_state == TCP_CLOSE_WAIT || info.tcpi_state == TCP_CLOSE;
}

asio::awaitable<void> HttpConnection::watch(HttpExchange& exchange) {
    auto waited = co_await stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                                                       asio::as_tuple(asio::use_awaitable));
    if (std::get<0>(waited) || exchange.is_over) co_return;
    char byte = 0;
    beast::error_code ec;
    const std::size_t count =
        stream_.socket().receive(asio::buffer(&byte, 1), asio::ip::tcp::socket::message_peek, ec);
    // Bytes: a pipelined request, or TLS's goodbye. The end of the stream lies behind them, unread, so that only the
    // connection's state tells of it.
    while (count > 0 && !exchange.is_over && !peer_has_closed()) {
        watch_timer_.expires_after(kPeerCheck);
        auto slept = co_await watch_timer_.async_wait(asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(slept)) co_return;
    }
    if (exchange.is_over || ec == asio::error::would_block || ec == asio::error::try_again) co_return;
    exchange.gone = true;
    if (exchange.on_gone) exchange.on_gone();
}

// One request to its answer. False: the connection ends.
asio::awaitable<bool> HttpConnection::serve_one(Parser& parser) {
    const std::uint64_t begin_ns = steady_now_ns();
    UpgradeRequest message = parser.release();
    HttpRequest request = plain_request(message);
    const bool upgrade = beast::websocket::is_upgrade(message);
    ++state_.num_http_requests;
    HttpHeaders extra = state_.access.cors_headers(request);
    extra.emplace_back("x-request-id", request.request_id);
    HttpExchange exchange(stream_, patience(), message.version() < 11, request.method == "HEAD", std::move(extra));
    exchange.keep_alive = message.keep_alive() && !winding_down_;
    std::optional<HttpReply> refusal = ambiguous(message);
    if (refusal) {
        exchange.keep_alive = false;
        co_await exchange.reply(std::move(*refusal));
        co_await read_off();
        log_request(request, exchange.status(), begin_ns);
        co_return false;
    }
    refusal = refuse(request, upgrade);
    std::string subprotocol;
    if (!refusal && upgrade) refusal = refuse_upgrade(request, subprotocol);
    if (refusal) {
        co_await exchange.reply(std::move(*refusal));
    } else if (upgrade) {
        log_request(request, 101, begin_ns);
        message.body() = std::move(subprotocol);
        body_room_.reset();
        co_await become_websocket(std::move(message), std::move(request));
        co_return false;
    } else if (request.method == "OPTIONS") {
        HttpReply reply;
        reply.status = 204;
        co_await exchange.reply(std::move(reply));
    } else {
        stream_.socket().non_blocking(true);
        TaskGroup watcher(stream_.get_executor(), TaskGroup::Sink());
        watcher.spawn(watch(exchange));
        HttpRequest handed = request;
        handed.body = std::move(message.body());
        co_await serve_http(state_, std::move(handed), exchange);
        exchange.is_over = true;   // a wait that has ended already is not reached by the cancels below
        beast::error_code ignored;
        stream_.socket().cancel(ignored);
        watch_timer_.cancel();
        co_await watcher.empty();
    }
    log_request(request, exchange.status(), begin_ns);
    co_return exchange.keep_alive && !exchange.gone && !winding_down_;
}

asio::awaitable<void> HttpConnection::become_websocket(UpgradeRequest request, HttpRequest plain) {
    BeastWsSocket::Options options;
    options.subprotocol = std::move(request.body());
    request.body().clear();
    options.request_id = plain.request_id;
    options.ping_seconds = state_.config.server.ping_seconds;
    options.max_message_bytes = max_message_bytes();
    options.room = &state_.message_room;
    options.on_no_room = [this] { state_.log(LogLevel::warning, "no room for a message beside others that never end: its socket closes"); };
    // A client that did not wait for the answer to its handshake.
    stream_.put_back(std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size()));
    buffer_.consume(buffer_.size());
    std::unique_ptr<BeastWsSocket> socket = make_ws_socket(std::move(stream_));
    ws_ = socket.get();
    ++state_.num_websockets;
    const std::string tenant = plain.identity.tenant;
    const bool accepted = co_await socket->accept(std::move(request), std::move(options));
    if (accepted) co_await run_session(std::move(socket), std::move(plain));
    ws_ = nullptr;
    --state_.num_websockets;
    state_.tenants.disconnect(tenant);
}

asio::awaitable<void> HttpConnection::run_session(std::unique_ptr<BeastWsSocket> socket, HttpRequest plain) {
    if (plain.path == "/v1/stream") {
        StreamSession session(state_, *socket, plain.identity);
        stream_session_ = &session;
        if (winding_down_) session.wind_down();
        co_await session.run();
        stream_session_ = nullptr;
    } else {
        ResponsesSession session(state_, *socket, plain.identity);
        responses_session_ = &session;
        if (winding_down_) session.wind_down();
        co_await session.run();
        responses_session_ = nullptr;
    }
    ws_ = nullptr;
}

asio::awaitable<void> HttpConnection::run() {
    stream_.expires_after(seconds(state_.config.server.header_seconds));
    const bool ready = co_await stream_.handshake();
    if (!ready) co_return;
    for (bool first = true;; first = false) {
        idle_ = true;
        if (!first) {
            const bool came = co_await wait_for_request();
            if (!came) break;
        }
        if (winding_down_) break;
        auto parser = std::make_unique<Parser>();
        const bool whole = co_await read_request(*parser);
        if (!whole) co_return;
        const bool again = co_await serve_one(*parser);
        body_room_.reset();
        if (!again) break;
    }
    if (!stream_ || !stream_.socket().is_open()) co_return;
    co_await stream_.finish();
    stream_.close();
}

}  // namespace

asio::awaitable<void> serve_connection(ServerState& state, ClientStream stream) {
    HttpConnection connection(state, std::move(stream));
    co_await connection.run();
}

}  // namespace takt::server
