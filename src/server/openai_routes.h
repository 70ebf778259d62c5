// POST /v1/chat/completions, /v1/completions and /v1/responses: from a body to an answer, whole or as server-sent
// events. Server thread; written against Exchange.
#pragma once

#include "server/http_message.h"
#include "server/server_state.h"
#include "server/submission.h"

namespace takt::server {

asio::awaitable<void> serve_completions(ServerState& state, HttpRequest http, Exchange& exchange, bool chat);
asio::awaitable<void> serve_responses(ServerState& state, HttpRequest http, Exchange& exchange);

/// The HTTP answer of a failure, with Retry-After, retry-after-ms and x-should-retry where they belong.
HttpReply failure_reply(const Failure& failure, std::string_view param = {});

}  // namespace takt::server
