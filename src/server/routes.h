// Routes: which HTTP path does what. Server thread; written against Exchange, so no Beast here.
#pragma once

#include "server/http_message.h"
#include "server/server_state.h"

namespace takt::server {

/// Answers one request that has passed the access checks, completely.
asio::awaitable<void> serve_http(ServerState& state, HttpRequest http, Exchange& exchange);

/// What the server itself counts, as series.
MetricsSnapshot server_series(const ServerState& state);

}  // namespace takt::server
