// Access: who may come in. Host and Origin checks, bearer keys against their configured digests, CORS headers. Decides
// on plain data; no sockets. Used from the server's thread only.
#pragma once

#include <takt/config.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/http_message.h"
#include "server/sha256.h"

namespace takt::server {

/// Reads an environment variable; main passes the real one in.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

bool is_loopback_name(std::string_view host);

class Access {
public:
    /// @throws config_error for a key that is no SHA-256 or an unset variable.
    Access(const Config& config, const Environment& environment);

    /// An answer that refuses the request, or nothing. `upgrade`: it asks for a WebSocket.
    [[nodiscard]] std::optional<HttpReply> refuse(const HttpRequest& request, bool upgrade) const;
    /// Finds the tenant of the shown key. With tenants configured and no valid key: empty optional. A path that needs no
    /// key gives an empty identity.
    [[nodiscard]] std::optional<Identity> identify(const HttpRequest& request) const;
    /// The CORS headers of an answer to this request; empty unless its origin is allowed.
    [[nodiscard]] HttpHeaders cors_headers(const HttpRequest& request) const;

private:
    struct Key {
        Sha256 digest{};
        Identity identity;
    };
    [[nodiscard]] bool origin_allowed(std::string_view origin) const;
    [[nodiscard]] bool same_origin(const HttpRequest& request, std::string_view origin) const;

    std::vector<Key> keys_;
    std::vector<std::string> allowed_origins_;
    std::string host_;
    bool loopback_bind_ = true;
};

/// The answer for an error: status, OpenAI error body, code.
HttpReply error_reply(int status, std::string_view code, const std::string& message, std::string_view param = {});

}  // namespace takt::server
