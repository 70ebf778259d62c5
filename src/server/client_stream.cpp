// ClientStream: TCP with Beast's time-outs, OpenSSL on top where asked for.
#include "server/client_stream.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <boost/beast/websocket/teardown.hpp>
#include <optional>

namespace takt::server {

namespace beast = boost::beast;
namespace ssl = asio::ssl;

struct ClientStream::Layers {
    explicit Layers(asio::ip::tcp::socket socket) : tcp(std::move(socket)) {}
    beast::tcp_stream tcp;
    std::optional<ssl::stream<beast::tcp_stream&>> tls;
};

namespace {

// Beast posts to the handler's executor, which a type-erased one cannot do in Boost 1.81; everything here runs on the
// stream's own anyway.
template <class Handler>
auto bind_to(const asio::any_io_executor& executor, Handler handler) {
    return asio::bind_executor(executor, std::move(handler));
}

}  // namespace

ClientStream::ClientStream(asio::ip::tcp::socket socket, ssl::context* tls) : layers_(std::make_unique<Layers>(std::move(socket))) {
    if (tls != nullptr) layers_->tls.emplace(layers_->tcp, *tls);
}

ClientStream::ClientStream(ClientStream&&) noexcept = default;

ClientStream::~ClientStream() = default;

asio::awaitable<bool> ClientStream::handshake() {
    if (!layers_->tls) co_return true;
    auto result = co_await layers_->tls->async_handshake(ssl::stream_base::server, asio::as_tuple(asio::use_awaitable));
    co_return !std::get<0>(result);
}

asio::awaitable<void> ClientStream::finish() {
    expires_after(std::chrono::seconds(1));
    if (layers_->tls) {
        auto result = co_await layers_->tls->async_shutdown(asio::as_tuple(asio::use_awaitable));
        static_cast<void>(result);
    }
    boost::system::error_code ignored;
    socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

void ClientStream::start_read(asio::mutable_buffer buffer, IoHandler handler) {
    if (layers_->tls) {
        layers_->tls->async_read_some(buffer, bind_to(get_executor(), std::move(handler)));
    } else {
        layers_->tcp.async_read_some(buffer, bind_to(get_executor(), std::move(handler)));
    }
}

void ClientStream::start_write(WriteBuffers buffers, IoHandler handler) {
    if (layers_->tls) {
        layers_->tls->async_write_some(buffers, bind_to(get_executor(), std::move(handler)));
    } else {
        layers_->tcp.async_write_some(buffers, bind_to(get_executor(), std::move(handler)));
    }
}

void ClientStream::expires_after(std::chrono::nanoseconds time) {
    layers_->tcp.expires_after(time);
}

void ClientStream::expires_never() { layers_->tcp.expires_never(); }

void ClientStream::close() {
    if (layers_) layers_->tcp.close();
}

bool ClientStream::secure() const { return layers_->tls.has_value(); }

ClientStream::executor_type ClientStream::get_executor() const { return layers_->tcp.get_executor(); }

asio::ip::tcp::socket& ClientStream::socket() { return layers_->tcp.socket(); }

void ClientStream::start_teardown(beast::role_type role, EndHandler handler) {
    using beast::websocket::async_teardown;
    if (layers_->tls) {
        async_teardown(role, *layers_->tls, bind_to(get_executor(), std::move(handler)));
    } else {
        async_teardown(role, layers_->tcp, bind_to(get_executor(), std::move(handler)));
    }
}

}  // namespace takt::server
