// Accept loop, limits, draining. Server thread.
#include "server/server.h"

#include <takt/error.h>
#include <takt/short_turns.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <map>

#include "server/clock.h"
#include "server/http_connection.h"
#include "server/http_exchange.h"
#include "server/second_sender.h"
#include "server/server_state.h"
#include "server/task_group.h"
#include "server/tls_context.h"

namespace takt::server {

using asio::ip::tcp;

namespace {

constexpr auto kAcceptPause = std::chrono::milliseconds(50);   // after an accept that failed: no descriptor left
constexpr int kMaxRefused = 32;        // answered at once; what comes beyond them is closed unheard
constexpr auto kCloseGrace = std::chrono::seconds(3);          // for close frames and last writes after the drain

std::string endpoint_text(const std::string& host, int port) { return host + ":" + std::to_string(port); }

void check_bind(const Config& config, bool insecure) {
    const ServerSection& server = config.server;
    if (!is_loopback_name(server.host) && config.tenants.empty() && !insecure) {
        throw config_error("server.host: found " + server.host +
                           ", which others can reach, and no [[tenant]] has a key; allowed with keys, on a loopback "
                           "address, or with --insecure");
    }
}

}  // namespace

class Server::Impl {
public:
    Impl(asio::io_context& io, Config config, const Environment& environment)
        : state(io, std::move(config), environment),
          tls(make_tls_context(state.config.server)),
          acceptor(io),
          sends(std::make_shared<SecondSender>(io.get_executor(), state.config.device.placement == "apart")),
          tasks(io.get_executor(), [this](std::exception_ptr problem) { report(problem); }) {
        state.started_unix = unix_seconds();
        state.model_name = state.config.model.name;
    }

    void listen();
    asio::awaitable<void> accept_loop();
    asio::awaitable<void> serve(tcp::socket socket, asio::ip::address address);
    asio::awaitable<void> refuse(tcp::socket socket, int status, std::string message);
    asio::awaitable<void> drain();
    asio::awaitable<void> wait_for_connections();
    void end_now();
    void report(std::exception_ptr problem) const;
    [[nodiscard]] std::string refusal_of(const asio::ip::address& address) const;

