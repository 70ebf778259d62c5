// LoadClient over OpenAI's HTTP form with server-sent events: any server that speaks it. The bench's thread.
#include <takt/error.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <vector>

#include "cli/bench/arrivals.h"
#include "cli/bench/event_lines.h"
#include "cli/bench/load_client.h"

namespace takt::cli {

namespace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace json = boost::json;
using asio::ip::tcp;
using HttpRequest = http::request<http::string_body>;
using Parser = http::response_parser<http::buffer_body>;

constexpr std::size_t kPieceBytes = 16 * 1024;
constexpr std::size_t kMaxErrorBytes = 64 * 1024;

struct Connection {
    explicit Connection(const asio::any_io_executor& executor) : stream(executor) {}

    void close() {
        boost::system::error_code ignored;
        stream.socket().close(ignored);
    }

    beast::tcp_stream stream;
    beast::flat_buffer buffer;
};

const json::value* member(const json::value* value, const char* name) {
    return value != nullptr && value->is_object() ? value->get_object().if_contains(name) : nullptr;
}

bool has_text(const json::value* value) { return value != nullptr && value->is_string() && !value->get_string().empty(); }

std::int64_t count_of(const json::value* value) { return value != nullptr && value->is_int64() ? value->get_int64() : 0; }

// Takes the data of one event into the sample; true at the last one.
bool take_event(std::string_view data, double now_s, RequestSample& sample) {
    if (data == "[DONE]") return true;
    boost::system::error_code ec;
    const json::value value = json::parse(json::string_view(data.data(), data.size()), ec);
    if (ec) {
        sample.error = "bad_event";
        return false;
    }
    if (const json::value* error = member(&value, "error"); error != nullptr && error->is_object()) {
        const json::value* code = member(error, "code");
        sample.error = has_text(code) ? std::string(code->get_string()) : "error";
    }
    const json::value* choices = member(&value, "choices");
    if (choices != nullptr && choices->is_array() && !choices->get_array().empty()) {
        const json::value& choice = choices->get_array().front();
        const bool text = has_text(member(&choice, "text")) || has_text(member(member(&choice, "delta"), "content")) ||
                          has_text(member(member(&choice, "delta"), "reasoning_content"));
        if (text) sample.add_tokens(1, now_s);
        if (const json::value* reason = member(&choice, "finish_reason"); has_text(reason)) {
            sample.reason = std::string(reason->get_string());
        }
    }
    const json::value* usage = member(&value, "usage");
    if (usage != nullptr && usage->is_object()) {
        sample.prompt_tokens = count_of(member(usage, "prompt_tokens"));
        // An event may carry several tokens: rates use the server's count, gaps are between events.
        sample.output_tokens = std::max(sample.output_tokens, count_of(member(usage, "completion_tokens")));
    }
    return false;
}

// The server's code in an error body, else the status.
std::string error_code_of(const std::string& body, unsigned status) {
    boost::system::error_code ec;
    const json::value value = json::parse(body, ec);
    const json::value* code = ec ? nullptr : member(member(&value, "error"), "code");
    return has_text(code) ? std::string(code->get_string()) : "http_" + std::to_string(status);
}

class OpenAiClient final : public LoadClient {
public:
    OpenAiClient(asio::any_io_executor executor, LoadSettings settings)
        : executor_(std::move(executor)), settings_(std::move(settings)) {}

    asio::awaitable<void> probe() override;
    asio::awaitable<void> run(LoadRequest request, std::shared_ptr<LoadRun> run) override;

private:
    using Sink = std::function<void(std::string_view bytes)>;
    struct Answer {
        boost::system::error_code ec;
        unsigned status = 0;
        bool keep_alive = false;
        std::string error_body;      // of a status other than 200
    };

