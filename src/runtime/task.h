// Names for asio's coroutine types and the house way to start one: `spawn` routes an escaped exception to an error sink, so
// that no failure is lost. Engine thread only.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <functional>
#include <utility>

namespace takt {

namespace net = boost::asio;
using error_code = boost::system::error_code;

/// A coroutine on the engine's io_context. The concrete executor keeps each resume free of type-erased calls.
template <class T>
using Task = net::awaitable<T, net::io_context::executor_type>;

inline constexpr net::use_awaitable_t<net::io_context::executor_type> use_task{};

/// Receives the exception of a coroutine that ended by one. Must not throw.
using ErrorSink = std::function<void(std::exception_ptr)>;

/// Starts `task` on `io`; it runs up to its first await inside the next poll of `io`, never inside this call.
/// `sink` is copied into the completion and called on the engine thread.
inline void spawn(net::io_context& io, Task<void> task, ErrorSink sink) {
    net::co_spawn(io.get_executor(), std::move(task), [sink = std::move(sink)](std::exception_ptr error) {
        if (error && sink) sink(error);
    });
}

}  // namespace takt
