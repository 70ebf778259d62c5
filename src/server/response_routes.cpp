// POST /v1/responses: whole or as server-sent events. Server thread.
#include <boost/json/parse.hpp>

#include "server/clock.h"
#include "server/field_reader.h"
#include "server/generation.h"
#include "server/openai_routes.h"
#include "server/response_events.h"
#include "server/response_request.h"

namespace takt::server {

namespace {

ResponseRequest parse_text(const std::string& body, const std::string& model_name) {
    const ParsedJson parsed = parse_json(body);
    ResponseRequest out;
    if (parsed.value.is_object()) return parse_response_body(parsed.value.get_object(), model_name, false);
    out.error.code = errc::bad_request;
    out.error.message = parsed.problem.empty() ? "the body must be one JSON object" : parsed.problem;
    return out;
}

asio::awaitable<void> send_all(EventStream& events, std::vector<ResponseEvent> all) {
    for (ResponseEvent& event : all) {
        std::string data = std::move(event.data);
        std::string name = std::move(event.name);
        co_await events.send(std::move(data), std::move(name));
    }
}

asio::awaitable<void> send_events(Generation& generation, EventStream& events, ResponseEvents& sequence) {
    std::vector<ResponseEvent> first = sequence.begin();
    co_await send_all(events, std::move(first));
    const Generation::Sink sink = [&](Generation::Choice&, Chunk chunk) {
        ResponseEvent event = sequence.delta(chunk);
        return events.send(std::move(event.data), std::move(event.name));
    };
    co_await generation.run(sink, false);
    const Failure failure = generation.failure();
    std::vector<ResponseEvent> last;
    if (failure) {
        last.push_back(sequence.failed(error_info(failure.code).code, failure.message));
    } else {
        last = sequence.end(generation.choices().front()->result, unix_seconds());
    }
    co_await send_all(events, std::move(last));
}

asio::awaitable<bool> taken() { co_return true; }

asio::awaitable<void> answer_whole(Generation& generation, Exchange& exchange, ResponseEvents& sequence) {
    const Generation::Sink sink = [&sequence](Generation::Choice&, Chunk chunk) {
        sequence.collect(chunk);
        return taken();
    };
    co_await generation.run(sink, false);
    const Failure failure = generation.failure();
    HttpReply reply;
    if (failure) {
        reply = failure_reply(failure);
    } else {
        reply.body = sequence.whole(generation.choices().front()->result, unix_seconds());
    }
    co_await exchange.reply(std::move(reply));
}

}  // namespace

asio::awaitable<void> serve_responses(ServerState& state, HttpRequest http, Exchange& exchange) {
    const std::function<ResponseRequest()> parse = [&state, &http] { return parse_text(http.body, state.model_name); };
    ResponseRequest parsed = co_await on_worker_if_long<ResponseRequest>(state, http.body.size(), parse);
    if (!parsed.error) parsed.error = apply_slo_headers(http, parsed.request);
    if (!parsed.error && parsed.previous_id) {   // nothing is stored between HTTP requests
        parsed.error.code = errc::not_found;
        parsed.error.param = "previous_response_id";
        parsed.error.message = "previous_response_id: responses are kept on a WebSocket connection only, for its life";
    }
    if (parsed.error) {
        state.count_refusal(parsed.error.code);
        HttpReply reply = failure_reply(parsed.error);
        co_await exchange.reply(std::move(reply));
        co_return;
    }
    prepend_turns(parsed, boost::json::array());
    parsed.request.label = http.request_id;
    Generation generation(state, http.identity, exchange.executor());
    exchange.on_gone = [&generation] { generation.cancel(); };
    std::vector<Request> requests;
    requests.push_back(std::move(parsed.request));
    const Failure failure = co_await generation.submit_all(std::move(requests));
    if (failure) {
        exchange.on_gone = nullptr;
        HttpReply reply = failure_reply(failure);
        co_await exchange.reply(std::move(reply));
        co_return;
    }
    ResponseHead head;
    head.id = state.make_id("resp_");
    head.item_id = state.make_id("msg_");
    head.model = state.model_name;
    head.created = unix_seconds();
    head.echo = std::move(parsed.echo);
    head.logprobs = parsed.logprobs;
    ResponseEvents sequence(std::move(head));
    if (parsed.stream) {
        const SendEvents send = [&](EventStream& events) { return send_events(generation, events, sequence); };
        co_await answer_stream(state, generation, exchange, send);
    } else {
        co_await answer_whole(generation, exchange, sequence);
    }
    exchange.on_gone = nullptr;
}

}  // namespace takt::server
