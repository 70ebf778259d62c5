// Chat completions and completions over HTTP. Server thread.
#include "server/openai_routes.h"

#include <cmath>

#include "server/clock.h"
#include "server/generation.h"
#include "server/json_text.h"
#include "server/openai_answer.h"
#include "server/openai_request.h"

namespace takt::server {

namespace {

std::vector<AnswerChoice> finished_choices(const Generation& generation) {
    std::vector<AnswerChoice> out;
    for (const auto& choice : generation.choices()) {
        AnswerChoice one;
        one.text = choice->text;
        one.logprobs = choice->logprobs;
        one.reason = choice->result.reason;
        out.push_back(std::move(one));
    }
    return out;
}

// Everything of a stream between its head and [DONE].
asio::awaitable<void> send_events(Generation& generation, EventStream& events, const AnswerHead& head,
                                  const OpenAiRequest& parsed) {
    if (head.chat) {
        for (std::size_t i = 0; i < generation.choices().size(); ++i) {
            std::string data = role_chunk(head, i);
            co_await events.send(std::move(data), std::string());
        }
    }
    std::vector<std::size_t> offsets(generation.choices().size(), 0);
    const Generation::Sink sink = [&](Generation::Choice& choice, Chunk chunk) {
        std::string data = text_chunk(head, choice.index, chunk, parsed.logprobs, offsets[choice.index]);
        offsets[choice.index] += num_utf8_characters(chunk.text);
        return events.send(std::move(data), std::string());
    };
    co_await generation.run(sink, false);
    const Failure failure = generation.failure();
    if (failure) {
        const ErrorInfo info = error_info(failure.code);
        std::string data = stream_error(info.code, failure.message, info.http_status);
        co_await events.send(std::move(data), std::string());
        co_return;
    }
    for (const auto& choice : generation.choices()) {
        std::string data = finish_chunk(head, choice->index, choice->result.reason);
        co_await events.send(std::move(data), std::string());
    }
    if (parsed.include_usage) {
        std::string data = usage_chunk(head, generation.usage(parsed.num_choices));
        co_await events.send(std::move(data), std::string());
    }
    co_await events.send(std::string("[DONE]"), std::string());
}

}  // namespace

asio::awaitable<void> answer_stream(ServerState& state, Generation& generation, Exchange& exchange, const SendEvents& send) {
    EventStream events(exchange, state.config.server.ping_seconds);
    const bool open = co_await events.open(HttpHeaders());
    if (!open) {
        generation.cancel();
        co_await generation.run(Generation::Sink(), false);
        co_return;
    }
    TaskGroup writer(exchange.executor(), TaskGroup::Sink());
    writer.spawn(events.run());
    co_await send(events);
    events.finish();
    co_await writer.empty();
}

HttpReply failure_reply(const Failure& failure) {
    const ErrorInfo info = error_info(failure.code);
    const int status = info.http_status >= 400 ? info.http_status : 500;
    HttpReply reply = error_reply(status, info.code, failure.message, failure.param);
    if (status != 429 && status != 503) return reply;
    if (failure.retry_after_ms > 0) {
        const auto milliseconds = static_cast<std::int64_t>(std::ceil(failure.retry_after_ms));
        reply.headers.emplace_back("Retry-After", std::to_string((milliseconds + 999) / 1000));
        reply.headers.emplace_back("retry-after-ms", std::to_string(milliseconds));
    } else if (status == 429 && failure.code != errc::deadline_unreachable) {
        reply.headers.emplace_back("Retry-After", "1");
    }
    // A deadline that the request's own prompt cannot meet is none to try again.
    const bool again = failure.code != errc::deadline_unreachable || failure.retry_after_ms > 0;
    reply.headers.emplace_back("x-should-retry", again ? "true" : "false");
    return reply;
}

asio::awaitable<void> serve_completions(ServerState& state, HttpRequest http, Exchange& exchange, bool chat) {
    const std::function<OpenAiRequest()> parse = [&state, &http, chat] {
        return chat ? parse_chat_body(http.body, state.model_name) : parse_completion_body(http.body, state.model_name);
    };
    OpenAiRequest parsed = co_await on_worker_if_long<OpenAiRequest>(state, http.body.size(), parse);
    for (Request& request : parsed.requests) {
        request.label = http.request_id;
        if (!parsed.error) parsed.error = apply_slo_headers(http, request);
    }
    if (parsed.error) {
        state.count_refusal(parsed.error.code);
        HttpReply reply = failure_reply(parsed.error);
        co_await exchange.reply(std::move(reply));
        co_return;
    }
    Generation generation(state, http.identity, exchange.executor());
    exchange.on_gone = [&generation] { generation.cancel(); };
    std::vector<Request> requests = std::move(parsed.requests);
    const Failure failure = co_await generation.submit_all(std::move(requests));
    if (failure) {
        // Those that were accepted before the refusal end as cancelled; read them to that end.
        HttpReply reply = failure_reply(failure);
        exchange.on_gone = nullptr;
        co_await exchange.reply(std::move(reply));
        co_return;
    }
    AnswerHead head;
    head.chat = chat;
    head.id = state.make_id(chat ? "chatcmpl-" : "cmpl-");
    head.model = state.model_name;
    head.created = unix_seconds();
    if (parsed.stream) {
        const SendEvents send = [&](EventStream& events) { return send_events(generation, events, head, parsed); };
        co_await answer_stream(state, generation, exchange, send);
    } else {
        co_await generation.run(Generation::Sink(), true);
        const Failure late = generation.failure();
        HttpReply reply;
        if (late) {
            reply = failure_reply(late);
        } else {
            reply.body = whole_answer(head, finished_choices(generation), generation.usage(parsed.num_choices),
                                      parsed.logprobs);
        }
        co_await exchange.reply(std::move(reply));
    }
    exchange.on_gone = nullptr;
}

}  // namespace takt::server
