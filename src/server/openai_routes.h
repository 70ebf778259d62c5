// POST /v1/chat/completions, /v1/completions and /v1/responses: from a body to an answer, whole or as server-sent
// events. Server thread; written against Exchange.
#pragma once

#include <functional>

#include "server/event_stream.h"
#include "server/generation.h"
#include "server/http_message.h"
#include "server/server_state.h"

namespace takt::server {

asio::awaitable<void> serve_completions(ServerState& state, HttpRequest http, Exchange& exchange, bool chat);
asio::awaitable<void> serve_responses(ServerState& state, HttpRequest http, Exchange& exchange);

/// Sends everything of a stream between its head and its end.
using SendEvents = std::function<asio::awaitable<void>(EventStream&)>;
/// Answers an accepted request with server-sent events; `send` runs it and must outlive the call. Of a client that has
/// gone the request is ended.
asio::awaitable<void> answer_stream(ServerState& state, Generation& generation, Exchange& exchange, const SendEvents& send);

/// The HTTP answer of a failure, with Retry-After, retry-after-ms and x-should-retry where they belong.
HttpReply failure_reply(const Failure& failure);

}  // namespace takt::server