    asio::awaitable<std::shared_ptr<Connection>> open(boost::system::error_code& problem);
    asio::awaitable<Answer> ask(std::shared_ptr<Connection> connection, LoadRequest request, std::shared_ptr<LoadRun> run);
    asio::awaitable<Answer> exchange(std::shared_ptr<Connection> connection, HttpRequest request, Sink sink);
    HttpRequest message(http::verb verb, const std::string& path, std::string body) const;
    HttpRequest completion(const LoadRequest& request) const;

    asio::any_io_executor executor_;
    LoadSettings settings_;
    std::vector<std::shared_ptr<Connection>> idle_;
};

asio::awaitable<std::shared_ptr<Connection>> OpenAiClient::open(boost::system::error_code& problem) {
    const auto connection = std::make_shared<Connection>(executor_);
    tcp::resolver resolver(executor_);
    auto found = co_await resolver.async_resolve(settings_.url.host, settings_.url.port, asio::as_tuple(asio::use_awaitable));
    problem = std::get<0>(found);
    if (problem) co_return nullptr;
    auto connected = co_await asio::async_connect(connection->stream.socket(), std::get<1>(found), asio::as_tuple(asio::use_awaitable));
    problem = std::get<0>(connected);
    if (problem) co_return nullptr;
    connection->stream.socket().set_option(tcp::no_delay(true), problem);
    co_return connection;
}

HttpRequest OpenAiClient::message(http::verb verb, const std::string& path, std::string body) const {
    HttpRequest out(verb, settings_.url.path + path, 11);
    out.set(http::field::host, settings_.url.authority());
    out.set(http::field::user_agent, "takt-bench");
    if (!settings_.key.empty()) out.set(http::field::authorization, "Bearer " + settings_.key);
    if (!body.empty()) out.set(http::field::content_type, "application/json");
    out.body() = std::move(body);
    out.prepare_payload();
    return out;
}

HttpRequest OpenAiClient::completion(const LoadRequest& request) const {
    json::object body;
    body["model"] = settings_.model;
    body["max_tokens"] = request.max_tokens;
    body["temperature"] = 0;
    body["stream"] = true;
    json::object options;
    options["include_usage"] = true;
    body["stream_options"] = std::move(options);
    if (settings_.ignore_eos) body["ignore_eos"] = true;
    if (settings_.chat) {
        json::object user;
        user["role"] = "user";
        user["content"] = prompt_words(request.prompt_tokens, request.seed);
        json::array messages;
        messages.push_back(std::move(user));
        body["messages"] = std::move(messages);
    } else {
        json::array tokens;
        for (const int token : prompt_ids(request.prompt_tokens, request.seed)) tokens.emplace_back(token);
        body["prompt"] = std::move(tokens);
    }
    HttpRequest out = message(http::verb::post, settings_.chat ? "/chat/completions" : "/completions", json::serialize(body));
    if (request.ttft_ms) out.set("x-slo-ttft-ms", std::to_string(*request.ttft_ms));
    if (request.itl_ms) out.set("x-slo-tpot-ms", std::to_string(*request.itl_ms));
    return out;
}

asio::awaitable<OpenAiClient::Answer> OpenAiClient::exchange(std::shared_ptr<Connection> connection, HttpRequest request, Sink sink) {
    Answer out;
    auto written = co_await http::async_write(connection->stream, request, asio::as_tuple(asio::use_awaitable));
    out.ec = std::get<0>(written);
    if (out.ec) co_return out;
    Parser parser;
    parser.body_limit(boost::none);
    auto head = co_await http::async_read_header(connection->stream, connection->buffer, parser, asio::as_tuple(asio::use_awaitable));
    out.ec = std::get<0>(head);
    if (out.ec) co_return out;
    out.status = parser.get().result_int();
    std::vector<char> piece(kPieceBytes);
    while (!parser.is_done()) {
        auto& body = parser.get().body();
        body.data = piece.data();
        body.size = piece.size();
        auto read = co_await http::async_read_some(connection->stream, connection->buffer, parser, asio::as_tuple(asio::use_awaitable));
        out.ec = std::get<0>(read);
        if (out.ec == http::error::need_buffer) out.ec = {};
        const std::string_view bytes(piece.data(), piece.size() - parser.get().body().size);
        if (out.status == 200) {
            if (!bytes.empty()) sink(bytes);
        } else if (out.error_body.size() < kMaxErrorBytes) {
            out.error_body += bytes;
        }
        if (out.ec) co_return out;
    }
    out.keep_alive = parser.get().keep_alive();
    co_return out;
}

asio::awaitable<void> OpenAiClient::probe() {
    boost::system::error_code problem;
    std::shared_ptr<Connection> connection = co_await open(problem);
    if (!connection) throw load_error(errc::internal, settings_.url.text + ": " + problem.message());
    if (!settings_.model.empty()) co_return;
    std::string body;
    Sink sink = [&body](std::string_view bytes) { body += bytes; };
    HttpRequest request = message(http::verb::get, "/models", std::string());
    Answer answer = co_await exchange(connection, std::move(request), std::move(sink));
    if (answer.ec) throw load_error(errc::internal, settings_.url.text + "/models: " + answer.ec.message());
    if (answer.status != 200) {
        throw load_error(errc::internal, settings_.url.text + "/models: " + error_code_of(answer.error_body, answer.status));
    }
    boost::system::error_code ec;
    const json::value value = json::parse(body, ec);
    const json::value* list = ec ? nullptr : member(&value, "data");
    if (list == nullptr || !list->is_array() || list->get_array().empty() || !has_text(member(&list->get_array().front(), "id"))) {
        throw load_error(errc::internal, settings_.url.text + "/models names no model; give one with --model");
    }
    settings_.model = std::string(member(&list->get_array().front(), "id")->get_string());
}

asio::awaitable<OpenAiClient::Answer> OpenAiClient::ask(std::shared_ptr<Connection> connection, LoadRequest request,
                                                        std::shared_ptr<LoadRun> run) {
    run->stop_io = [connection] { connection->close(); };
    if (run->stopping) connection->close();
    const auto lines = std::make_shared<EventLines>();
    Sink sink = [this, run, lines](std::string_view bytes) {
        const double now_s = bench_seconds(settings_.origin_ns);
        lines->feed(bytes, [&](std::string_view data) { take_event(data, now_s, run->sample); });
        run->changed.notify();
    };
    HttpRequest http_request = completion(request);
    Answer answer = co_await exchange(connection, std::move(http_request), std::move(sink));
    run->stop_io = nullptr;
    co_return answer;
}

asio::awaitable<void> OpenAiClient::run(LoadRequest request, std::shared_ptr<LoadRun> run) {
    run->sample.sent_s = bench_seconds(settings_.origin_ns);
    bool again = true;
    while (again) {
        const bool reused = !idle_.empty();
        std::shared_ptr<Connection> connection;
        boost::system::error_code problem;
        if (reused) {
            connection = std::move(idle_.back());
            idle_.pop_back();
        } else {
            connection = co_await open(problem);
        }
        Answer answer;
        answer.ec = problem;
        if (connection) answer = co_await ask(connection, request, run);
        // The server may have closed a kept connection meanwhile; a new one tells.
        again = reused && answer.ec && answer.status == 0 && !run->stopping;
        if (again) continue;
        if (run->stopping) {
            run->sample.reason = "cancelled";
        } else if (answer.ec) {
            run->sample.error = "connection: " + answer.ec.message();
        } else if (answer.status != 200) {
            run->sample.error = error_code_of(answer.error_body, answer.status);
        } else if (answer.keep_alive) {
            idle_.push_back(std::move(connection));
        }
    }
    run->sample.end_s = bench_seconds(settings_.origin_ns);
    run->done = true;
    run->changed.notify();
}

}  // namespace

std::unique_ptr<LoadClient> make_openai_client(asio::any_io_executor executor, LoadSettings settings) {
    return std::make_unique<OpenAiClient>(std::move(executor), std::move(settings));
}

}  // namespace takt::cli
