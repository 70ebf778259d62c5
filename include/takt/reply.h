// Reply: one accepted request's stream of text. Move-only; a handle on engine state (pimpl).
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/system/error_code.hpp>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <takt/request.h>

namespace takt {

namespace detail {
class ReplyState;
}

/// Distinct replies: any threads at once. One reply: one thread at a time, but for cancel. May outlive its engine, which ends it. An
/// empty one (default-constructed or moved from) has no next piece: async_next wants one that is not.
class Reply {
public:
    using NextHandler = boost::asio::any_completion_handler<void(boost::system::error_code, std::optional<Chunk>)>;

    Reply();
    explicit Reply(std::shared_ptr<detail::ReplyState> state);
    Reply(Reply&&) noexcept;
    Reply& operator=(Reply&&) noexcept;
    Reply(const Reply&) = delete;
    Reply& operator=(const Reply&) = delete;
    /// Cancels what is still running; an outstanding async_next completes with errc::cancelled.
    ~Reply();

    /// The next piece of text; an empty optional at the end (then result() is set). Completes exactly once, never inside this
    /// call, on the handler's associated executor, else the engine's. At most one outstanding: a second one completes with
    /// errc::bad_request. Its cancellation slot cancels the wait only (operation_aborted): the request lives on.
    /// Errors: device_lost, deadline_exceeded, internal; after an error the reply has ended.
    template <class Token>
    auto async_next(Token&& token) {
        return boost::asio::async_initiate<Token, void(boost::system::error_code, std::optional<Chunk>)>(
            [this](auto handler) {
                // Asked here, where its type is known: of an erased handler each look at its executor costs an allocation.
                boost::asio::any_io_executor executor;
                using Own = boost::asio::associated_executor_t<decltype(handler), boost::asio::any_io_executor>;
                if constexpr (std::is_same_v<Own, boost::asio::any_io_executor>) {
                    executor = boost::asio::get_associated_executor(handler, executor);
                }
                start_next(NextHandler(std::move(handler)), std::move(executor));
            },
            token);
    }

    /// A piece that is ready now, without waiting; empty if none is (or while an async_next is outstanding).
    std::optional<Chunk> try_next();

    /// Ends the stream normally with reason `cancelled`. Any thread; idempotent.
    void cancel();

    /// Tokens of the prompt and how many of them the prefix cache is expected to hold (an estimate at admission).
    [[nodiscard]] int64_t prompt_tokens() const;
    [[nodiscard]] int64_t cached_tokens() const;

    /// Set once the end (empty optional or an error) was seen.
    [[nodiscard]] std::optional<RequestResult> result() const;
    explicit operator bool() const { return state_ != nullptr; }

private:
    /// `executor`: the handler's own; empty: to be asked of it.
    void start_next(NextHandler handler, boost::asio::any_io_executor executor);
    std::shared_ptr<detail::ReplyState> state_;
};

}  // namespace takt
