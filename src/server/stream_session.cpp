// The native protocol over one WebSocket. Server thread.
#include "server/stream_session.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "server/credit.h"

namespace takt::server {

namespace {
constexpr std::size_t kMaxEnding = 256;   // last frames of a socket that may wait for it
}  // namespace

// One live request. Its pump holds it; the map lets frames find it.
struct StreamSession::Live {
    explicit Live(const asio::any_io_executor& executor) : slot(executor), wake(executor) {}

    std::string id;
    std::string delta_head;
    std::optional<std::int64_t> credit;
    bool echo_tokens = false;
    bool cancelled = false;
    Accepted accepted;
    asio::cancellation_signal cancel_submission;
    Outbox::Slot slot;
    Signal wake;                      // credit came, or it was cancelled
};

StreamSession::StreamSession(ServerState& state, WsSocket& socket, Identity identity)
    : state_(state),
      socket_(socket),
      identity_(std::move(identity)),
      outbox_(socket),
      reader_slot_(socket.executor()),
      pumps_(socket.executor(), [&state](std::exception_ptr) { state.log(LogLevel::error, "a stream ended by an exception"); }),
      helpers_(socket.executor(), [&state](std::exception_ptr) { state.log(LogLevel::error, "a writer ended by an exception"); }) {}

asio::awaitable<void> StreamSession::run() {
    co_await read_loop();
    closed_ = true;
    outbox_.fail();
    // A peer that is gone, or that closed and does not read, would hold a write for ever.
    if (outbox_.busy()) socket_.abort();
    for (const auto& entry : live_) cancel(*entry.second);
    co_await pumps_.empty();
    co_await helpers_.empty();
}

void StreamSession::wind_down() {
    if (std::exchange(winding_down_, true) || closed_) return;
    helpers_.spawn(close_when_idle());
}

asio::awaitable<void> StreamSession::close_when_idle() {
    co_await pumps_.empty();
    if (closed_) co_return;
    // The writer must be through before the close frame: it and close() would otherwise both write.
    co_await socket_.close(CloseCode::going_away);
}

asio::awaitable<void> StreamSession::read_loop() {
    for (;;) {
        WsMessage message = co_await socket_.read();
        if (message.kind == WsMessage::Kind::closed) co_return;
        if (message.kind == WsMessage::Kind::binary) {
            FrameError error;
            error.message = "found a binary frame, allowed text frames";
            co_await refuse(std::move(error));
        } else {
            co_await handle(std::move(message.data));
        }
    }
}

asio::awaitable<void> StreamSession::refuse(FrameError error) {
    state_.count_refusal(error.code);
    // An error that names a live request's id would look like its end.
    if (error.id && live_.find(*error.id) != live_.end()) {
        error.ref = std::move(error.id);
        error.id.reset();
    }
    std::string frame = error_frame(error);
    co_await outbox_.send(reader_slot_, std::move(frame));
}

asio::awaitable<void> StreamSession::handle(std::string text) {
    const std::function<ClientFrame()> parse = [&text] { return parse_client_frame(text); };
    ClientFrame frame = co_await on_worker_if_long<ClientFrame>(state_, text.size(), parse);
    if (auto* error = std::get_if<FrameError>(&frame)) {
        co_await refuse(std::move(*error));
    } else if (auto* request = std::get_if<GenerateFrame>(&frame)) {
        co_await generate(std::move(*request));
    } else if (auto* cancelled = std::get_if<CancelFrame>(&frame)) {
        const auto found = live_.find(cancelled->id);
        if (found != live_.end()) cancel(*found->second);
    } else if (auto* credit = std::get_if<CreditFrame>(&frame)) {
        const auto found = live_.find(credit->id);
        if (found != live_.end() && found->second->credit) {
            // Both are within 2^53, and the sum is kept there.
            std::int64_t& left = *found->second->credit;
            left = std::min(left + credit->tokens, kMaxCredit);
            found->second->wake.notify();
        }
    }
}

asio::awaitable<void> StreamSession::generate(GenerateFrame frame) {
    if (live_.find(frame.id) != live_.end()) {
        FrameError error;
        error.ref = frame.id;
        error.code = errc::duplicate_id;
        error.message = "id " + frame.id + " is a live request of this socket";
        co_await refuse(std::move(error));
        co_return;
    }
    if (winding_down_) {
        const Failure failure = drain_failure(state_);
        FrameError error;
        error.id = frame.id;
        error.code = failure.code;
        error.message = failure.message;
        error.retry_after_ms = failure.retry_after_ms;
        co_await refuse(std::move(error));
        co_return;
    }
    // Refused and finished requests wait for the socket with their last frame: a client that does not read is read no further.
    while (pumps_.size() >= live_.size() + kMaxEnding) co_await pumps_.one_end();
    auto live = std::make_shared<Live>(socket_.executor());
    live->id = frame.id;
    live->delta_head = delta_head(frame.id);
    live->credit = frame.credit;
    live->echo_tokens = frame.echo_tokens;
    live_[frame.id] = live;
    pumps_.spawn(pump(live, std::move(frame.request)));
}

void StreamSession::cancel(Live& live) {
    live.cancelled = true;
    live.cancel_submission.emit(asio::cancellation_type::terminal);
    if (live.accepted.reply) live.accepted.reply.cancel();
    live.wake.notify();
}

asio::awaitable<void> StreamSession::pump(std::shared_ptr<Live> live, Request request) {
    live->accepted = co_await submit(state_, identity_, std::move(request), live->cancel_submission);
    RequestResult result;
    result.reason = FinishReason::cancelled;
    Failure failure = live->accepted.failure;
    if (failure) {
        if (failure.code == errc::cancelled && live->cancelled) failure = Failure();
        co_await finish(live, std::move(failure), result);
        co_return;
    }
    Reply& reply = live->accepted.reply;
    if (live->cancelled) reply.cancel();
    std::string frame = accepted_frame(live->id, reply.prompt_tokens(), reply.cached_tokens());
    const bool sent = co_await outbox_.send(live->slot, std::move(frame));
    if (!sent) reply.cancel();
    failure = co_await pump_deltas(*live);
    result = reply.result().value_or(result);
    live->accepted.reply = Reply();
    if (failure.code == errc::cancelled) failure = Failure();
    co_await finish(live, std::move(failure), result);
}

bool StreamSession::send_now(const Live& live, const Chunk& chunk) {
    write_delta(scratch_, live.delta_head, chunk, live.echo_tokens);
    return outbox_.send_now(scratch_);
}

asio::awaitable<Failure> StreamSession::pump_deltas(Live& live) {
    Reply& reply = live.accepted.reply;
    for (;;) {
        // Without credit too: one chunk is held here until credit comes, and the end needs none.
        auto next = co_await reply.async_next(asio::as_tuple(asio::use_awaitable));
        std::optional<Chunk>& come = std::get<1>(next);
        if (std::get<0>(next) || !come) co_return to_failure(std::get<0>(next));
        live.accepted.place.charge(static_cast<std::int64_t>(come->tokens.size()));
        // After a cancel only the end is of interest.
        if (live.cancelled || outbox_.dead()) continue;
        if (!live.credit && send_now(live, *come)) continue;
        Chunk chunk = std::move(*come);
        const bool sent = co_await send_chunk(live, std::move(chunk));
        if (!sent && !live.cancelled) cancel(live);
    }
}

// Sends a chunk, in pieces where the credit asks for it. False: dead or cancelled meanwhile.
asio::awaitable<bool> StreamSession::send_chunk(Live& live, Chunk chunk) {
    const Detokenize detokenize = [this](const std::vector<std::int32_t>& tokens) {
        return state_.engine.detokenize(tokens);
    };
    for (;;) {
        while (live.credit && *live.credit <= 0 && !live.cancelled) co_await live.wake.wait();
        if (live.cancelled) co_return false;
        Chunk piece;
        if (live.credit) {
            piece = take_front(chunk, *live.credit, detokenize);
            *live.credit -= static_cast<std::int64_t>(piece.tokens.size());
        } else {
            piece = std::move(chunk);
            chunk = Chunk();
        }
        std::string frame = delta_frame(live.id, piece, live.echo_tokens);
        const bool sent = co_await outbox_.send(live.slot, std::move(frame));
        if (!sent) co_return false;
        if (chunk.tokens.empty() && chunk.text.empty()) co_return true;
    }
}

// The one terminal event. The id is free from here on, so a client that reuses it on seeing the end is never told that it
// is a duplicate; frames of a new request stand behind this one in the outbox.
asio::awaitable<void> StreamSession::finish(std::shared_ptr<Live> live, Failure failure, RequestResult result) {
    std::string frame;
    if (failure || result.reason == FinishReason::error) {
        FrameError error;
        error.id = live->id;
        error.code = failure ? failure.code : errc::internal;
        error.message = failure ? failure.message : "the request failed";
        error.retry_after_ms = failure.retry_after_ms;
        frame = error_frame(error);
    } else {
        frame = done_frame(live->id, result);
    }
    live_.erase(live->id);
    co_await outbox_.send(live->slot, std::move(frame));
}

}  // namespace takt::server
