// Engine: loads a model, owns a device and one engine thread, and runs requests. A handle (pimpl); move-only.
// No global state, no signal handlers, no writes to standard streams; several engines may live in one process.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/system/error_code.hpp>
#include <boost/version.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <takt/config.h>
#include <takt/error.h>
#include <takt/metrics.h>
#include <takt/reply.h>
#include <takt/request.h>

static_assert(BOOST_VERSION >= 108100, "takt needs Boost 1.81 or newer");

namespace takt {

namespace detail {
class EngineState;
}

/// A refusal's detail beside its error_code: the text to show, and when to try again.
struct Refusal {
    std::string message;
    double retry_after_ms = 0;      ///< 0: none
};

/// Any thread, many at once; only assignment and destruction want the handle for themselves. An empty one (default-constructed or moved
/// from) may be assigned to, destroyed and asked for bool, nothing else. Each asynchronous operation completes exactly once, never inside
/// the call that starts it, on its handler's associated executor, else on the one given to async_load.
class Engine {
public:
    using LoadHandler = boost::asio::any_completion_handler<void(std::exception_ptr, Engine)>;
    using SubmitHandler = boost::asio::any_completion_handler<void(boost::system::error_code, Reply)>;
    using DrainHandler = boost::asio::any_completion_handler<void(boost::system::error_code)>;

    Engine();
    explicit Engine(std::shared_ptr<detail::EngineState> state);
    Engine(Engine&&) noexcept;
    Engine& operator=(Engine&&) noexcept;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    /// Cancels everything, waits for the device to finish what was launched, joins the engine thread. Not from within Config::log or
    /// Config::on_progress, which that thread calls.
    ~Engine();

    /// Loads the model named by `config` on a thread of its own. `executor`: where handlers without an associated executor run.
    /// The exception is takt::config_error (nothing was taken) or takt::load_error.
    template <class Token>
    static auto async_load(boost::asio::any_io_executor executor, Config config, Token&& token) {
        return boost::asio::async_initiate<Token, void(std::exception_ptr, Engine)>(
            [](auto handler, boost::asio::any_io_executor ex, Config c) {
                start_load(std::move(ex), std::move(c), LoadHandler(std::move(handler)));
            },
            token, std::move(executor), std::move(config));
    }

    /// Admission: validates, tokenises off the caller's thread, queues. Completes once the request is accepted (queued or running) or
    /// refused; on refusal the error_code says why, and `refusal`, where given, holds text and time before the completion. The
    /// cancellation slot cancels the submission, while it is none of the engine's requests yet. Errors: bad_request, unauthorized (a
    /// tenant that the configuration does not have), context_too_long, queue_full, deadline_unreachable, draining, device_lost, internal,
    /// cancelled.
    template <class Token>
    auto async_submit(Request request, Token&& token) {
        return async_submit(std::move(request), std::shared_ptr<Refusal>(), std::forward<Token>(token));
    }
    template <class Token>
    auto async_submit(Request request, std::shared_ptr<Refusal> refusal, Token&& token) {
        return boost::asio::async_initiate<Token, void(boost::system::error_code, Reply)>(
            [this](auto handler, Request r, std::shared_ptr<Refusal> detail) {
                start_submit(std::move(r), std::move(detail), SubmitHandler(std::move(handler)));
            },
            token, std::move(request), std::move(refusal));
    }

    /// Refuses new requests (errc::draining), lets running ones finish until `deadline`, cancels the rest, completes when none is
    /// left. Error: errc::deadline_exceeded if some had to be cancelled. Of several drains the latest deadline given holds for all.
    template <class Token>
    auto async_drain(std::chrono::steady_clock::time_point deadline, Token&& token) {
        return boost::asio::async_initiate<Token, void(boost::system::error_code)>(
            [this](auto handler, std::chrono::steady_clock::time_point d) {
                start_drain(d, DrainHandler(std::move(handler)));
            },
            token, deadline);
    }

    /// Every series of docs/metrics.md that is the engine's.
    [[nodiscard]] MetricsSnapshot metrics() const;
    /// Whether requests can be served now, else why not.
    [[nodiscard]] HealthSnapshot health() const;
    [[nodiscard]] ModelInfo model() const;
    /// The last steps that have ended, oldest first; at most config.log_section.flight_recorder_steps.
    [[nodiscard]] std::vector<StepRecord> recorder() const;
    /// What was planned before loading, and what is in use since.
    [[nodiscard]] MemoryPlan memory_plan() const;

    /// The tokens of a text; BOS in front where the model wants one and the text does not begin with it. With `parse_special` special
    /// tokens in the text are recognised. On the caller's thread. @throws boost::system::system_error with errc::bad_request.
    [[nodiscard]] std::vector<int32_t> tokenize(const std::string& text, bool parse_special = false) const;
    /// The text of tokens, special ones included. @throws boost::system::system_error with errc::bad_request for an id that is none.
    [[nodiscard]] std::string detokenize(const std::vector<int32_t>& tokens) const;
    /// What the chat template makes of the messages, with the generation prompt. @throws boost::system::system_error with
    /// errc::bad_request where the template rejects them or there is none.
    [[nodiscard]] std::string render(const boost::json::array& messages) const;
    /// The tokens that a chat request would feed: text from messages never becomes a special token. @throws as render.
    [[nodiscard]] std::vector<int32_t> tokenize_messages(const boost::json::array& messages) const;

    /// Where handlers without an executor of their own complete.
    [[nodiscard]] boost::asio::any_io_executor get_executor() const;
    explicit operator bool() const { return state_ != nullptr; }

private:
    static void start_load(boost::asio::any_io_executor executor, Config config, LoadHandler handler);
    void start_submit(Request request, std::shared_ptr<Refusal> refusal, SubmitHandler handler);
    void start_drain(std::chrono::steady_clock::time_point deadline, DrainHandler handler);
    std::shared_ptr<detail::EngineState> state_;
};

/// What a model file holds; reads only its index. @throws load_error.
ModelReport inspect(const std::string& path);

/// What `config` would take, without taking it. @throws config_error, load_error.
MemoryPlan plan_memory(const Config& config);

}  // namespace takt
