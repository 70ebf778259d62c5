// Generation. Server thread.
#include "server/generation.h"

#include <utility>

namespace takt::server {

Generation::Generation(ServerState& state, Identity identity, asio::any_io_executor executor)
    : state_(state), identity_(std::move(identity)), tasks_(std::move(executor), [&state](std::exception_ptr) {
          state.log(LogLevel::error, "a generation ended by an exception");
      }) {}

asio::awaitable<Failure> Generation::submit_all(std::vector<Request> requests) {
    for (Request& request : requests) {
        choices_.push_back(std::make_unique<Choice>());
        choices_.back()->index = choices_.size() - 1;
        tasks_.spawn(submit_one(*choices_.back(), std::move(request)));
    }
    co_await tasks_.empty();
    co_return failure();
}

asio::awaitable<void> Generation::submit_one(Choice& choice, Request request) {
    if (!cancelled_) {
        choice.accepted = co_await submit(state_, identity_, std::move(request), choice.cancel_submission);
        choice.failure = choice.accepted.failure;
    } else {
        choice.failure.code = errc::cancelled;
    }
    if (cancelled_ && choice.accepted.reply) choice.accepted.reply.cancel();
    // One refusal ends all: a request is answered whole or not at all.
    if (choice.failure) cancel();
}

asio::awaitable<void> Generation::run(Sink sink, bool keep) {
    for (const auto& choice : choices_) tasks_.spawn(read(*choice, sink, keep));
    co_await tasks_.empty();
}

asio::awaitable<void> Generation::read(Choice& choice, const Sink& sink, bool keep) {
    Reply& reply = choice.accepted.reply;
    for (;;) {
        Next next = co_await next_chunk(reply);
        choice.failure = next.failure;
        if (next.failure || !next.chunk) break;
        choice.accepted.place.charge(static_cast<std::int64_t>(next.chunk->tokens.size()));
        if (cancelled_) continue;
        if (keep) {
            choice.text += next.chunk->text;
            for (const TokenLogprob& entry : next.chunk->logprobs) choice.logprobs.push_back(entry);
        }
        if (!sink) continue;
        Chunk chunk = std::move(*next.chunk);
        const bool sent = co_await sink(choice, std::move(chunk));
        if (!sent) cancel();
    }
    choice.result = reply.result().value_or(RequestResult());
    if (choice.failure.code == errc::cancelled) {
        choice.failure = Failure();
        choice.result.reason = FinishReason::cancelled;
    }
    choice.accepted.place = TenantPlace();
}

void Generation::cancel() {
    if (std::exchange(cancelled_, true)) return;
    for (const auto& choice : choices_) {
        choice->cancel_submission.emit(asio::cancellation_type::terminal);
        if (choice->accepted.reply) choice->accepted.reply.cancel();
    }
}

Failure Generation::failure() const {
    Failure cancelled;
    for (const auto& choice : choices_) {
        if (choice->failure && choice->failure.code != errc::cancelled) return choice->failure;
        if (choice->failure) cancelled = choice->failure;
    }
    return cancelled;
}

Usage Generation::usage(std::size_t num_choices_a_prompt) const {
    Usage out;
    for (std::size_t i = 0; i < choices_.size(); ++i) {
        const Usage& one = choices_[i]->result.usage;
        out.completion_tokens += one.completion_tokens;
        // A prompt counts once, however many choices it has.
        if (i % num_choices_a_prompt != 0) continue;
        out.prompt_tokens += one.prompt_tokens;
        out.cached_tokens += one.cached_tokens;
    }
    return out;
}

}  // namespace takt::server
