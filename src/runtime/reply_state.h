// ReplyState: what a Reply holds: its stream and the way to tell the engine that it is no longer wanted.
#pragma once

#include <memory>
#include <utility>

#include <takt/reply.h>

#include "runtime/door.h"
#include "runtime/plan.h"
#include "runtime/token_stream.h"

namespace takt::detail {

class ReplyState {
public:
    ReplyState(std::shared_ptr<Door> d, std::shared_ptr<TokenStream> s, RequestId i, int64_t prompt, int64_t cached)
        : door(std::move(d)), stream(std::move(s)), id(i), prompt_tokens(prompt), cached_tokens(cached) {}
    ReplyState(const ReplyState&) = delete;
    ReplyState& operator=(const ReplyState&) = delete;
    ~ReplyState() {
        stream->abandon();
        if (!stream->has_ended()) cancel();
    }
    void cancel();

    const std::shared_ptr<Door> door;
    const std::shared_ptr<TokenStream> stream;
    const RequestId id;
    const int64_t prompt_tokens;
    const int64_t cached_tokens;
};

}  // namespace takt::detail
