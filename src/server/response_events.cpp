// The Responses event sequence. Pure; one thread at a time.
#include "server/response_events.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>

#include "server/json_text.h"

namespace takt::server {

namespace json = boost::json;

namespace {

double finite(double value) { return std::isfinite(value) ? value : -9999.0; }

json::string text_value(std::string_view text) {
    const std::string valid = valid_utf8(text);
    return json::string(valid.data(), valid.size());
}

json::array byte_list(std::string_view text) {
    json::array out;
    for (const char c : text) out.push_back(std::int64_t{static_cast<unsigned char>(c)});
    return out;
}

json::object usage_object(const Usage& usage) {
    json::object input;
    input["cached_tokens"] = usage.cached_tokens;
    input["cache_write_tokens"] = 0;
    json::object output;
    output["reasoning_tokens"] = 0;
    json::object out;
    out["input_tokens"] = usage.prompt_tokens;
    out["input_tokens_details"] = std::move(input);
    out["output_tokens"] = usage.completion_tokens;
    out["output_tokens_details"] = std::move(output);
    out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
    return out;
}

// The fixed list of the dialect has little to choose from.
std::string_view failure_code(std::string_view code) {
    if (code == "rate_limited" || code == "queue_full") return "rate_limit_exceeded";
    if (code == "bad_request" || code == "context_too_long") return "invalid_prompt";
    return "server_error";
}

}  // namespace

json::array ResponseEvents::logprob_list(const std::vector<TokenLogprob>& entries, bool bytes) const {
    json::array out;
    for (const TokenLogprob& entry : entries) {
        json::array top;
        for (const TokenLogprob::Top& other : entry.top) {
            json::object one;
            one["token"] = text_value(other.text);
            one["logprob"] = finite(other.logprob);
            if (bytes) one["bytes"] = byte_list(other.text);
            top.push_back(std::move(one));
        }
        json::object one;
        one["token"] = text_value(entry.text);
        one["logprob"] = finite(entry.logprob);
        if (bytes) one["bytes"] = byte_list(entry.text);
        one["top_logprobs"] = std::move(top);
        out.push_back(std::move(one));
    }
    return out;
}

json::object ResponseEvents::part(bool whole) const {
    json::object out;
    out["type"] = "output_text";
    out["text"] = whole ? text_value(text_) : json::string();
    out["annotations"] = json::array();
    if (whole && head_.logprobs) out["logprobs"] = logprob_list(logprobs_, true);
    return out;
}

json::object ResponseEvents::item(std::string_view status) const {
    json::object out;
    out["id"] = head_.item_id;
    out["type"] = "message";
    out["role"] = "assistant";
    out["status"] = json::string_view(status.data(), status.size());
    json::array content;
    if (status != "in_progress") content.push_back(part(true));
    out["content"] = std::move(content);
    return out;
}

json::object ResponseEvents::response(std::string_view status) const {
    json::object out;
    out["id"] = head_.id;
    out["object"] = "response";
    out["created_at"] = head_.created;
    out["status"] = json::string_view(status.data(), status.size());
    out["model"] = head_.model;
    out["output"] = json::array();
    out["parallel_tool_calls"] = true;
    out["tool_choice"] = "auto";
    out["tools"] = json::array();
    out["error"] = nullptr;
    out["incomplete_details"] = nullptr;
    for (const auto& field : head_.echo) out[field.key()] = field.value();
    return out;
}

std::string_view ResponseEvents::end_status(FinishReason reason) const {
    return reason == FinishReason::stop ? "completed" : "incomplete";
}

json::object ResponseEvents::finished(const RequestResult& result, std::int64_t completed_at) const {
    const std::string_view status = end_status(result.reason);
    json::object out = response(status);
    json::array output;
    output.push_back(item(status));
    out["output"] = std::move(output);
    out["usage"] = usage_object(result.usage);
    out["completed_at"] = completed_at;
    if (status == "incomplete") {
        json::object details;
        details["reason"] = "max_output_tokens";
        out["incomplete_details"] = std::move(details);
    }
    return out;
}

ResponseEvent ResponseEvents::event(std::string_view name, json::object fields) {
    fields["type"] = json::string_view(name.data(), name.size());
    fields["sequence_number"] = sequence_++;
    if (head_.has_stream_id) fields["stream_id"] = head_.stream_id;
    ResponseEvent out;
    out.name = name;
    out.data = json::serialize(fields);
    return out;
}

std::vector<ResponseEvent> ResponseEvents::begin() {
    std::vector<ResponseEvent> out;
    for (const char* name : {"response.created", "response.in_progress"}) {
        json::object fields;
        fields["response"] = response("in_progress");
        out.push_back(event(name, std::move(fields)));
    }
    json::object added;
    added["output_index"] = 0;
    added["item"] = item("in_progress");
    out.push_back(event("response.output_item.added", std::move(added)));
    json::object part_added;
    part_added["item_id"] = head_.item_id;
    part_added["output_index"] = 0;
    part_added["content_index"] = 0;
    part_added["part"] = part(false);
    out.push_back(event("response.content_part.added", std::move(part_added)));
    return out;
}

void ResponseEvents::collect(const Chunk& chunk) {
    text_ += chunk.text;
    if (!head_.logprobs) return;
    for (const TokenLogprob& entry : chunk.logprobs) logprobs_.push_back(entry);
}

// By hand: one a token.
ResponseEvent ResponseEvents::delta(const Chunk& chunk) {
    collect(chunk);
    ResponseEvent out;
    out.name = "response.output_text.delta";
    out.data = "{\"type\":\"response.output_text.delta\",\"sequence_number\":";
    append_json_number(out.data, sequence_++);
    if (head_.has_stream_id) {
        out.data += ",\"stream_id\":";
        append_json_string(out.data, head_.stream_id);
    }
    out.data += ",\"item_id\":";
    append_json_string(out.data, head_.item_id);
    out.data += ",\"output_index\":0,\"content_index\":0,\"delta\":";
    append_json_string(out.data, chunk.text);
    out.data += ",\"logprobs\":";
    out.data += head_.logprobs ? json::serialize(logprob_list(chunk.logprobs, false)) : "[]";
    out.data += '}';
    return out;
}

std::vector<ResponseEvent> ResponseEvents::end(const RequestResult& result, std::int64_t completed_at) {
    std::vector<ResponseEvent> out;
    json::object text_done;
    text_done["item_id"] = head_.item_id;
    text_done["output_index"] = 0;
    text_done["content_index"] = 0;
    text_done["text"] = text_value(text_);
    text_done["logprobs"] = head_.logprobs ? logprob_list(logprobs_, false) : json::array();
    out.push_back(event("response.output_text.done", std::move(text_done)));
    json::object part_done;
    part_done["item_id"] = head_.item_id;
    part_done["output_index"] = 0;
    part_done["content_index"] = 0;
    part_done["part"] = part(true);
    out.push_back(event("response.content_part.done", std::move(part_done)));
    const std::string_view status = end_status(result.reason);
    json::object item_done;
    item_done["output_index"] = 0;
    item_done["item"] = item(status);
    out.push_back(event("response.output_item.done", std::move(item_done)));
    json::object last;
    last["response"] = finished(result, completed_at);
    out.push_back(event(status == "completed" ? "response.completed" : "response.incomplete", std::move(last)));
    return out;
}

std::vector<ResponseEvent> ResponseEvents::empty(std::int64_t completed_at) {
    std::vector<ResponseEvent> out;
    json::object created;
    created["response"] = response("in_progress");
    out.push_back(event("response.created", std::move(created)));
    json::object last = response("completed");
    last["usage"] = usage_object(Usage());
    last["completed_at"] = completed_at;
    json::object completed;
    completed["response"] = std::move(last);
    out.push_back(event("response.completed", std::move(completed)));
    return out;
}

ResponseEvent ResponseEvents::failed(std::string_view code, std::string_view message) {
    json::object response_object = response("failed");
    json::object error;
    const std::string_view name = failure_code(code);
    error["code"] = json::string_view(name.data(), name.size());
    error["message"] = text_value(message);
    response_object["error"] = std::move(error);
    json::object fields;
    fields["response"] = std::move(response_object);
    return event("response.failed", std::move(fields));
}

std::string ResponseEvents::whole(const RequestResult& result, std::int64_t completed_at) const {
    return json::serialize(finished(result, completed_at));
}

std::string response_error_frame(int status, std::string_view code, std::string_view message, std::string_view param,
                                 const std::string* stream_id) {
    json::object error;
    error["type"] = status >= 500 ? "server_error" : status == 429 ? "rate_limit_error" : "invalid_request_error";
    error["code"] = json::string_view(code.data(), code.size());
    error["message"] = text_value(message);
    if (param.empty()) {
        error["param"] = nullptr;
    } else {
        error["param"] = text_value(param);
    }
    json::object out;
    out["type"] = "error";
    out["status"] = status;
    if (stream_id != nullptr) out["stream_id"] = *stream_id;
    out["error"] = std::move(error);
    return json::serialize(out);
}

}  // namespace takt::server
