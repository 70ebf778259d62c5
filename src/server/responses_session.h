// ResponsesSession: one WebSocket of the OpenAI Responses dialect: lanes by stream_id, several responses one after the
// other, earlier turns kept for previous_response_id until the connection ends. Server thread; knows no Beast.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "server/generation.h"
#include "server/outbox.h"
#include "server/response_events.h"
#include "server/response_request.h"
#include "server/server_state.h"
#include "server/task_group.h"
#include "server/ws_socket.h"

namespace takt::server {

class ResponsesSession {
public:
    ResponsesSession(ServerState& state, WsSocket& socket, Identity identity);

    /// Serves the socket until it is closed and every response has ended.
    asio::awaitable<void> run();
    /// Takes no new responses, closes with 1001 once the live ones have ended.
    void wind_down();

private:
    struct Lane;
    asio::awaitable<void> read_loop();
    asio::awaitable<void> handle(std::string text);
    asio::awaitable<void> create(ResponseRequest request);
    asio::awaitable<void> respond(std::shared_ptr<Lane> lane, ResponseRequest request);
    asio::awaitable<void> respond_empty(Lane& lane, ResponseRequest& request, ResponseEvents& sequence);
    asio::awaitable<void> send_all(Lane& lane, std::vector<ResponseEvent> events);
    asio::awaitable<void> refuse(Failure failure, const std::string* stream_id);
    asio::awaitable<void> close_when_idle();
    [[nodiscard]] Failure cannot_start(const ResponseRequest& request) const;

    ServerState& state_;
    WsSocket& socket_;
    Identity identity_;
    Outbox outbox_;
    Outbox::Slot reader_slot_;
    TaskGroup responses_;
    TaskGroup helpers_;
    Conversations conversations_;
    std::map<std::string, std::shared_ptr<Lane>> lanes_;   ///< live ones by stream_id; "" is the default lane
    bool winding_down_ = false;
    bool closed_ = false;
};

}  // namespace takt::server