    ServerState state;
    std::unique_ptr<asio::ssl::context> tls;      // null: plain HTTP
    tcp::acceptor acceptor;
    const std::shared_ptr<SecondSender> sends;
    TaskGroup tasks;
    std::map<asio::ip::address, int> by_address;
    int num_refused = 0;                          // connections that take their refusal
    int port = 0;
};

void Server::Impl::report(std::exception_ptr problem) const {
    try {
        std::rethrow_exception(problem);
    } catch (const std::exception& error) {
        state.log(LogLevel::error, std::string("a connection ended by an exception: ") + error.what());
    }
}

void Server::Impl::listen() {
    const ServerSection& server = state.config.server;
    const std::string where = endpoint_text(server.host, server.port);
    boost::system::error_code ec;
    tcp::resolver resolver(state.io);
    const auto found = resolver.resolve(server.host, std::to_string(server.port), ec);
    if (ec || found.empty()) {
        throw load_error(errc::internal, "server.host: " + server.host + ": " +
                                             (ec ? ec.message() : std::string("no address")));
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
    if (ec == asio::error::address_in_use) {
        throw load_error(errc::internal, "server.port: " + where +
                                             " is taken by another program; stop it, or choose another: --set server.port=N");
    }
    if (ec) throw load_error(errc::internal, "cannot listen on " + where + ": " + ec.message());
    port = acceptor.local_endpoint().port();
    tasks.spawn(accept_loop());
}

std::string Server::Impl::refusal_of(const asio::ip::address& address) const {
    const ServerSection& server = state.config.server;
    if (state.num_connections >= server.max_connections) return "server.max_connections is reached";
    const auto found = by_address.find(address);
    if (server.max_connections_per_address > 0 && found != by_address.end() &&
        found->second >= server.max_connections_per_address) {
        return "server.max_connections_per_address is reached";
    }
    return std::string();
}

asio::awaitable<void> Server::Impl::accept_loop() {
    while (acceptor.is_open()) {
        auto result = co_await acceptor.async_accept(asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(result) == asio::error::operation_aborted || !acceptor.is_open()) co_return;
        if (std::get<0>(result)) {
            state.log(LogLevel::warning, "accept: " + std::get<0>(result).message());
            asio::steady_timer pause(state.io, kAcceptPause);
            auto waited = co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
            static_cast<void>(waited);
            continue;
        }
        tcp::socket socket = std::move(std::get<1>(result));
        boost::system::error_code ec;
        const asio::ip::address address = socket.remote_endpoint(ec).address();
        if (ec) continue;
        socket.set_option(tcp::no_delay(true), ec);
        std::string refusal = refusal_of(address);
        if (!refusal.empty()) {
            // A refused connection has up to two seconds to take its answer: without a bound one address would hold all files so.
            if (num_refused >= kMaxRefused) continue;
            ++num_refused;
            tasks.spawn(refuse(std::move(socket), 503, std::move(refusal)));
        } else {
            tasks.spawn(serve(std::move(socket), address));
        }
    }
}

namespace {

// Of a connection that takes its refusal; given back with it.
struct RefusedPlace {
    int& count;
    ~RefusedPlace() { --count; }
};

// One read that takes a second at most.
asio::awaitable<void> read_within_a_second(tcp::socket& socket) {
    std::string rest(1024, '\0');
    asio::steady_timer limit(socket.get_executor(), std::chrono::seconds(1));
    const auto is_over = std::make_shared<bool>(false);   // a limit that has passed already is not reached by the cancel below
    limit.async_wait([&socket, is_over](const boost::system::error_code& ec) {
        boost::system::error_code ignored;
        if (!ec && !*is_over) socket.cancel(ignored);
    });
    auto read = co_await socket.async_read_some(asio::buffer(rest), asio::as_tuple(asio::use_awaitable));
    static_cast<void>(read);
    *is_over = true;
    limit.cancel();
}

}  // namespace

// Over the limits: a short answer to whatever came first. Before that a client may take the answer for a connection that broke.
asio::awaitable<void> Server::Impl::refuse(tcp::socket socket, int status, std::string message) {
    const RefusedPlace place{num_refused};
    co_await read_within_a_second(socket);
    const HttpReply reply = error_reply(status, "queue_full", message);
    std::string bytes = "HTTP/1.1 " + std::to_string(status) + ' ';
    bytes += status_text(status);
    bytes += "\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: " +
             std::to_string(reply.body.size()) + "\r\n\r\n" + reply.body;
    auto written = co_await asio::async_write(socket, asio::buffer(bytes), asio::as_tuple(asio::use_awaitable));
    static_cast<void>(written);
    boost::system::error_code ignored;
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    co_await read_within_a_second(socket);
}

asio::awaitable<void> Server::Impl::serve(tcp::socket socket, asio::ip::address address) {
    ++state.num_connections;
    ++by_address[address];
    std::exception_ptr problem;
    try {
        ClientStream stream(std::move(socket), tls.get(), sends);
        co_await serve_connection(state, std::move(stream));
    } catch (...) {
        problem = std::current_exception();
    }
    --state.num_connections;
    if (--by_address[address] == 0) by_address.erase(address);
    if (problem) std::rethrow_exception(problem);
}

asio::awaitable<void> Server::Impl::wait_for_connections() {
    // The limit cuts whoever does not answer our close.
    asio::steady_timer limit(state.io, kCloseGrace);
    limit.async_wait([this](const boost::system::error_code& ec) {
        if (ec) return;
        const std::set<Closable*> left = state.connections;
        for (Closable* connection : left) connection->abort();
    });
    co_await tasks.empty();
    limit.cancel();
}

asio::awaitable<void> Server::Impl::drain() {
    state.draining = true;
    const auto grace = std::chrono::nanoseconds(static_cast<std::int64_t>(state.config.server.drain_seconds * 1e9));
    state.drain_deadline = steady_now() + grace;
    boost::system::error_code ignored;
    acceptor.close(ignored);
    const std::set<Closable*> all = state.connections;
    for (Closable* connection : all) connection->wind_down();
    if (state.engine) {
        auto drained = co_await state.engine.async_drain(state.drain_deadline, asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(drained)) state.log(LogLevel::warning, "drain_seconds passed: the rest was cancelled");
    }
    co_await wait_for_connections();
}

// Without a drain before, as after a failed start: connections use what this owns, so they must be gone before it is.
void Server::Impl::end_now() {
    boost::system::error_code ignored;
    acceptor.close(ignored);
    const std::set<Closable*> left = state.connections;
    for (Closable* connection : left) connection->abort();
    state.io.restart();
    const auto limit = steady_now() + kCloseGrace;
    while (tasks.size() > 0 && steady_now() < limit) state.io.run_one_until(limit);
}

Server::Server(asio::io_context& io, Config config, const Environment& environment, bool insecure) {
    check_bind(config, insecure);
    impl_ = std::make_unique<Impl>(io, std::move(config), environment);
}

Server::~Server() {
    if (impl_) impl_->end_now();
}

void Server::listen() { impl_->listen(); }

int Server::port() const { return impl_->port; }

void Server::set_engine(Engine engine) {
    impl_->state.engine = std::move(engine);
    impl_->state.model_name = impl_->state.engine.model().name;
    // The engine's threads are there by now: they do not take after this one, which sends what they compute.
    if (impl_->state.config.device.placement == "apart") ask_for_short_turns();
}

const Engine& Server::engine() const { return impl_->state.engine; }

bool Server::secure() const { return impl_->tls != nullptr; }

bool Server::device_lost() const { return impl_->state.engine && impl_->state.engine.health().device_lost; }

asio::awaitable<void> Server::drain() { return impl_->drain(); }

void Server::release_engine() {
    impl_->state.worker.join();
    impl_->state.engine = Engine();
}

}  // namespace takt::server
