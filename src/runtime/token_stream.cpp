// Bounded single-consumer stream of chunks; see token_stream.h.
#include "runtime/token_stream.h"

#include <boost/asio/append.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <utility>

namespace takt {

namespace net = boost::asio;
using boost::system::error_code;

TokenStream::TokenStream(net::any_io_executor executor, std::function<void()> resume, std::shared_ptr<DeliveryQueue> deliveries)
    : executor_(std::move(executor)), resume_(std::move(resume)), deliveries_(std::move(deliveries)) {}

// The cancellation slot is left alone here: it belongs to the reader's thread, and its handler names a wait that is over.
void TokenStream::complete(Waiting waiting, error_code error, std::optional<Chunk> chunk) {
    if (!waiting.work.is_own) {
        net::post(executor_, net::append(std::move(waiting.handler), error, std::move(chunk)));
        return;
    }
    net::post(executor_, [handler = std::move(waiting.handler), error, chunk = std::move(chunk)]() mutable {
        std::move(handler)(error, std::move(chunk));
    });
}

void TokenStream::deliver(Waiting waiting, error_code error, std::optional<Chunk> chunk) {
    if (!deliveries_) return complete(std::move(waiting), error, std::move(chunk));
    deliveries_->add({std::move(waiting.handler), std::move(waiting.work), error, std::move(chunk), {}});
}

bool TokenStream::push(Chunk chunk) {
    std::optional<Waiting> waiting;
    bool pauses = false;
    {
        std::lock_guard lock(mutex_);
        if (abandoned_ || ended_) return false;
        if (waiting_) {
            waiting.swap(waiting_);
        } else {
            num_queued_tokens_ += static_cast<int64_t>(chunk.tokens.size());
            if (chunks_.size() >= kMaxChunks) {
                Chunk& last = chunks_.back();
                last.text += chunk.text;
                last.tokens.insert(last.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
                last.logprobs.insert(last.logprobs.end(), std::make_move_iterator(chunk.logprobs.begin()),
                                     std::make_move_iterator(chunk.logprobs.end()));
                last.ready_ns = chunk.ready_ns;
            } else {
                chunks_.push_back(std::move(chunk));
            }
            pauses = !paused_ && num_queued_tokens_ >= kPauseTokens;
            paused_ = paused_ || pauses;
            return pauses;
        }
    }
    deliver(std::move(*waiting), {}, std::move(chunk));
    return false;
}

void TokenStream::finish(error_code error, RequestResult result) {
    std::optional<Waiting> waiting;
    {
        std::lock_guard lock(mutex_);
        if (ended_) return;
        ended_ = true;
        error_ = error;
        result_ = std::move(result);
        if (waiting_) {
            waiting.swap(waiting_);
            end_seen_ = true;
        }
    }
    if (waiting) deliver(std::move(*waiting), error, std::nullopt);
}

Chunk TokenStream::take_front(bool& resumes) {
    Chunk chunk = std::move(chunks_.front());
    chunks_.pop_front();
    num_queued_tokens_ -= static_cast<int64_t>(chunk.tokens.size());
    resumes = paused_ && num_queued_tokens_ <= kResumeTokens;
    if (resumes) paused_ = false;
    return chunk;
}

void TokenStream::connect_cancellation(Handler& handler) {
    auto slot = net::get_associated_cancellation_slot(handler);
    if (!slot.is_connected()) return;
    slot.assign([weak = weak_from_this(), wait = num_waits_](net::cancellation_type) {
        if (auto stream = weak.lock()) stream->cancel_wait(wait);
    });
}

void TokenStream::async_next(Handler handler, net::any_io_executor executor) {
    DeliveryQueue::Work work;
    work.is_own = executor && executor == executor_;
    if (work.is_own) {
        work.own = net::prefer(executor_, net::execution::outstanding_work.tracked);
    } else {
        work.other = net::prefer(net::get_associated_executor(handler, executor_), net::execution::outstanding_work.tracked);
    }
    Waiting waiting{std::move(handler), std::move(work)};
    error_code error;
    std::optional<Chunk> chunk;
    bool resumes = false;
    {
        std::lock_guard lock(mutex_);
        if (waiting_) {
            error = errc::bad_request;   // one wait at a time
        } else if (!chunks_.empty()) {
            chunk = take_front(resumes);
        } else if (ended_) {
            end_seen_ = true;
            error = error_;
        } else if (abandoned_) {
            error = errc::cancelled;
        } else {
            ++num_waits_;
            connect_cancellation(waiting.handler);
            waiting_.emplace(std::move(waiting));
            return;
        }
    }
    complete(std::move(waiting), error, std::move(chunk));
    if (resumes && resume_) resume_();
}

std::optional<Chunk> TokenStream::try_next() {
    std::optional<Chunk> chunk;
    bool resumes = false;
    {
        std::lock_guard lock(mutex_);
        if (waiting_ || chunks_.empty()) return std::nullopt;
        chunk = take_front(resumes);
    }
    if (resumes && resume_) resume_();
    return chunk;
}

void TokenStream::cancel_wait(uint64_t wait) {
    std::optional<Waiting> waiting;
    {
        std::lock_guard lock(mutex_);
        if (wait != num_waits_) return;
        waiting.swap(waiting_);
    }
    if (waiting) complete(std::move(*waiting), net::error::operation_aborted, std::nullopt);
}

void TokenStream::abandon() {
    std::optional<Waiting> waiting;
    {
        std::lock_guard lock(mutex_);
        abandoned_ = true;
        chunks_.clear();
        num_queued_tokens_ = 0;
        waiting.swap(waiting_);
    }
    if (waiting) complete(std::move(*waiting), errc::cancelled, std::nullopt);
}

bool TokenStream::has_ended() const {
    std::lock_guard lock(mutex_);
    return ended_;
}

std::optional<RequestResult> TokenStream::result() const {
    std::lock_guard lock(mutex_);
    if (!end_seen_) return std::nullopt;
    return result_;
}

}  // namespace takt
