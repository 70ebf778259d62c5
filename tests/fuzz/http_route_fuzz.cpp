// Any bytes as an HTTP request, past the parser: a request line, header lines, an empty line, a body. Access checks and
// routes answer exactly once, with a status that HTTP has, before a model is loaded and whatever is asked.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/http_exchange.h"
#include "server/routes.h"
#include "server/server_state.h"

namespace {

using namespace takt::server;

class CountingExchange final : public Exchange {
public:
    explicit CountingExchange(asio::io_context& io) : io_(io) {}
    asio::awaitable<bool> reply(HttpReply whole) override {
        ++num_replies;
        status = whole.status;
        co_return true;
    }
    asio::awaitable<bool> begin(HttpReply) override { std::abort(); }     // nothing streams without a model
    asio::awaitable<bool> piece(std::string) override { std::abort(); }
    asio::awaitable<bool> end() override { std::abort(); }
    asio::any_io_executor executor() const override { return io_.get_executor(); }

    int num_replies = 0;
    int status = 0;

private:
    asio::io_context& io_;
};

std::string_view take_line(std::string_view& text) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
}

HttpRequest parse(std::string_view text) {
    HttpRequest out;
    const std::string_view first = take_line(text);
    const std::size_t space = std::min(first.find(' '), first.size());
    out.method = std::string(first.substr(0, space));
    out.path = percent_decoded(first.substr(std::min(space + 1, first.size())));
    for (std::string_view line = take_line(text); !line.empty(); line = take_line(text)) {
        const std::size_t colon = std::min(line.find(':'), line.size());
        out.headers.emplace_back(std::string(line.substr(0, colon)), std::string(trimmed(line.substr(std::min(colon + 1, line.size())))));
    }
    out.body = std::string(text);
    out.request_id = "fuzz";
    return out;
}

takt::Config one_origin() {
    takt::Config config;
    config.server.allowed_origins = {"https://a.example"};
    return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static asio::io_context io(1);
    static ServerState state(io, one_origin(), {});
    HttpRequest request = parse(std::string_view(reinterpret_cast<const char*>(data), size));
    const bool upgrade = request.has_header("upgrade");
    static_cast<void>(state.access.cors_headers(request));
    const std::optional<HttpReply> refusal = state.access.refuse(request, upgrade);
    if (refusal) return refusal->status == 403 ? 0 : (std::abort(), 0);
    if (!state.access.identify(request)) std::abort();                    // without tenants everybody is known
    CountingExchange exchange(io);
    bool threw = false;
    asio::co_spawn(io, serve_http(state, std::move(request), exchange), [&](std::exception_ptr problem) { threw = problem != nullptr; });
    io.restart();
    io.run();
    if (threw || exchange.num_replies != 1 || exchange.status < 200 || exchange.status > 599) std::abort();
    return 0;
}
