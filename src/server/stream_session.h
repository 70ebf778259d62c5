// StreamSession: one WebSocket of the native protocol: a reader, one writer (the outbox), one pump a live request.
// Owns its live requests; a closed socket cancels them. Server thread; knows no Beast.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "server/outbox.h"
#include "server/protocol.h"
#include "server/server_state.h"
#include "server/submission.h"
#include "server/task_group.h"
#include "server/ws_socket.h"

namespace takt::server {

class StreamSession {
public:
    StreamSession(ServerState& state, WsSocket& socket, Identity identity);

    /// Serves the socket until it is closed and every request has ended. Resumes on the server's thread.
    asio::awaitable<void> run();
    /// Takes no new requests, closes with 1001 once the live ones have ended.
    void wind_down();

private:
    struct Live;

    asio::awaitable<void> read_loop();
    asio::awaitable<void> close_when_idle();
    asio::awaitable<void> handle(std::string text);
    asio::awaitable<void> generate(GenerateFrame frame);
    asio::awaitable<void> refuse(FrameError error);
    asio::awaitable<void> pump(std::shared_ptr<Live> live, Request request);
    asio::awaitable<Failure> pump_deltas(Live& live);
    bool send_now(const Live& live, const Chunk& chunk);
    asio::awaitable<bool> send_chunk(Live& live, Chunk chunk);
    asio::awaitable<void> finish(std::shared_ptr<Live> live, Failure failure, RequestResult result);
    void cancel(Live& live);

    ServerState& state_;
    WsSocket& socket_;
    Identity identity_;
    Outbox outbox_;
    Outbox::Slot reader_slot_;
    TaskGroup pumps_;
    TaskGroup helpers_;
    std::map<std::string, std::shared_ptr<Live>, std::less<>> live_;
    std::string scratch_;     // the frame that is sent at once
    bool winding_down_ = false;
    bool closed_ = false;
};

}  // namespace takt::server
