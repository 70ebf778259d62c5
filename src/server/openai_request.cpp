// OpenAI bodies. Pure functions, any thread.
#include "server/openai_request.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "server/field_reader.h"
#include "server/json_text.h"
#include "server/request_fields.h"

namespace takt::server {

namespace json = boost::json;

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxChoices = 128;

Failure body_error(errc code, std::string message, std::string param = {}) {
    Failure out;
    out.code = code;
    out.message = std::move(message);
    out.param = std::move(param);
    return out;
}

// Fields of the OpenAI API that change nothing here: accounting and routing hints of the hosted service.
void accept_hints(FieldReader& fields) {
    for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                             "prompt_cache_retention", "prompt_cache_options", "parallel_tool_calls",
                             "reasoning_effort", "verbosity"}) {
        fields.find(name);
    }
}

// Fields that would change the answer and are not built.
void refuse_present(FieldReader& fields, std::initializer_list<const char*> names) {
    for (const char* name : names) {
        if (fields.find(name) != nullptr) fields.not_available(name);
    }
}

void read_stream(FieldReader& fields, OpenAiRequest& out) {
    out.stream = fields.boolean("stream").value_or(false);
    const json::object* options = fields.object("stream_options");
    if (options == nullptr) return;
    if (!out.stream) fields.fail("stream_options", "allowed only with stream: true");
    FieldReader inner(*options);
    out.include_usage = inner.boolean("include_usage").value_or(false);
    inner.boolean("include_obfuscation");
    inner.refuse_unknown();
    if (!inner.ok()) fields.fail("stream_options", inner.problem());
}

void read_max_tokens(FieldReader& fields, std::string_view name, Request& request) {
    if (const auto count = fields.integer(name, 1, kMaxInt32)) {
        request.max_tokens = static_cast<std::int32_t>(*count);
    }
}

void read_response_format(FieldReader& fields) {
    const json::object* format = fields.object("response_format");
    if (format == nullptr) return;
    const json::value* type = format->if_contains("type");
    if (type == nullptr || !type->is_string() || type->get_string() != "text") {
        fields.fail("response_format", "a type other than text is not available in this version");
    }
}

void read_modalities(FieldReader& fields) {
    const json::array* modalities = fields.array("modalities");
    if (modalities == nullptr) return;
    for (const json::value& modality : *modalities) {
        if (modality != "text") fields.not_available("modalities");
    }
}

void finish(FieldReader& fields, OpenAiRequest& out, Request request, std::string_view model_name) {
    const std::int64_t count = fields.integer("n", 1, kMaxChoices).value_or(1);
    out.num_choices = static_cast<std::size_t>(count);
    read_service(fields, request);
    read_stop(fields, request);
    read_seed(fields, request, true);
    read_sampling(fields, request);
    const std::optional<std::string> model = fields.string("model");
    fields.refuse_unknown();
    if (!fields.ok()) {
        out.error = body_error(errc::bad_request, fields.problem(), fields.param());
        return;
    }
    out.error = check_model(model, model_name);
    if (out.error) return;
    out.requests.push_back(std::move(request));
}

// Each prompt n times, the seeds counted up.
void multiply(OpenAiRequest& out) {
    std::vector<Request> all;
    for (const Request& request : out.requests) {
        for (std::size_t i = 0; i < out.num_choices; ++i) {
            all.push_back(request);
            if (request.sampling.seed) all.back().sampling.seed = *request.sampling.seed + i;
        }
    }
    out.requests = std::move(all);
}

const json::object* body_object(const ParsedJson& parsed, OpenAiRequest& out) {
    if (!parsed.problem.empty()) {
        out.error = body_error(errc::bad_request, parsed.problem);
        return nullptr;
    }
    const json::object* object = parsed.value.if_object();
    if (object == nullptr) {
        out.error = body_error(errc::bad_request, "the body must be one JSON object, found " + shown(parsed.value));
    }
    return object;
}

void read_chat_logprobs(FieldReader& fields, OpenAiRequest& out, Request& request) {
    out.logprobs = fields.boolean("logprobs").value_or(false);
    const std::optional<std::int64_t> top = fields.integer("top_logprobs", 0, 20);
    if (top && !out.logprobs) fields.fail("top_logprobs", "allowed only with logprobs: true");
    if (out.logprobs) request.sampling.logprobs = static_cast<std::int32_t>(top.value_or(0));
}

bool all_of_kind(const json::array& list, json::kind kind) {
    for (const json::value& item : list) {
        if (item.kind() != kind) return false;
    }
    return !list.empty();
}

