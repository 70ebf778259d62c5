// The native protocol. Pure functions, any thread.
#include "server/protocol.h"

#include <limits>

#include "server/field_reader.h"
#include "server/json_text.h"
#include "server/request_fields.h"

namespace takt::server {

namespace json = boost::json;

namespace {

constexpr std::size_t kMaxIdCharacters = 64;
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// The frame's id if it is valid. Never a problem of `fields`: the caller says what a missing one means.
std::optional<std::string> valid_id(const json::object& frame) {
    const json::value* id = frame.if_contains("id");
    if (id == nullptr || !id->is_string()) return std::nullopt;
    std::string text(id->get_string().data(), id->get_string().size());
    if (text.empty() || num_utf8_characters(text) > kMaxIdCharacters) return std::nullopt;
    return text;
}

FrameError bad_frame(std::optional<std::string> id, std::string message) {
    FrameError error;
    error.id = std::move(id);
    error.message = std::move(message);
    return error;
}

ClientFrame read_generate(FieldReader& fields, std::string id) {
    GenerateFrame frame;
    Request& request = frame.request;
    request.prompt = fields.string("prompt");
    read_messages(fields, request);
    read_token_ids(fields, "tokens", request);
    const int num_inputs = int{request.prompt.has_value()} + int{request.messages.has_value()} +
                           int{request.tokens.has_value()};
    if (num_inputs != 1) {
        fields.fail("", "found " + std::to_string(num_inputs) +
                            " of `prompt`, `messages` and `tokens`, allowed exactly one");
    }
    if (const auto count = fields.integer("max_tokens", 1, kMaxInt32)) {
        request.max_tokens = static_cast<std::int32_t>(*count);
    }
    read_sampling(fields, request);
    read_seed(fields, request, false);
    read_stop(fields, request);
    if (const auto count = fields.integer("logprobs", 0, 20)) {
        request.sampling.logprobs = static_cast<std::int32_t>(*count);
    }
    read_service(fields, request);
    read_template_extras(fields, request);
    frame.credit = fields.integer("credit", 0, kMaxCredit);
    frame.echo_tokens = fields.boolean("echo_tokens").value_or(false);
    fields.refuse_unknown();
    request.label = id;
    frame.id = std::move(id);
    return frame;
}

ClientFrame read_credit(FieldReader& fields, std::string id) {
    CreditFrame frame;
    const std::optional<std::int64_t> tokens = fields.integer("tokens", 0, kMaxCredit);
    if (!tokens) fields.fail("tokens", "missing");
    frame.tokens = tokens.value_or(0);
    fields.refuse_unknown();
    frame.id = std::move(id);
    return frame;
}

ClientFrame read_frame(const json::object& object) {
    std::optional<std::string> id = valid_id(object);
    FieldReader fields(object);
    fields.find("id");
    const std::optional<std::string> type = fields.string("type");
    if (!type) return bad_frame(id, fields.ok() ? "type: missing" : fields.problem());
    if (*type != "generate" && *type != "cancel" && *type != "credit") {
        return bad_frame(id, "type: found " + shown(json::value(*type)) + ", allowed generate, cancel or credit");
    }
    if (!id) return bad_frame(std::nullopt, "id: allowed a string of 1 to 64 characters");
    ClientFrame frame;
    if (*type == "generate") {
        frame = read_generate(fields, *id);
    } else if (*type == "credit") {
        frame = read_credit(fields, *id);
    } else {
        fields.refuse_unknown();
        CancelFrame cancel;
        cancel.id = *id;
        frame = std::move(cancel);
    }
    if (!fields.ok()) return bad_frame(id, fields.problem());
    return frame;
}

void append_field(std::string& out, std::string_view name, std::int64_t value) {
    out += ",\"";
    out += name;
    out += "\":";
    append_json_number(out, value);
}

void append_field(std::string& out, std::string_view name, double value) {
    out += ",\"";
    out += name;
    out += "\":";
    append_json_number(out, value);
}

void append_logprobs(std::string& out, const std::vector<TokenLogprob>& logprobs) {
    out += ",\"logprobs\":[";
    for (std::size_t i = 0; i < logprobs.size(); ++i) {
        const TokenLogprob& entry = logprobs[i];
        out += i == 0 ? "{\"token\":" : ",{\"token\":";
        append_json_number(out, std::int64_t{entry.token});
        out += ",\"text\":";
        append_json_string(out, entry.text);
        append_field(out, "logprob", entry.logprob);
        out += ",\"top\":[";
        for (std::size_t k = 0; k < entry.top.size(); ++k) {
            out += k == 0 ? "{\"token\":" : ",{\"token\":";
            append_json_number(out, std::int64_t{entry.top[k].token});
            out += ",\"text\":";
            append_json_string(out, entry.top[k].text);
            append_field(out, "logprob", entry.top[k].logprob);
            out += '}';
        }
        out += "]}";
    }
    out += ']';
}

std::string begin_frame(std::string_view type, std::string_view id) {
    std::string out;
    out.reserve(128);
    out += "{\"type\":\"";
    out += type;
    out += "\",\"id\":";
    append_json_string(out, id);
    return out;
}

}  // namespace

ClientFrame parse_client_frame(std::string_view text) {
    const ParsedJson parsed = parse_json(text);
    if (!parsed.problem.empty()) return bad_frame(std::nullopt, parsed.problem);
    const json::object* object = parsed.value.if_object();
    if (object == nullptr) return bad_frame(std::nullopt, "a frame must be one JSON object, found " + shown(parsed.value));
    return read_frame(*object);
}

std::string accepted_frame(std::string_view id, std::int64_t prompt_tokens, std::int64_t cached_tokens) {
    std::string out = begin_frame("accepted", id);
    append_field(out, "prompt_tokens", prompt_tokens);
    append_field(out, "cached_tokens", cached_tokens);
    out += '}';
    return out;
}

std::string delta_head(std::string_view id) { return begin_frame("delta", id) + ",\"index\":"; }

std::string delta_frame(std::string_view id, const Chunk& chunk, bool echo_tokens) {
    std::string out;
    write_delta(out, delta_head(id), chunk, echo_tokens);
    return out;
}

void write_delta(std::string& out, std::string_view head, const Chunk& chunk, bool echo_tokens) {
    out.assign(head);
    append_json_number(out, std::int64_t{chunk.index});
    out += ",\"text\":";
    append_json_string(out, chunk.text);
    if (echo_tokens) {
        out += ",\"tokens\":[";
        for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
            if (i > 0) out += ',';
            append_json_number(out, std::int64_t{chunk.tokens[i]});
        }
        out += ']';
    }
    if (!chunk.logprobs.empty()) append_logprobs(out, chunk.logprobs);
    out += '}';
}

