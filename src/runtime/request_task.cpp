// The life of one request, top to bottom. It has been admitted to the queue; from here it waits for turns that steps bring it,
// each one the completion of a step's device event, until its text ends, it is cancelled, or it fails.
// Engine thread. Cancellation: EngineCore::cancel gives an `ended` turn; the single await below returns it.
#include "runtime/engine_core.h"

#include <optional>

namespace takt {
namespace {

/// However the life ends, the blocks go back, the books are closed and the reader is told: also when an exception passes.
class RequestScope {
public:
    RequestScope(EngineCore& core, std::shared_ptr<RequestState> request) : core_(core), request_(std::move(request)) {}
    RequestScope(const RequestScope&) = delete;
    RequestScope& operator=(const RequestScope&) = delete;
    ~RequestScope() {
        request_->reason = reason;
        request_->error = error;
        core_.leave(*request_);
    }
    FinishReason reason = FinishReason::error;
    errc error = errc::internal;

private:
    EngineCore& core_;
    std::shared_ptr<RequestState> request_;
};

TokenLogprob logprob_of(const Tokenizer& tokenizer, const SampleResult& sample) {
    TokenLogprob out;
    out.token = sample.token;
    out.text = tokenizer.token_text(sample.token);
    out.logprob = static_cast<double>(sample.logprob);
    for (int32_t i = 0; i < sample.num_top; ++i) {
        out.top.push_back({sample.top_tokens[i], tokenizer.token_text(sample.top_tokens[i]),
                           static_cast<double>(sample.top_logprobs[i])});
    }
    return out;
}

/// Moves the released tokens (and their log-probabilities) from the request's held ones into a chunk.
Chunk make_chunk(RequestState& request, TextDelta delta, uint64_t seen_ns) {
    Chunk chunk;
    chunk.index = static_cast<int64_t>(delta.index);
    chunk.text = std::move(delta.text);
    chunk.ready_ns = static_cast<int64_t>(seen_ns);
    const auto first = request.tokens.begin() + request.num_prompt + static_cast<std::ptrdiff_t>(delta.index);
    chunk.tokens.assign(first, first + static_cast<std::ptrdiff_t>(delta.num_tokens));
    for (uint32_t i = 0; i < delta.num_tokens && !request.held_logprobs.empty(); ++i) {
        chunk.logprobs.push_back(std::move(request.held_logprobs.front()));
        request.held_logprobs.pop_front();
    }
    return chunk;
}

/// Takes one sampled token: text out, and whether it is the last. An end-of-sequence token has no text.
std::optional<FinishReason> take_token(EngineCore& core, const Tokenizer& tokenizer, RequestState& request, const Turn& turn) {
    request.tokens.push_back(turn.sample.token);
    core.note_token(request, turn);
    const bool ends = !request.spec.request.ignore_eos && tokenizer.is_end_of_generation(turn.sample.token);
    if (request.sample.num_logprobs >= 0) request.held_logprobs.push_back(logprob_of(tokenizer, turn.sample));
    TextDelta delta = request.detokenizer.push(turn.sample.token);
    const bool stopped = delta.stopped;
    request.is_stopped = stopped;
    if (!delta.text.empty() || delta.num_tokens > 0) core.emit(request, make_chunk(request, std::move(delta), turn.seen_ns));
    if (ends || stopped) return FinishReason::stop;
    if (request.num_outputs() >= request.spec.max_tokens) return FinishReason::length;
    return std::nullopt;
}

/// The end of the answer: what was held back for a stop string or half a character goes out.
void flush(EngineCore& core, RequestState& request, uint64_t seen_ns) {
    if (request.is_stopped) return;
    TextDelta delta = request.detokenizer.finish();
    if (!delta.text.empty() || delta.num_tokens > 0) core.emit(request, make_chunk(request, std::move(delta), seen_ns));
}

}  // namespace

Task<void> run_request(EngineCore& core, std::shared_ptr<RequestState> request) {
    RequestScope scope(core, request);
    for (;;) {
        if (!request->has_turn()) {
            co_await request->async_wait_turn(use_task);
        }
        const Turn& turn = request->take_turn();
        if (turn.kind == Turn::Kind::prefill) continue;
        if (turn.kind == Turn::Kind::ended) {
            flush(core, *request, turn.seen_ns);
            scope.reason = turn.error == errc::cancelled ? FinishReason::cancelled : FinishReason::error;
            scope.error = turn.error == errc::cancelled ? errc::ok : turn.error;
            co_return;
        }
        if ((turn.sample.flags & kSampleNonFinite) != 0) {
            scope.error = errc::internal;   // this row alone: its neighbours' logits are their own
            co_return;
        }
        const std::optional<FinishReason> last = take_token(core, core.tokenizer(), *request, turn);
        if (last) {
            flush(core, *request, turn.seen_ns);
            scope.reason = *last;
            scope.error = errc::ok;
            co_return;
        }
    }
}

}  // namespace takt