// A string, a list of token ids, or a list of either: one Request each.
std::vector<Request> read_prompts(FieldReader& fields) {
    std::vector<Request> out;
    const json::value* prompt = fields.find("prompt");
    if (prompt == nullptr) {
        fields.fail("prompt", "missing");
        return out;
    }
    json::array list;
    if (prompt->is_string()) {
        list.push_back(*prompt);
    } else if (prompt->is_array() && (all_of_kind(prompt->get_array(), json::kind::string) ||
                                      all_of_kind(prompt->get_array(), json::kind::array))) {
        list = prompt->get_array();
    } else {
        list.push_back(*prompt);
    }
    if (list.size() > static_cast<std::size_t>(kMaxChoices)) {
        fields.fail("prompt", "found " + std::to_string(list.size()) + " prompts, allowed up to 128");
        return out;
    }
    for (const json::value& item : list) {
        Request request;
        if (item.is_string()) {
            request.prompt = std::string(item.get_string().data(), item.get_string().size());
        } else {
            const json::object one = {{"prompt", item}};
            FieldReader inner(one);
            read_token_ids(inner, "prompt", request);
            if (!inner.ok()) fields.fail_as(inner);
        }
        out.push_back(std::move(request));
    }
    return out;
}

}  // namespace

Failure check_model(const std::optional<std::string>& found, std::string_view model_name) {
    if (!found || *found == model_name) return Failure();
    const std::string name = valid_utf8(std::string_view(*found).substr(0, 80));
    return body_error(errc::not_found, "the model `" + name + "` is not here; loaded: `" + std::string(model_name) + "`",
                      "model");
}

OpenAiRequest parse_chat_body(std::string_view body, std::string_view model_name) {
    OpenAiRequest out;
    const ParsedJson parsed = parse_json(body);
    const json::object* object = body_object(parsed, out);
    if (object == nullptr) return out;
    FieldReader fields(*object);
    Request request;
    read_messages(fields, request);
    if (!request.messages) fields.fail("messages", "missing");
    read_max_tokens(fields, "max_tokens", request);
    read_max_tokens(fields, "max_completion_tokens", request);
    read_template_extras(fields, request);
    read_tool_choice(fields, request);
    read_response_format(fields);
    read_chat_logprobs(fields, out, request);
    read_stream(fields, out);
    accept_hints(fields);
    refuse_present(fields, {"functions", "function_call", "audio", "prediction", "web_search_options", "moderation"});
    read_modalities(fields);
    finish(fields, out, std::move(request), model_name);
    multiply(out);
    return out;
}

OpenAiRequest parse_completion_body(std::string_view body, std::string_view model_name) {
    OpenAiRequest out;
    const ParsedJson parsed = parse_json(body);
    const json::object* object = body_object(parsed, out);
    if (object == nullptr) return out;
    FieldReader fields(*object);
    std::vector<Request> prompts = read_prompts(fields);
    Request request;
    read_max_tokens(fields, "max_tokens", request);
    if (const auto count = fields.integer("logprobs", 0, 20)) {
        request.sampling.logprobs = static_cast<std::int32_t>(*count);
        out.logprobs = true;
    }
    if (fields.boolean("echo").value_or(false)) fields.not_available("echo");
    const std::optional<std::int64_t> best_of = fields.integer("best_of", 1, kMaxChoices);
    if (best_of && *best_of > 1) fields.not_available("best_of");
    refuse_present(fields, {"suffix"});
    read_stream(fields, out);
    accept_hints(fields);
    finish(fields, out, std::move(request), model_name);
    if (out.error) return out;
    const Request shared = std::move(out.requests.front());
    out.requests.clear();
    for (Request& prompt : prompts) {
        Request one = shared;
        one.prompt = std::move(prompt.prompt);
        one.tokens = std::move(prompt.tokens);
        out.requests.push_back(std::move(one));
    }
    if (out.requests.size() * out.num_choices > static_cast<std::size_t>(kMaxChoices)) {
        out.error = body_error(errc::bad_request, "prompt: found " + std::to_string(out.requests.size()) +
                                                      " prompts with n = " + std::to_string(out.num_choices) +
                                                      ", allowed up to 128 answers", "prompt");
        return out;
    }
    multiply(out);
    return out;
}

Failure apply_slo_headers(const HttpRequest& http, Request& request) {
    const std::pair<const char*, std::optional<double>*> headers[] = {{"x-slo-ttft-ms", &request.ttft_ms},
                                                                      {"x-slo-tpot-ms", &request.itl_ms}};
    for (const auto& [name, target] : headers) {
        if (!http.has_header(name)) continue;
        const std::string_view text = trimmed(http.header(name));
        double value = 0;
        const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
        if (!whole || !std::isfinite(value) || value < 1e-3 || value > 1e9) {
            return body_error(errc::bad_request, std::string(name) + ": found " + valid_utf8(text.substr(0, 40)) +
                                                     ", allowed milliseconds from 0.001 to 1000000000", name);
        }
        if (*target) continue;
        *target = value;
        if (target == &request.itl_ms) request.envelope = true;
    }
    return Failure();
}

}  // namespace takt::server
