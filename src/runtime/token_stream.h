// TokenStream: the only door out of the engine for text. Single producer (the engine thread), single consumer (the reply's
// owner, any thread). Bounded: chunks that wait are merged, and once `kPauseTokens` tokens wait the producer is told to pause the
// request; a reader that has drained to `kResumeTokens` calls the resume hook. A short critical section guards the few fields;
// no handler is ever run under it or inside the call that made it ready.
#pragma once

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include <takt/error.h>
#include <takt/request.h>

#include "runtime/delivery_queue.h"

namespace takt {

class TokenStream : public std::enable_shared_from_this<TokenStream> {
public:
    using Handler =
        boost::asio::any_completion_handler<void(boost::system::error_code, std::optional<Chunk>)>;
    static constexpr int64_t kPauseTokens = 256;
    static constexpr int64_t kResumeTokens = 64;
    /// Chunks that wait are merged beyond this many, so that a slow reader's memory is bounded by its tokens.
    static constexpr size_t kMaxChunks = 8;

    /// `executor`: where handlers without an associated executor complete. `resume`: called on the reader's thread when a paused
    /// stream has been drained; must only post. `deliveries`: takes what the producer's calls complete, of the same executor; null:
    /// each is posted by itself.
    TokenStream(boost::asio::any_io_executor executor, std::function<void()> resume, std::shared_ptr<DeliveryQueue> deliveries = nullptr);

    // Producer side.
    /// Appends; returns true if the request should pause now (told once until the reader resumes it).
    bool push(Chunk chunk);
    /// Ends the stream: chunks still waiting are delivered first, then `error` (or an empty optional) once and for ever.
    void finish(boost::system::error_code error, RequestResult result);

    // Consumer side.
    /// `executor`: the handler's associated one, where the caller knows it; empty: it is asked of the handler.
    void async_next(Handler handler, boost::asio::any_io_executor executor = {});
    std::optional<Chunk> try_next();
    /// The consumer is gone: an outstanding wait completes with errc::cancelled, later chunks are dropped.
    void abandon();
    [[nodiscard]] std::optional<RequestResult> result() const;
    /// The producer has finished (chunks may still wait).
    [[nodiscard]] bool has_ended() const;

private:
    struct Waiting {
        Handler handler;
        DeliveryQueue::Work work;
    };
    void complete(Waiting waiting, boost::system::error_code error, std::optional<Chunk> chunk);
    void deliver(Waiting waiting, boost::system::error_code error, std::optional<Chunk> chunk);
    void cancel_wait(uint64_t wait);
    Chunk take_front(bool& resumes);
    void connect_cancellation(Handler& handler);

    boost::asio::any_io_executor executor_;
    std::function<void()> resume_;
    std::shared_ptr<DeliveryQueue> deliveries_;
    mutable std::mutex mutex_;
    std::deque<Chunk> chunks_;
    int64_t num_queued_tokens_ = 0;
    bool paused_ = false;
    bool ended_ = false;
    bool end_seen_ = false;
    bool abandoned_ = false;
    boost::system::error_code error_;
    RequestResult result_;
    std::optional<Waiting> waiting_;
    uint64_t num_waits_ = 0;   // names the outstanding wait: a stale cancellation must not end a later one
};

}  // namespace takt
