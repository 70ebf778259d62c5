// Reply: a thin handle over the token stream.
#include <takt/reply.h>

#include "runtime/engine_core.h"
#include "runtime/reply_state.h"

namespace takt {
namespace detail {

void ReplyState::cancel() {
    door->post([request = id](EngineCore& core) { core.cancel(request); });
}

}  // namespace detail

Reply::Reply() = default;
Reply::Reply(std::shared_ptr<detail::ReplyState> state) : state_(std::move(state)) {}
Reply::Reply(Reply&&) noexcept = default;
Reply& Reply::operator=(Reply&&) noexcept = default;
Reply::~Reply() = default;

std::optional<Chunk> Reply::try_next() { return state_ ? state_->stream->try_next() : std::nullopt; }

void Reply::cancel() {
    if (state_) state_->cancel();
}

int64_t Reply::prompt_tokens() const { return state_ ? state_->prompt_tokens : 0; }
int64_t Reply::cached_tokens() const { return state_ ? state_->cached_tokens : 0; }

std::optional<RequestResult> Reply::result() const { return state_ ? state_->stream->result() : std::nullopt; }

void Reply::start_next(NextHandler handler, boost::asio::any_io_executor executor) {
    state_->stream->async_next(std::move(handler), std::move(executor));
}

}  // namespace takt
