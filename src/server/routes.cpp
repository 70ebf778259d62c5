// HTTP routes. Server thread.
#include "server/routes.h"

#include <array>

#include "server/debug_steps.h"
#include "server/json_text.h"
#include "server/openai_routes.h"
#include "server/page.h"
#include "server/prometheus.h"
#include "server/text_routes.h"

namespace takt::server {

namespace {

HttpReply plain(std::string body, std::string content_type) {
    HttpReply out;
    out.body = std::move(body);
    out.content_type = std::move(content_type);
    return out;
}

HttpReply live_reply() { return plain("{\"status\":\"live\"}\n", "application/json"); }

HttpReply ready_reply(const ServerState& state) {
    std::string reason;
    HealthSnapshot health;
    if (!state.engine) {
        reason = "the model is loading";
    } else {
        health = state.engine.health();
        if (state.draining || health.draining) {
            reason = "draining";
        } else if (!health.ready()) {
            reason = health.reason.empty() ? "the engine is not ready" : health.reason;
        }
    }
    HttpReply out;
    out.status = reason.empty() ? 200 : 503;
    out.body = "{\"status\":";
    append_json_string(out.body, reason.empty() ? "ready" : "not ready");
    out.body += ",\"reason\":";
    append_json_string(out.body, reason);
    out.body += ",\"model\":";
    append_json_string(out.body, state.model_name);
    out.body += ",\"seconds_since_progress\":";
    append_json_number(out.body, health.seconds_since_progress);
    out.body += ",\"expected_step_seconds\":";
    append_json_number(out.body, health.expected_step_seconds);
    out.body += "}\n";
    return out;
}

// The engine's series with the refusals of the doors added: a client sees no difference between the two.
void add_refusals(MetricsSnapshot& metrics, const ServerState& state) {
    for (SeriesSnapshot& series : metrics.series) {
        if (series.name != "takt_requests_refused_total") continue;
        for (std::size_t code = 1; code < state.num_refused.size(); ++code) {
            for (Labelled<double>& sample : series.values) {
                if (sample.labels.front().second != error_info(static_cast<errc>(code)).code) continue;
                sample.value += static_cast<double>(state.num_refused[code]);
            }
        }
    }
}

HttpReply metrics_reply(const ServerState& state) {
    MetricsSnapshot own = server_series(state);
    std::string text = prometheus_text(own);
    if (state.engine) {
        MetricsSnapshot metrics = state.engine.metrics();
        add_refusals(metrics, state);
        text += prometheus_text(metrics);
        text += prometheus_text(aliases(metrics, state.engine.memory_plan().block_tokens, state.model_name));
    }
    return plain(std::move(text), "text/plain; version=0.0.4; charset=utf-8");
}

void append_model(std::string& out, const ServerState& state) {
    const ModelInfo model = state.engine.model();
    out += "{\"id\":";
    append_json_string(out, state.model_name);
    out += ",\"object\":\"model\",\"created\":";
    append_json_number(out, model.created_unix > 0 ? model.created_unix : state.started_unix);
    out += ",\"owned_by\":\"takt\",\"max_model_len\":";
    append_json_number(out, model.max_context);
    out += '}';
}

HttpReply models_reply(const ServerState& state, const std::string& path) {
    constexpr std::string_view base = "/v1/models";
    if (!state.engine) return error_reply(503, "draining", "the model is not loaded yet");
    HttpReply out;
    if (path == base) {
        out.body = "{\"object\":\"list\",\"data\":[";
        append_model(out.body, state);
        out.body += "]}\n";
    } else if (path.substr(base.size() + 1) == state.model_name) {
        append_model(out.body, state);
    } else {
        return error_reply(404, "not_found", "the model is not here; loaded: `" + state.model_name + "`", "model");
    }
    return out;
}

// Known paths and their method; a path that begins with one that ends in '/' matches too.
struct Route {
    std::string_view method;
    std::string_view path;
};
constexpr std::array<Route, 13> kRoutes = {{
    {"GET", "/"},
    {"GET", "/health"},
    {"GET", "/health/live"},
    {"GET", "/health/ready"},
    {"GET", "/metrics"},
    {"GET", "/v1/models"},
    {"GET", "/debug/steps"},
    {"GET", "/v1/stream"},
    {"POST", "/v1/chat/completions"},
    {"POST", "/v1/completions"},
    {"POST", "/v1/responses"},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
}};

bool is_model_path(const std::string& path) { return path.rfind("/v1/models/", 0) == 0; }

// What is wrong with method, path or content type; nothing if the route can run.
std::optional<HttpReply> misdirected(const HttpRequest& http) {
    std::string_view allowed;
    for (const Route& route : kRoutes) {
        if (route.path == http.path) allowed = route.method;
    }
    if (is_model_path(http.path)) allowed = "GET";
    if (allowed.empty()) return error_reply(404, "not_found", "there is no such path here");
    const bool head = http.method == "HEAD" && allowed == "GET";
    if (http.method != allowed && !head) {
        HttpReply out = error_reply(405, "bad_request", "method " + valid_utf8(http.method) + ", allowed " +
                                                            std::string(allowed));
        out.headers.emplace_back("Allow", allowed == "GET" ? "GET, HEAD" : std::string(allowed));
        return out;
    }
    if (allowed != "POST") return std::nullopt;
    const std::string_view type = http.header("content-type");
    const std::string_view media = trimmed(type.substr(0, type.find(';')));
    if (!media.empty() && !equal_without_case(media, "application/json")) {
        return error_reply(415, "bad_request", "Content-Type: found " + valid_utf8(media.substr(0, 60)) +
                                                   ", allowed application/json");
    }
    const std::string_view encoding = http.header("content-encoding");
    if (!encoding.empty() && !equal_without_case(encoding, "identity")) {
        return error_reply(415, "bad_request", "Content-Encoding: found " + valid_utf8(encoding.substr(0, 60)) + ", allowed identity");
    }
    return std::nullopt;
}

HttpReply steps_reply(const ServerState& state, const HttpRequest& http) {
    if (!state.engine) return error_reply(503, "draining", "the model is not loaded yet");
    const std::size_t count = steps_asked(http.query);
    if (count == 0) return error_reply(400, "bad_request", "last: a number from 1 to " + std::to_string(kMostSteps) + " expected", "last");
    return plain(steps_json(state.engine.recorder(), count), "application/json");
}

HttpReply get_reply(ServerState& state, const HttpRequest& http) {
    if (http.path == "/health/live") return live_reply();
    if (http.path == "/health" || http.path == "/health/ready") return ready_reply(state);
    if (http.path == "/metrics") return metrics_reply(state);
    if (http.path == "/v1/stream") {
        HttpReply out = error_reply(426, "bad_request", "this path is a WebSocket; subprotocol takt.v1");
        out.headers.emplace_back("Upgrade", "websocket");
        return out;
    }
    if (http.path == "/debug/steps") {
        if (!state.config.server.admin) return error_reply(404, "not_found", "needs server.admin = true");
        return steps_reply(state, http);
    }
    if (http.path == "/") {
        std::string html(page_html());
        // The page asks for steps only where they are given.
        constexpr std::string_view mark = "<main>";
        const std::size_t at = state.config.server.admin ? html.find(mark) : std::string::npos;
        if (at != std::string::npos) html.replace(at, mark.size(), "<main data-steps=\"yes\">");
        HttpReply out = plain(std::move(html), "text/html; charset=utf-8");
        out.headers.emplace_back("Content-Security-Policy", std::string(page_policy()));
        out.headers.emplace_back("X-Frame-Options", "DENY");
        return out;
    }
    return models_reply(state, http.path);
}

SeriesSnapshot one_value(const char* name, const char* help, SeriesSnapshot::Type type, double value) {
    SeriesSnapshot out;
    out.name = name;
    out.help = help;
    out.type = type;
    Labelled<double> sample;
    sample.value = value;
    out.values.push_back(std::move(sample));
    return out;
}

}  // namespace

MetricsSnapshot server_series(const ServerState& state) {
    using Type = SeriesSnapshot::Type;
    MetricsSnapshot out;
    out.series.push_back(one_value("takt_connections", "Open client connections.", Type::gauge,
                                   static_cast<double>(state.num_connections)));
    out.series.push_back(one_value("takt_websockets", "Open WebSocket connections.", Type::gauge,
                                   static_cast<double>(state.num_websockets)));
    out.series.push_back(one_value("takt_http_requests_total", "HTTP requests read, upgrades included.", Type::counter,
                                   static_cast<double>(state.num_http_requests)));
    return out;
}

asio::awaitable<void> serve_http(ServerState& state, HttpRequest http, Exchange& exchange) {
    std::optional<HttpReply> wrong = misdirected(http);
    if (wrong) {
        co_await exchange.reply(std::move(*wrong));
    } else if (http.path == "/v1/chat/completions" || http.path == "/v1/completions") {
        const bool chat = http.path == "/v1/chat/completions";
        co_await serve_completions(state, std::move(http), exchange, chat);
    } else if (http.path == "/v1/responses") {
        co_await serve_responses(state, std::move(http), exchange);
    } else if (http.path == "/tokenize") {
        co_await serve_tokenize(state, std::move(http), exchange);
    } else if (http.path == "/detokenize") {
        co_await serve_detokenize(state, std::move(http), exchange);
    } else {
        HttpReply reply = get_reply(state, http);
        co_await exchange.reply(std::move(reply));
    }
}

}  // namespace takt::server
