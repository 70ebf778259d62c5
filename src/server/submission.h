// Submission: how every door hands a request to the engine: readiness, tenant limits, class, charging, errors as wire
// codes. Server thread.
#pragma once

#include <takt/engine.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <memory>
#include <string>

#include "server/failure.h"
#include "server/server_state.h"

namespace takt::server {

/// Maps an error_code of takt or of the system.
Failure to_failure(const boost::system::error_code& ec, const std::string& detail = {}, double retry_after_ms = 0);

/// The server takes nothing new; another process can take its place when the drain's time has passed, at the latest.
Failure drain_failure(const ServerState& state);

/// Holds a tenant's place in the books while a request lives.
class TenantPlace {
public:
    TenantPlace() = default;
    TenantPlace(ServerState& state, std::string tenant);
    TenantPlace(TenantPlace&& other) noexcept;
    TenantPlace& operator=(TenantPlace&& other) noexcept;
    ~TenantPlace();
    /// The engine took the request, whose prompt has so many tokens.
    void accepted(std::int64_t prompt_tokens);
    void charge(std::int64_t tokens) const;

private:
    void leave();

    ServerState* state_ = nullptr;
    std::string tenant_;
    bool counts_tokens_ = false;    // asked once: this is on the way of every token
    bool accepted_ = false;
};

/// An accepted request, or why not.
struct Accepted {
    Failure failure;
    Reply reply;
    TenantPlace place;

    Accepted() = default;
    Accepted(Accepted&&) = default;
    Accepted& operator=(Accepted&&) = default;
};

/// Submits; `cancel` ends the submission (failure code cancelled) while it is under way. `cancel` must outlive the call.
asio::awaitable<Accepted> submit(ServerState& state, Identity identity, Request request,
                                 asio::cancellation_signal& cancel);

/// Takes the next chunk: `chunk` empty and no failure at the end.
struct Next {
    Failure failure;
    std::optional<Chunk> chunk;
};
asio::awaitable<Next> next_chunk(Reply& reply);

}  // namespace takt::server
