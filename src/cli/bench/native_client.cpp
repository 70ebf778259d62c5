// LoadClient over takt's WebSocket: one request at a time on each connection. The bench's thread.
#include <takt/error.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <vector>

#include "cli/bench/arrivals.h"
#include "cli/bench/load_client.h"
#include "cli/clock.h"

namespace takt::cli {

double bench_seconds(std::uint64_t origin_ns) { return static_cast<double>(now_ns() - origin_ns) * 1e-9; }

namespace {

namespace beast = boost::beast;
namespace websocket = beast::websocket;
namespace json = boost::json;
using asio::ip::tcp;

constexpr std::size_t kMaxFrameBytes = std::size_t{64} << 20;

struct Connection {
    explicit Connection(const asio::any_io_executor& executor) : ws(executor) {}

    void close() {
        boost::system::error_code ignored;
        ws.next_layer().socket().close(ignored);
    }

    websocket::stream<beast::tcp_stream> ws;
    beast::flat_buffer buffer;
};

std::string generate_frame(const LoadRequest& request, const LoadSettings& settings, const std::string& id) {
    json::object out;
    out["type"] = "generate";
    out["id"] = id;
    json::array tokens;
    for (const int token : prompt_ids(request.prompt_tokens, request.seed)) tokens.emplace_back(token);
    out["tokens"] = std::move(tokens);
    out["max_tokens"] = request.max_tokens;
    out["temperature"] = 0;
    out["echo_tokens"] = true;
    if (settings.ignore_eos) out["ignore_eos"] = true;
    if (request.itl_ms) out["itl_ms"] = *request.itl_ms;
    if (request.ttft_ms) out["ttft_ms"] = *request.ttft_ms;
    return json::serialize(out);
}

std::string text_of(const json::object& frame, const char* name) {
    const json::value* found = frame.if_contains(name);
    return found != nullptr && found->is_string() ? std::string(found->get_string()) : std::string();
}

std::int64_t count_of(const json::object& frame, const char* name) {
    const json::value* found = frame.if_contains(name);
    return found != nullptr && found->is_int64() ? found->get_int64() : 0;
}

// Takes one frame of the server into the sample; true at the terminal one.
bool take_frame(std::string_view text, double now_s, RequestSample& sample) {
    boost::system::error_code ec;
    const json::value value = json::parse(json::string_view(text.data(), text.size()), ec);
    if (ec || !value.is_object()) {
        sample.error = "bad_frame";
        return true;
    }
    const json::object& frame = value.get_object();
    const std::string type = text_of(frame, "type");
    if (type == "accepted") {
        sample.prompt_tokens = count_of(frame, "prompt_tokens");
    } else if (type == "delta") {
        const json::value* tokens = frame.if_contains("tokens");
        sample.add_tokens(tokens != nullptr && tokens->is_array() ? static_cast<std::int64_t>(tokens->get_array().size()) : 1, now_s);
    } else if (type == "done") {
        sample.reason = text_of(frame, "reason");
        return true;
    } else if (type == "error") {
        sample.error = text_of(frame, "code");
        return true;
    }
    return false;
}

class NativeClient final : public LoadClient {
public:
    NativeClient(asio::any_io_executor executor, LoadSettings settings)
        : executor_(std::move(executor)), settings_(std::move(settings)) {}

    asio::awaitable<void> probe() override {
        std::string problem;
        std::shared_ptr<Connection> connection = co_await open(problem);
        if (!connection) throw load_error(errc::internal, settings_.url.text + ": " + problem);
        idle_.push_back(std::move(connection));
    }

    asio::awaitable<void> run(LoadRequest request, std::shared_ptr<LoadRun> run) override;

private:
    asio::awaitable<std::shared_ptr<Connection>> open(std::string& problem);
    asio::awaitable<bool> follow(std::shared_ptr<Connection> connection, std::string frame, std::shared_ptr<LoadRun> run);

