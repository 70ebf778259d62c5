// ServerState: what every connection shares: configuration, the engine once it is loaded, access rules, tenants' books,
// counters, the worker for long pure work. Created by Server; used on the server's thread only.
#pragma once

#include <takt/engine.h>

#include <array>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "server/access.h"
#include "server/message_room.h"
#include "server/tenant_book.h"

namespace takt::server {

/// Something that the server ends when it stops: a connection.
class Closable {
public:
    virtual ~Closable() = default;
    /// Finish what runs and go: keep-alive ends, WebSockets close with 1001 once they have nothing left to send.
    virtual void wind_down() = 0;
    /// Close now.
    virtual void abort() = 0;
};

struct ServerState {
    ServerState(asio::io_context& io_context, Config configuration, const Environment& environment)
        : io(io_context), config(std::move(configuration)), access(config, environment), tenants(config),
          message_room(static_cast<std::size_t>(config.server.max_message_kib) * 1024) {}

    asio::io_context& io;
    const Config config;
    const Access access;
    TenantBook tenants;
    MessageRoom message_room;
    Engine engine;                            ///< empty until loaded
    std::string model_name;                   ///< set with the engine
    std::int64_t started_unix = 0;
    bool draining = false;
    std::chrono::steady_clock::time_point drain_deadline;   ///< while draining: what runs then is cancelled, and this process ends

    std::int64_t num_connections = 0;
    std::int64_t num_websockets = 0;
    std::uint64_t num_http_requests = 0;
    std::array<std::uint64_t, 16> num_refused{};   ///< by errc: requests that never came to the engine, which counts its own
    std::uint64_t next_id = 1;
    std::set<Closable*> connections;

    /// Tokenising, parsing and rendering of long texts, so that they delay nobody's tokens.
    asio::thread_pool worker{1};

    void count_refusal(errc code) { ++num_refused[static_cast<std::size_t>(code)]; }
    void log(LogLevel level, std::string_view message) const {
        if (!config.log) return;
        LogRecord record;
        record.level = level;
        record.component = "server";
        record.message = message;
        config.log(record);
    }
    /// A new id with this prefix, unique in the process.
    std::string make_id(std::string_view prefix);
};

/// Runs a pure function on the worker and resumes on the server's thread with its result; an exception comes along.
template <class Result>
asio::awaitable<Result> on_worker(ServerState& state, std::function<Result()> work) {
    // The token's executor says where the coroutine resumes; without it that is its own, the server's.
    co_await asio::post(asio::bind_executor(state.worker.get_executor(), asio::use_awaitable));
    std::exception_ptr problem;
    Result result{};
    try {
        result = work();
    } catch (...) {
        problem = std::current_exception();
    }
    co_await asio::post(state.io, asio::use_awaitable);
    if (problem) std::rethrow_exception(problem);
    co_return result;
}

/// The same for the reading of a text of so many bytes, which takes a millisecond at 64 KiB: what is shorter is read at once.
template <class Result>
asio::awaitable<Result> on_worker_if_long(ServerState& state, std::size_t num_bytes, std::function<Result()> work) {
    if (num_bytes <= 64 * 1024) co_return work();
    Result result = co_await on_worker<Result>(state, std::move(work));
    co_return result;
}

}  // namespace takt::server
