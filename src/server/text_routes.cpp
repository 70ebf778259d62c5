// Tokenising over HTTP. Starts and ends on the server's thread; parses and tokenises on the worker.
#include "server/text_routes.h"

#include "server/field_reader.h"
#include "server/json_text.h"
#include "server/openai_request.h"
#include "server/openai_routes.h"
#include "server/request_fields.h"

namespace takt::server {

namespace {

HttpReply bad(const std::string& message, std::string_view param = {}) {
    return error_reply(400, "bad_request", message, param);
}

HttpReply tokens_reply(const std::vector<std::int32_t>& tokens) {
    HttpReply out;
    out.body = "{\"tokens\":[";
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0) out.body += ',';
        append_json_number(out.body, std::int64_t{tokens[i]});
    }
    out.body += "],\"count\":";
    append_json_number(out.body, static_cast<std::int64_t>(tokens.size()));
    out.body += "}\n";
    return out;
}

// Any error of the engine's pure calls is the client's text.
template <class Work>
HttpReply guarded(Work work) {
    try {
        return work();
    } catch (const boost::system::system_error& problem) {
        return failure_reply(to_failure(problem.code(), problem.what()));
    }
}

// What is wrong with the fields, or with the model that they name; nothing if the work can begin.
std::optional<HttpReply> refused(FieldReader& fields, const std::string& model_name) {
    const std::optional<std::string> model = fields.string("model");
    fields.refuse_unknown();
    if (!fields.ok()) return bad(fields.problem(), fields.param());
    const Failure wrong = check_model(model, model_name);
    if (!wrong) return std::nullopt;
    return failure_reply(wrong);
}

HttpReply tokenize(const Engine& engine, const std::string& model_name, const std::string& body) {
    const ParsedJson parsed = parse_json(body);
    if (!parsed.problem.empty()) return bad(parsed.problem);
    if (!parsed.value.is_object()) return bad("the body must be one JSON object");
    FieldReader fields(parsed.value.get_object());
    Request request;
    request.prompt = fields.string("prompt");
    read_messages(fields, request);
    const bool parse_special = fields.boolean("parse_special").value_or(false);
    if (request.prompt.has_value() == request.messages.has_value()) {
        fields.fail("prompt", "allowed exactly one of `prompt` and `messages`");
    }
    if (std::optional<HttpReply> wrong = refused(fields, model_name)) return std::move(*wrong);
    return guarded([&] {
        return tokens_reply(request.prompt ? engine.tokenize(*request.prompt, parse_special)
                                           : engine.tokenize_messages(*request.messages));
    });
}

HttpReply detokenize(const Engine& engine, const std::string& model_name, const std::string& body) {
    const ParsedJson parsed = parse_json(body);
    if (!parsed.problem.empty()) return bad(parsed.problem);
    if (!parsed.value.is_object()) return bad("the body must be one JSON object");
    FieldReader fields(parsed.value.get_object());
    Request request;
    const auto* list = fields.array("tokens");
    if (list == nullptr) fields.fail("tokens", "missing");
    if (list != nullptr && !list->empty()) read_token_ids(fields, "tokens", request);
    if (std::optional<HttpReply> wrong = refused(fields, model_name)) return std::move(*wrong);
    return guarded([&] {
        HttpReply out;
        out.body = "{\"prompt\":";
        append_json_string(out.body, engine.detokenize(request.tokens.value_or(std::vector<std::int32_t>())));
        out.body += "}\n";
        return out;
    });
}

using TextWork = HttpReply (*)(const Engine&, const std::string&, const std::string&);

asio::awaitable<void> serve(ServerState& state, HttpRequest http, Exchange& exchange, TextWork text_work) {
    HttpReply reply = error_reply(503, "draining", "the model is not loaded yet");
    if (state.engine) {
        const std::function<HttpReply()> work = [&state, &http, text_work] {
            return text_work(state.engine, state.model_name, http.body);
        };
        reply = co_await on_worker<HttpReply>(state, work);
    }
    co_await exchange.reply(std::move(reply));
}

}  // namespace

asio::awaitable<void> serve_tokenize(ServerState& state, HttpRequest http, Exchange& exchange) {
    return serve(state, std::move(http), exchange, tokenize);
}

asio::awaitable<void> serve_detokenize(ServerState& state, HttpRequest http, Exchange& exchange) {
    return serve(state, std::move(http), exchange, detokenize);
}

}  // namespace takt::server
