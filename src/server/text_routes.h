// POST /tokenize and /detokenize. The work runs on the worker: a long text delays nobody's tokens.
#pragma once

#include "server/http_message.h"
#include "server/server_state.h"

namespace takt::server {

asio::awaitable<void> serve_tokenize(ServerState& state, HttpRequest http, Exchange& exchange);
asio::awaitable<void> serve_detokenize(ServerState& state, HttpRequest http, Exchange& exchange);

}  // namespace takt::server
