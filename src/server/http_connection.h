// HttpConnection: one accepted connection: reads requests one after the other (keep-alive, pipelining), checks them,
// hands them to the routes, or becomes a WebSocket. Server thread; the pimpl keeps Beast out of other files.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "server/client_stream.h"
#include "server/server_state.h"

namespace takt::server {

/// Serves the connection to its end, from the TLS handshake on. Registers itself in state.connections meanwhile.
asio::awaitable<void> serve_connection(ServerState& state, ClientStream stream);

}  // namespace takt::server