std::string done_frame(std::string_view id, const RequestResult& result) {
    std::string out = begin_frame("done", id);
    out += ",\"reason\":\"";
    out += reason_name(result.reason);
    out += "\",\"usage\":{\"prompt_tokens\":";
    append_json_number(out, result.usage.prompt_tokens);
    append_field(out, "completion_tokens", result.usage.completion_tokens);
    append_field(out, "cached_tokens", result.usage.cached_tokens);
    out += "},\"timings\":{\"queue_ms\":";
    const Timings& timings = result.timings;
    append_json_number(out, timings.queue_ms);
    append_field(out, "ttft_ms", timings.ttft_ms);
    append_field(out, "prefill_ms", timings.prefill_ms);
    append_field(out, "decode_ms", timings.decode_ms);
    append_field(out, "itl_p50_ms", timings.itl_p50_ms);
    append_field(out, "itl_max_ms", timings.itl_max_ms);
    append_field(out, "preemptions", std::int64_t{timings.preemptions});
    out += "},\"seed\":";
    append_json_number(out, result.seed);
    out += '}';
    return out;
}

std::string error_frame(const FrameError& error) {
    std::string out = "{\"type\":\"error\",\"id\":";
    if (error.id) {
        append_json_string(out, *error.id);
    } else {
        out += "null";
    }
    if (error.ref) {
        out += ",\"ref\":";
        append_json_string(out, *error.ref);
    }
    out += ",\"code\":\"";
    out += error_info(error.code).code;
    out += "\",\"message\":";
    append_json_string(out, error.message);
    if (error.retry_after_ms > 0) append_field(out, "retry_after_ms", error.retry_after_ms);
    out += '}';
    return out;
}

std::string_view reason_name(FinishReason reason) {
    switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: break;
    }
    return "error";
}

}  // namespace takt::server
