// Responses bodies. Pure functions, any thread; Conversations: one thread.
#include "server/response_request.h"

#include <limits>

#include "server/field_reader.h"
#include "server/request_fields.h"

namespace takt::server {

namespace json = boost::json;

namespace {

constexpr std::size_t kMaxTurns = 256;   // a connection's memory of its own answers,
constexpr std::size_t kMaxTurnBytes = 16 * 1024 * 1024;   // ... and its text: far more than any context
constexpr int kMaxDepth = 1024;          // turns of one conversation; also bounds the recursion of their destructors
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

std::string text_of(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(json::string_view(name.data(), name.size()));
    if (value == nullptr || !value->is_string()) return std::string();
    return std::string(value->get_string().data(), value->get_string().size());
}

void add_item(FieldReader& fields, const json::value& value, json::array& out) {
    const json::object* item = value.if_object();
    if (item == nullptr) {
        fields.fail("input", "found " + shown(value) + ", allowed a string or a list of items");
        return;
    }
    const std::string type = text_of(*item, "type");
    json::object message;
    if (type.empty() || type == "message") {
        const std::string role = text_of(*item, "role");
        const json::value* content = item->if_contains("content");
        std::string problem = "an item must have `role` and `content`";
        std::optional<std::string> text;
        if (!role.empty() && content != nullptr) text = content_text(*content, problem);
        if (!text) {
            fields.fail("input", problem);
            return;
        }
        message["role"] = role == "developer" ? "system" : role;
        message["content"] = *text;
    } else if (type == "function_call") {
        json::object function = {{"name", text_of(*item, "name")}, {"arguments", text_of(*item, "arguments")}};
        json::object call = {{"id", text_of(*item, "call_id")}, {"type", "function"}};
        call["function"] = std::move(function);
        message["role"] = "assistant";
        message["content"] = "";
        message["tool_calls"] = json::array();
        message["tool_calls"].as_array().push_back(std::move(call));
    } else if (type == "function_call_output") {
        message["role"] = "tool";
        message["tool_call_id"] = text_of(*item, "call_id");
        message["content"] = text_of(*item, "output");
    } else {
        fields.fail("input", "an item of type `" + type.substr(0, 40) + "` is not available in this version");
        return;
    }
    out.push_back(std::move(message));
}

void read_input(FieldReader& fields, json::array& out) {
    const json::value* input = fields.find("input");
    if (input == nullptr) {
        fields.fail("input", "missing");
    } else if (input->is_string()) {
        out.push_back(json::object({{"role", "user"}, {"content", input->get_string()}}));
    } else if (input->is_array()) {
        if (input->get_array().empty()) fields.fail("input", "found an empty list, allowed one item or more");
        for (const json::value& item : input->get_array()) add_item(fields, item, out);
    } else {
        fields.fail("input", "found " + shown(*input) + ", allowed a string or a list of items");
    }
}

// The flat tool of this API as the nested one that templates know.
void read_tools(FieldReader& fields, ResponseRequest& out) {
    const json::array* tools = fields.array("tools");
    if (tools == nullptr || tools->empty()) return;
    json::array nested;
    for (const json::value& value : *tools) {
        const json::object* tool = value.if_object();
        if (tool == nullptr || text_of(*tool, "type") != "function") {
            fields.fail("tools", "a tool of another type than function is not available in this version");
            return;
        }
        json::object function = *tool;
        function.erase("type");
        json::object one = {{"type", "function"}};
        one["function"] = std::move(function);
        nested.push_back(std::move(one));
    }
    out.request.tools = std::move(nested);
    out.echo["tools"] = *tools;
}

void read_text_format(FieldReader& fields, ResponseRequest& out) {
    const json::object* text = fields.object("text");
    if (text == nullptr) return;
    out.echo["text"] = *text;
    const json::value* format = text->if_contains("format");
    if (format == nullptr || format->is_null()) return;
    if (!format->is_object() || text_of(format->get_object(), "type") != "text") {
        fields.fail("text", "a format other than text is not available in this version");
    }
}

void read_include(FieldReader& fields, ResponseRequest& out) {
    const json::array* include = fields.array("include");
    if (include == nullptr) return;
    for (const json::value& item : *include) {
        if (item.is_string() && item.get_string() == "message.output_text.logprobs") {
            out.logprobs = true;
        } else if (!(item.is_string() && item.get_string() == "reasoning.encrypted_content")) {
            fields.fail("include", "found " + shown(item) + ", which is not available in this version");
        }
    }
}

void read_limits(FieldReader& fields, ResponseRequest& out) {
    if (const auto count = fields.integer("max_output_tokens", 1, kMaxInt32)) {
        out.request.max_tokens = static_cast<std::int32_t>(*count);
        out.echo["max_output_tokens"] = *count;
    }
    if (const auto top = fields.integer("top_logprobs", 0, 20)) {
        out.logprobs = out.logprobs || *top > 0;
        out.request.sampling.logprobs = static_cast<std::int32_t>(*top);
        out.echo["top_logprobs"] = *top;
    }
    if (out.logprobs && !out.request.sampling.logprobs) out.request.sampling.logprobs = 0;
    if (!out.logprobs) out.request.sampling.logprobs.reset();
    read_sampling(fields, out.request);
    read_seed(fields, out.request, true);
    read_stop(fields, out.request);
    read_service(fields, out.request);
    out.echo["temperature"] = out.request.sampling.temperature;
    out.echo["top_p"] = out.request.sampling.top_p;
}

void accept_hints(FieldReader& fields, ResponseRequest& out) {
    for (const char* name : {"user", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                             "prompt_cache_retention", "prompt_cache_options", "reasoning",
                             "stream_options", "max_tool_calls", "context_management"}) {
        fields.find(name);
    }
    if (const json::object* metadata = fields.object("metadata")) out.echo["metadata"] = *metadata;
    if (const auto parallel = fields.boolean("parallel_tool_calls")) out.echo["parallel_tool_calls"] = *parallel;
    if (fields.boolean("background").value_or(false)) fields.not_available("background");
    const std::optional<std::string> truncation = fields.string("truncation");
    if (truncation && *truncation != "disabled") fields.not_available("truncation");
    for (const char* name : {"conversation", "prompt", "moderation"}) {
        if (fields.find(name) != nullptr) fields.not_available(name);
    }
}

}  // namespace

ResponseRequest parse_response_body(const json::object& object, std::string_view model_name, bool frame) {
    ResponseRequest out;
    FieldReader fields(object);
    if (frame) {
        fields.find("type");
        if (const auto lane = fields.string("stream_id")) {
            out.stream_id = *lane;
            out.has_stream_id = true;
        }
        out.generate = fields.boolean("generate").value_or(true);
    }
    out.stream = fields.boolean("stream").value_or(false);
    read_input(fields, out.input);
    read_include(fields, out);
    read_limits(fields, out);
    read_tools(fields, out);
    read_tool_choice(fields, out.request);
    if (const json::value* choice = fields.find("tool_choice")) out.echo["tool_choice"] = *choice;
    read_text_format(fields, out);
    out.previous_id = fields.string("previous_response_id");
    if (out.previous_id) out.echo["previous_response_id"] = *out.previous_id;
    if (const auto instructions = fields.string("instructions")) out.echo["instructions"] = *instructions;
    accept_hints(fields, out);
    out.request.messages = out.input;
    if (const json::object* arguments = fields.object("chat_template_kwargs")) {
        out.request.chat_template_kwargs = *arguments;
    }
    const std::optional<std::string> model = fields.string("model");
    fields.refuse_unknown();
    if (!fields.ok()) {
        out.error.code = errc::bad_request;
        out.error.message = fields.problem();
        out.error.param = fields.param();
    } else {
        out.error = check_model(model, model_name);
    }
    return out;
}

ResponseRequest parse_response_frame(std::string_view text, std::string_view model_name) {
    const ParsedJson parsed = parse_json(text);
    ResponseRequest out;
    out.error.code = errc::bad_request;
    const json::object* object = parsed.value.if_object();
    if (object == nullptr) {
        out.error.message = parsed.problem.empty() ? "a frame must be one JSON object" : parsed.problem;
        return out;
    }
    const std::string type = text_of(*object, "type");
    if (type == "response.create") return parse_response_body(*object, model_name, true);
    out.stream_id = text_of(*object, "stream_id");
    out.has_stream_id = !out.stream_id.empty();
    out.error.message = type == "response.steer" ? "response.steer is not available in this version" : "type: allowed response.create";
    out.error.param = "type";
    return out;
}

void prepend_turns(ResponseRequest& request, const json::array& turns) {
    json::array all;
    const json::value* instructions = request.echo.if_contains("instructions");
    if (instructions != nullptr) {
        all.push_back(json::object({{"role", "system"}, {"content", *instructions}}));
    }
    for (const json::value& turn : turns) all.push_back(turn);
    for (const json::value& turn : request.input) all.push_back(turn);
    request.request.messages = std::move(all);
}

namespace {

constexpr std::size_t kValueBytes = 32;   // of a value beside its text

/// About what a value takes; the parser has bounded how deep it nests.
std::size_t bytes_of(const json::value& value);

std::size_t bytes_of(const json::array& array) {
    std::size_t bytes = kValueBytes;
    for (const json::value& item : array) bytes += bytes_of(item);
    return bytes;
}

std::size_t bytes_of(const json::value& value) {
    std::size_t bytes = kValueBytes;
    if (const json::string* text = value.if_string()) bytes += text->size();
    if (const json::array* array = value.if_array()) bytes += bytes_of(*array);
    if (const json::object* object = value.if_object()) {
        for (const auto& member : *object) bytes += member.key().size() + bytes_of(member.value());
    }
    return bytes;
}

}  // namespace

std::optional<json::array> Conversations::find(const std::string& id) const {
    const auto found = turns_.find(id);
    if (found == turns_.end() || found->second->depth > kMaxDepth) return std::nullopt;
    std::vector<const Turn*> path;
    for (const Turn* turn = found->second.get(); turn != nullptr; turn = turn->before.get()) path.push_back(turn);
    json::array out;
    for (auto turn = path.rbegin(); turn != path.rend(); ++turn) {
        for (const json::value& message : (*turn)->messages) out.push_back(message);
    }
    return out;
}

void Conversations::add(const std::string& id, const std::optional<std::string>& previous, json::array input,
                        const std::optional<std::string>& answer) {
    auto turn = std::make_shared<Turn>(held_bytes_, bytes_of(input) + (answer ? answer->size() : 0));
    if (previous) {
        const auto before = turns_.find(*previous);
        if (before != turns_.end()) {
            turn->before = before->second;
            turn->depth = before->second->depth + 1;
            turn->chain_bytes = before->second->chain_bytes;
        }
    }
    turn->chain_bytes += turn->bytes;
    if (turn->chain_bytes > kMaxTurnBytes) return;   // it alone, not everybody else's past
    turn->messages = std::move(input);
    if (answer) turn->messages.push_back(json::object({{"role", "assistant"}, {"content", *answer}}));
    turns_[id] = std::move(turn);
    order_.push_back(id);
    while (order_.size() > kMaxTurns || (*held_bytes_ > kMaxTurnBytes && !order_.empty())) {
        turns_.erase(order_.front());
        order_.pop_front();
    }
}

}  // namespace takt::server
