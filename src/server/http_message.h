// HTTP as plain data, and Exchange: one request's answer channel. Routes and the OpenAI doors are written against these;
// only http_connection.cpp knows how they travel.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace takt::server {

namespace asio = boost::asio;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// Who asks: the tenant whose key was shown. Empty names without tenants.
struct Identity {
    std::string tenant;
    std::string sla_class;
};

struct HttpRequest {
    std::string method;
    std::string path;           ///< decoded, without the query
    std::string query;
    HttpHeaders headers;
    std::string body;
    std::string request_id;     ///< the client's x-request-id, or one of ours
    bool loopback_peer = false;
    Identity identity;

    /// First value of a header, compared without case; empty if absent.
    [[nodiscard]] std::string_view header(std::string_view name) const;
    [[nodiscard]] bool has_header(std::string_view name) const;
};

struct HttpReply {
    int status = 200;
    std::string content_type = "application/json";
    HttpHeaders headers;
    std::string body;
};

/// How a route answers. All on the server's thread. Each call false: the client is gone and nothing more will arrive.
class Exchange {
public:
    virtual ~Exchange() = default;
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    /// The whole answer. At most one call, and then none of the others.
    virtual asio::awaitable<bool> reply(HttpReply whole) = 0;
    /// Sends the head of a chunked answer at once; then any number of pieces, then end().
    virtual asio::awaitable<bool> begin(HttpReply head) = 0;
    virtual asio::awaitable<bool> piece(std::string bytes) = 0;
    virtual asio::awaitable<bool> end() = 0;
    [[nodiscard]] virtual asio::any_io_executor executor() const = 0;

    /// Called once, by the connection, when the client has closed. Set by the route, to cancel what it runs.
    std::function<void()> on_gone;
    bool gone = false;
    /// Set by the connection when the route has returned: nobody is left to be told.
    bool is_over = false;

protected:
    Exchange() = default;
};

bool equal_without_case(std::string_view a, std::string_view b);
std::string_view trimmed(std::string_view text);
/// Parts of a comma-separated header value, trimmed, empty ones dropped.
std::vector<std::string> header_list(std::string_view value);
std::string base64url_decoded(std::string_view text, bool& ok);
/// %XX decoded; a broken escape stays as it is.
std::string percent_decoded(std::string_view text);

/// A request target in origin form (`/path?query`) or absolute form (`http://authority/path?query`), RFC 9112 section 3.2.
struct RequestTarget {
    std::string authority;   ///< empty in origin form; in absolute form it stands for Host
    std::string path;        ///< decoded
    std::string query;
};
RequestTarget parse_target(std::string_view target);

}  // namespace takt::server
