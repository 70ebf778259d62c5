// Access checks. Server thread; pure apart from the digests kept.
#include "server/access.h"

#include <takt/error.h>

#include <algorithm>

#include "server/json_text.h"
#include "server/protocol.h"

namespace takt::server {

namespace {

// `host:port` or `[v6]:port` without its port.
std::string_view host_name(std::string_view authority) {
    if (!authority.empty() && authority.front() == '[') {
        const std::size_t end = authority.find(']');
        return end == std::string_view::npos ? authority : authority.substr(1, end - 1);
    }
    const std::size_t colon = authority.find(':');
    return authority.substr(0, colon);
}

// What stands behind `scheme://`.
std::string_view origin_authority(std::string_view origin) {
    const std::size_t at = origin.find("://");
    return at == std::string_view::npos ? std::string_view() : origin.substr(at + 3);
}

bool is_path_without_key(const HttpRequest& request) {
    const std::string& path = request.path;
    if (path == "/" || path == "/health" || path == "/health/live" || path == "/health/ready") return true;
    return path == "/metrics" && request.loopback_peer;
}

std::optional<std::string> shown_key(const HttpRequest& request) {
    constexpr std::string_view bearer = "Bearer ";
    const std::string_view authorization = request.header("authorization");
    if (authorization.size() > bearer.size() && equal_without_case(authorization.substr(0, bearer.size()), bearer)) {
        return std::string(trimmed(authorization.substr(bearer.size())));
    }
    for (const std::string& offered : header_list(request.header("sec-websocket-protocol"))) {
        if (offered.rfind(kKeySubprotocolPrefix, 0) != 0) continue;
        bool ok = false;
        std::string key = base64url_decoded(std::string_view(offered).substr(kKeySubprotocolPrefix.size()), ok);
        if (ok) return key;
    }
    return std::nullopt;
}

std::string_view error_type(int status) {
    if (status == 401) return "authentication_error";
    if (status == 403) return "permission_error";
    if (status == 404) return "not_found_error";
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

bool is_loopback_name(std::string_view host) {
    if (equal_without_case(host, "localhost") || host == "::1" || host == "[::1]") return true;
    // 127.0.0.0/8: digits and dots only, so that 127.example.com is none.
    return host.rfind("127.", 0) == 0 && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

Access::Access(const Config& config, const Environment& environment)
    : allowed_origins_(config.server.allowed_origins),
      host_(config.server.host),
      loopback_bind_(is_loopback_name(config.server.host)) {
    for (const TenantSection& tenant : config.tenants) {
        Key key;
        key.identity.tenant = tenant.name;
        key.identity.sla_class = tenant.sla_class;
        if (!tenant.key_env.empty()) {
            const std::optional<std::string> value = environment ? environment(tenant.key_env) : std::nullopt;
            if (!value || value->empty()) {
                throw config_error("tenant " + tenant.name + ": key_env names the environment variable " +
                                   tenant.key_env + ", which is not set");
            }
            key.digest = sha256(*value);
        } else {
            const std::optional<Sha256> digest = parse_sha256(tenant.key_sha256);
            if (!digest) {
                throw config_error("tenant " + tenant.name + ": key_sha256: found " +
                                   std::to_string(tenant.key_sha256.size()) +
                                   " characters, allowed 64 hexadecimal digits");
            }
            key.digest = *digest;
        }
        const auto same = std::find_if(keys_.begin(), keys_.end(), [&](const Key& other) { return same_digest(other.digest, key.digest); });
        if (same != keys_.end()) {
            throw config_error("tenant " + tenant.name + ": its key is that of tenant " + same->identity.tenant);
        }
        keys_.push_back(std::move(key));
    }
}

bool Access::origin_allowed(std::string_view origin) const {
    for (const std::string& allowed : allowed_origins_) {
        if (allowed == "*" || equal_without_case(allowed, origin)) return true;
    }
    return false;
}

bool Access::same_origin(const HttpRequest& request, std::string_view origin) const {
    const std::string_view authority = origin_authority(origin);
    return !authority.empty() && equal_without_case(authority, request.header("host"));
}

std::optional<HttpReply> Access::refuse(const HttpRequest& request, bool upgrade) const {
    const std::string_view host = request.header("host");
    if (loopback_bind_ && !host.empty()) {
        const std::string_view name = host_name(host);
        if (!is_loopback_name(name) && !equal_without_case(name, host_)) {
            return error_reply(403, "bad_request", "Host: found " + valid_utf8(host.substr(0, 80)) +
                                                       ", allowed this server's own name");
        }
    }
    const std::string_view origin = request.header("origin");
    const bool checked = upgrade || request.method == "POST";
    if (checked && !origin.empty() && !same_origin(request, origin) && !origin_allowed(origin)) {
        return error_reply(403, "bad_request", "Origin: found " + valid_utf8(origin.substr(0, 80)) +
                                                   ", allowed this server's own and server.allowed_origins");
    }
    return std::nullopt;
}

std::optional<Identity> Access::identify(const HttpRequest& request) const {
    if (keys_.empty() || is_path_without_key(request)) return Identity();
    const std::optional<std::string> key = shown_key(request);
    if (!key) return std::nullopt;
    const Sha256 digest = sha256(*key);
    std::optional<Identity> found;
    // No early end: the time tells nothing about which key matched.
    for (const Key& known : keys_) {
        if (same_digest(known.digest, digest) && !found) found = known.identity;
    }
    return found;
}

HttpHeaders Access::cors_headers(const HttpRequest& request) const {
    HttpHeaders out;
    const std::string_view origin = request.header("origin");
    if (origin.empty() || !origin_allowed(origin)) return out;
    out.emplace_back("Access-Control-Allow-Origin", std::string(origin));
    out.emplace_back("Vary", "Origin");
    out.emplace_back("Access-Control-Expose-Headers", "x-request-id, retry-after, retry-after-ms");
    if (request.method == "OPTIONS") {
        out.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        out.emplace_back("Access-Control-Allow-Headers",
                         "authorization, content-type, x-request-id, x-slo-ttft-ms, x-slo-tpot-ms");
        out.emplace_back("Access-Control-Max-Age", "600");
    }
    return out;
}

HttpReply error_reply(int status, std::string_view code, const std::string& message, std::string_view param) {
    HttpReply out;
    out.status = status;
    out.body = "{\"error\":{\"message\":";
    append_json_string(out.body, message);
    out.body += ",\"type\":";
    append_json_string(out.body, error_type(status));
    out.body += ",\"code\":";
    append_json_string(out.body, code);
    out.body += ",\"param\":";
    if (param.empty()) {
        out.body += "null";
    } else {
        append_json_string(out.body, param);
    }
    out.body += "}}\n";
    return out;
}

}  // namespace takt::server
