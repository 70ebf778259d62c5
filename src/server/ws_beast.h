// The Beast WebSocket behind WsSocket. Created by http_connection.cpp from the connection's stream and the upgrade request.
#pragma once

#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <string>

#include "server/client_stream.h"
#include "server/message_room.h"
#include "server/ws_socket.h"

namespace takt::server {

using UpgradeRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// A WebSocket not yet accepted.
class BeastWsSocket : public WsSocket {
public:
    struct Options {
        std::string subprotocol;           ///< to select; empty: none
        std::string request_id;
        double ping_seconds = 15;
        std::size_t max_message_bytes = 0;
        MessageRoom* room = nullptr;           ///< that the messages share with those of other sockets
        std::function<void()> on_no_room;      ///< a message found none: the socket closes
    };
    /// Answers the upgrade. False: the peer is gone.
    virtual asio::awaitable<bool> accept(UpgradeRequest request, Options options) = 0;
};

std::unique_ptr<BeastWsSocket> make_ws_socket(ClientStream stream);

}  // namespace takt::server