    asio::any_io_executor executor_;
    LoadSettings settings_;
    std::vector<std::shared_ptr<Connection>> idle_;
    std::uint64_t next_id_ = 1;
};

// Empty with `problem` set when it fails; `problem` is the caller's, who awaits at once.
asio::awaitable<std::shared_ptr<Connection>> NativeClient::open(std::string& problem) {
    const auto connection = std::make_shared<Connection>(executor_);
    tcp::resolver resolver(executor_);
    auto found = co_await resolver.async_resolve(settings_.url.host, settings_.url.port, asio::as_tuple(asio::use_awaitable));
    boost::system::error_code ec = std::get<0>(found);
    if (!ec) {
        auto& socket = connection->ws.next_layer().socket();
        auto connected = co_await asio::async_connect(socket, std::get<1>(found), asio::as_tuple(asio::use_awaitable));
        ec = std::get<0>(connected);
    }
    if (!ec) {
        connection->ws.next_layer().socket().set_option(tcp::no_delay(true), ec);
        connection->ws.read_message_max(kMaxFrameBytes);
        const std::string key = settings_.key;
        connection->ws.set_option(websocket::stream_base::decorator([key](websocket::request_type& request) {
            request.set("Sec-WebSocket-Protocol", "takt.v1");
            if (!key.empty()) request.set("Authorization", "Bearer " + key);
        }));
        websocket::response_type answer;
        auto shaken = co_await connection->ws.async_handshake(answer, settings_.url.authority(), settings_.url.path,
                                                              asio::as_tuple(asio::use_awaitable));
        ec = std::get<0>(shaken);
        if (ec == websocket::error::upgrade_declined) {
            problem = "the server declined the WebSocket with status " + std::to_string(answer.result_int());
            co_return nullptr;
        }
    }
    if (ec) {
        problem = ec.message();
        co_return nullptr;
    }
    co_return connection;
}

// Sends the frame and reads to the request's end; whether the connection can serve another.
asio::awaitable<bool> NativeClient::follow(std::shared_ptr<Connection> connection, std::string frame, std::shared_ptr<LoadRun> run) {
    auto written = co_await connection->ws.async_write(asio::buffer(frame), asio::as_tuple(asio::use_awaitable));
    boost::system::error_code ec = std::get<0>(written);
    while (!ec) {
        connection->buffer.clear();
        auto read = co_await connection->ws.async_read(connection->buffer, asio::as_tuple(asio::use_awaitable));
        ec = std::get<0>(read);
        if (ec) break;
        const auto bytes = connection->buffer.cdata();
        const std::string_view text(static_cast<const char*>(bytes.data()), bytes.size());
        if (take_frame(text, bench_seconds(settings_.origin_ns), run->sample)) co_return run->sample.error != "bad_frame";
        run->changed.notify();
    }
    if (run->stopping) {
        run->sample.reason = "cancelled";
    } else {
        run->sample.error = "connection: " + ec.message();
    }
    co_return false;
}

asio::awaitable<void> NativeClient::run(LoadRequest request, std::shared_ptr<LoadRun> run) {
    std::string frame = generate_frame(request, settings_, std::to_string(next_id_++));
    std::shared_ptr<Connection> connection;
    if (!idle_.empty()) {
        connection = std::move(idle_.back());
        idle_.pop_back();
    } else {
        std::string problem;
        connection = co_await open(problem);
        if (!connection) run->sample.error = "connection: " + problem;
    }
    run->sample.sent_s = bench_seconds(settings_.origin_ns);
    if (connection) {
        run->stop_io = [connection] { connection->close(); };
        if (run->stopping) connection->close();
        const bool reusable = co_await follow(connection, std::move(frame), run);
        run->stop_io = nullptr;
        if (reusable) idle_.push_back(std::move(connection));
    }
    run->sample.end_s = bench_seconds(settings_.origin_ns);
    run->done = true;
    run->changed.notify();
}

}  // namespace

std::unique_ptr<LoadClient> make_native_client(asio::any_io_executor executor, LoadSettings settings) {
    return std::make_unique<NativeClient>(std::move(executor), std::move(settings));
}

}  // namespace takt::cli
