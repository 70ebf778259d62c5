// ClientStream: TCP with Beast's time-outs, OpenSSL on top where asked for.
#include "server/client_stream.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <boost/beast/websocket/teardown.hpp>
#include <optional>
#include <string>

#include "server/second_sender.h"

namespace takt::server {

namespace beast = boost::beast;
namespace ssl = asio::ssl;

struct ClientStream::Layers {
    Layers(asio::ip::tcp::socket socket, std::shared_ptr<SecondSender> second_or_null)
        : tcp(std::move(socket)), second(std::move(second_or_null)) {}
    Layers(const Layers&) = delete;
    Layers& operator=(const Layers&) = delete;
    ~Layers() {
        end_given();
        writing->layers = nullptr;
    }

    // Who writes: one at a time. Shared with what is under way, which may end after the stream.
    struct Writing {
        Layers* layers;
        bool busy = false;
        bool is_given = false;     // busy because of a message that the second thread has
        // Begins when the rest of a write_now() is out. (A handler's assignment is broken in Boost 1.81: emplaced.)
        WriteBuffers next;
        std::optional<IoHandler> next_handler;
        void write_next(boost::system::error_code error);
    };
    struct WatchedWrite;
    void write(WriteBuffers buffers, IoHandler handler);
    void send_rest(std::string rest);
    void give(std::string_view message);
    void end_given();
    bool is_busy();

    std::string put_back;
    beast::tcp_stream tcp;
    std::optional<ssl::stream<beast::tcp_stream&>> tls;
    std::shared_ptr<SecondSender> second;
    std::shared_ptr<SecondSender::Job> job;     // once there was a message for the second thread
    const std::shared_ptr<Writing> writing = std::make_shared<Writing>(Writing{this, false, false, {}, std::nullopt});
};

namespace {

// Beast posts to the handler's executor, which a type-erased one cannot do in Boost 1.81; everything here runs on the
// stream's own anyway.
template <class Handler>
auto bind_to(const asio::any_io_executor& executor, Handler handler) {
    return asio::bind_executor(executor, std::move(handler));
}

}  // namespace

ClientStream::ClientStream(asio::ip::tcp::socket socket, ssl::context* tls, std::shared_ptr<SecondSender> second)
    : layers_(std::make_unique<Layers>(std::move(socket), std::move(second))) {
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

void ClientStream::put_back(std::string_view bytes) { layers_->put_back.append(bytes); }

void ClientStream::start_read(asio::mutable_buffer buffer, IoHandler handler) {
    if (!layers_->put_back.empty()) {
        const std::size_t count = asio::buffer_copy(buffer, asio::buffer(layers_->put_back));
        layers_->put_back.erase(0, count);
        asio::post(get_executor(), [count, held = std::move(handler)]() mutable { std::move(held)(boost::system::error_code(), count); });
    } else if (layers_->tls) {
        layers_->tls->async_read_some(buffer, bind_to(get_executor(), std::move(handler)));
    } else {
        layers_->tcp.async_read_some(buffer, bind_to(get_executor(), std::move(handler)));
    }
}

// A write of Beast's: its handler begins what remains of a longer message before it returns, so nothing comes between.
struct ClientStream::Layers::WatchedWrite {
    std::shared_ptr<Writing> writing;
    IoHandler handler;
    void operator()(boost::system::error_code error, std::size_t count) {
        writing->busy = false;
        std::move(handler)(error, count);
    }
};

void ClientStream::Layers::write(WriteBuffers buffers, IoHandler handler) {
    if (is_busy()) {
        writing->next = buffers;
        writing->next_handler.emplace(std::move(handler));
        return;
    }
    writing->busy = true;
    tcp.async_write_some(buffers, bind_to(tcp.get_executor(), WatchedWrite{writing, std::move(handler)}));
}

void ClientStream::Layers::send_rest(std::string rest) {
    const auto held = std::make_shared<std::string>(std::move(rest));
    writing->busy = true;
    asio::async_write(tcp, asio::buffer(*held), [held, state = writing](boost::system::error_code error, std::size_t) {
        state->busy = false;
        state->write_next(error);
    });
}

void ClientStream::Layers::Writing::write_next(boost::system::error_code error) {
    if (!next_handler) return;
    IoHandler handler(std::move(*next_handler));
    next_handler.reset();
    if (!error && layers == nullptr) error = asio::error::operation_aborted;
    if (error) return std::move(handler)(error, 0);
    layers->write(next, std::move(handler));
}

// Until the second thread is through, the socket belongs to it: whatever closes it calls end_given() first.
void ClientStream::Layers::give(std::string_view message) {
    if (!job) {
        job = std::make_shared<SecondSender::Job>();
        job->finished = [this] {
            writing->busy = writing->is_given = false;
            if (job->num_sent < job->bytes.size()) return send_rest(job->bytes.substr(job->num_sent));
            writing->write_next({});
        };
    }
    job->socket = tcp.socket().native_handle();
    job->bytes.assign(message);
    writing->busy = writing->is_given = true;
    second->give(job);
}

void ClientStream::Layers::end_given() {
    if (writing->is_given) second->finish(job);
}

bool ClientStream::Layers::is_busy() {
    return writing->busy && !(writing->is_given && second->finish_if_sent(job) && !writing->busy);
}

void ClientStream::start_write(WriteBuffers buffers, IoHandler handler) {
    if (layers_->tls) {
        layers_->tls->async_write_some(buffers, bind_to(get_executor(), std::move(handler)));
    } else {
        layers_->write(buffers, std::move(handler));
    }
}

bool ClientStream::write_now(std::string_view message) {
    if (layers_->tls || layers_->is_busy()) return false;
    boost::system::error_code error;
    if (!socket().non_blocking()) socket().non_blocking(true, error);
    if (!error && layers_->second && layers_->second->wants_more()) {
        layers_->give(message);
        return true;
    }
    const std::size_t count = error ? 0 : socket().write_some(asio::buffer(message.data(), message.size()), error);
    if (error || count == 0) return false;
    if (count < message.size()) layers_->send_rest(std::string(message.substr(count)));
    return true;
}

void ClientStream::expires_after(std::chrono::nanoseconds time) {
    layers_->tcp.expires_after(time);
}

void ClientStream::expires_never() { layers_->tcp.expires_never(); }

void ClientStream::close() {
    if (!layers_) return;
    layers_->end_given();
    layers_->tcp.close();
}

bool ClientStream::secure() const { return layers_->tls.has_value(); }

ClientStream::executor_type ClientStream::get_executor() const { return layers_->tcp.get_executor(); }

asio::ip::tcp::socket& ClientStream::socket() { return layers_->tcp.socket(); }

void ClientStream::start_teardown(beast::role_type role, EndHandler handler) {
    using beast::websocket::async_teardown;
    layers_->end_given();
    if (layers_->tls) {
        async_teardown(role, *layers_->tls, bind_to(get_executor(), std::move(handler)));
    } else {
        async_teardown(role, layers_->tcp, bind_to(get_executor(), std::move(handler)));
    }
}

}  // namespace takt::server
