// Shared request fields. Pure.
#include "server/request_fields.h"

#include <charconv>
#include <limits>

namespace takt::server {

namespace json = boost::json;

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxStops = 8;
constexpr double kMinMilliseconds = 1e-3, kMaxMilliseconds = 1e9;  // the engine's; eleven days: anything longer is no deadline

// An id as a JSON object's key: digits only, no sign, within int32.
std::optional<std::int32_t> token_key(json::string_view key) {
    std::int32_t id = 0;
    const auto result = std::from_chars(key.data(), key.data() + key.size(), id);
    if (result.ec != std::errc() || result.ptr != key.data() + key.size() || id < 0) return std::nullopt;
    return id;
}

void read_logit_bias(FieldReader& fields, Request& request) {
    const json::object* bias = fields.object("logit_bias");
    if (bias == nullptr) return;
    for (const auto& entry : *bias) {
        const std::optional<std::int32_t> id = token_key(entry.key());
        if (!id) {
            fields.fail("logit_bias", "a key is not a token id");
            return;
        }
        const double value = entry.value().is_number() ? entry.value().to_number<double>() : -1e9;
        if (!(value >= -100 && value <= 100)) {
            fields.fail("logit_bias", "found " + shown(entry.value()) + " for token " + std::to_string(*id) +
                                          ", allowed a number from -100 to 100");
            return;
        }
        request.sampling.logit_bias[*id] = value;
    }
}

// One message as the template gets it; an empty optional after a problem.
std::optional<json::object> read_message(FieldReader& fields, const json::value& value, std::size_t index) {
    const std::string where = "message " + std::to_string(index);
    const json::object* message = value.if_object();
    if (message == nullptr) {
        fields.fail("messages", where + ": found " + shown(value) + ", allowed an object");
        return std::nullopt;
    }
    const json::value* role = message->if_contains("role");
    if (role == nullptr || !role->is_string() || role->get_string().empty()) {
        fields.fail("messages", where + ": `role` must be a string that is not empty");
        return std::nullopt;
    }
    json::object out = *message;
    const json::value* content = message->if_contains("content");
    const bool calls = message->contains("tool_calls");
    if (content == nullptr || content->is_null()) {
        if (!calls) {
            fields.fail("messages", where + ": `content` is missing");
            return std::nullopt;
        }
        out["content"] = "";
        return out;
    }
    std::string problem;
    std::optional<std::string> text = content_text(*content, problem);
    if (!text) {
        fields.fail("messages", where + ": " + problem);
        return std::nullopt;
    }
    out["content"] = *text;
    return out;
}

}  // namespace

void read_sampling(FieldReader& fields, Request& request) {
    SamplingParams& sampling = request.sampling;
    sampling.temperature = fields.number("temperature", 0, 100).value_or(sampling.temperature);
    sampling.top_p = fields.number_above("top_p", 0, 1).value_or(sampling.top_p);
    sampling.top_k = static_cast<std::int32_t>(fields.integer("top_k", -1, kMaxInt32).value_or(sampling.top_k));
    sampling.min_p = fields.number("min_p", 0, 1).value_or(sampling.min_p);
    sampling.repetition_penalty =
        fields.number_above("repetition_penalty", 0, 10).value_or(sampling.repetition_penalty);
    sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(sampling.presence_penalty);
    sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(sampling.frequency_penalty);
    read_logit_bias(fields, request);
    request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
    request.parse_special = fields.boolean("parse_special").value_or(false);
}

void read_seed(FieldReader& fields, Request& request, bool allow_negative) {
    const json::value* value = fields.find("seed");
    if (value == nullptr) return;
    if (value->is_uint64()) {
        request.sampling.seed = value->get_uint64();
        return;
    }
    const std::optional<std::int64_t> number = as_integer(*value);
    if (!number || (*number < 0 && !allow_negative)) {
        fields.fail("seed", "found " + shown(*value) + ", allowed a whole number from " +
                                (allow_negative ? "-9223372036854775808" : "0") + " to 18446744073709551615");
        return;
    }
    request.sampling.seed = static_cast<std::uint64_t>(*number);
}

void read_stop(FieldReader& fields, Request& request) {
    const json::value* value = fields.find("stop");
    if (value == nullptr) return;
    json::array list;
    if (value->is_array()) {
        list = value->get_array();
    } else {
        list.push_back(*value);
    }
    if (list.size() > kMaxStops) {
        fields.fail("stop", "found " + std::to_string(list.size()) + " strings, allowed up to 8");
        return;
    }
    for (const json::value& item : list) {
        if (!item.is_string() || item.get_string().empty()) {
            fields.fail("stop", "found " + shown(item) + ", allowed a string that is not empty, or up to 8");
            return;
        }
        request.stop.emplace_back(item.get_string().c_str(), item.get_string().size());
    }
}

void read_service(FieldReader& fields, Request& request) {
    request.sla_class = fields.string("class").value_or("");
    request.ttft_ms = fields.number("ttft_ms", kMinMilliseconds, kMaxMilliseconds);
    request.itl_ms = fields.number("itl_ms", kMinMilliseconds, kMaxMilliseconds);
    request.deadline_ms = fields.number("deadline_ms", kMinMilliseconds, kMaxMilliseconds);
}

std::optional<std::string> content_text(const json::value& content, std::string& problem) {
    if (content.is_string()) return std::string(content.get_string().data(), content.get_string().size());
    if (!content.is_array()) {
        problem = "`content`: found " + shown(content) + ", allowed a string or a list of parts";
        return std::nullopt;
    }
    std::string text;
    for (const json::value& part : content.get_array()) {
        const json::object* object = part.if_object();
        const json::value* type = object != nullptr ? object->if_contains("type") : nullptr;
        if (type == nullptr || !type->is_string()) {
            problem = "a part of `content` must be an object with a `type`";
            return std::nullopt;
        }
        const json::string& name = type->get_string();
        if (name != "text" && name != "input_text" && name != "output_text") {
            problem = "content part of type " + shown(*type) + ": not available in this version";
            return std::nullopt;
        }
        const json::value* piece = object->if_contains("text");
        if (piece == nullptr || !piece->is_string()) {
            problem = "a text part of `content` must have a string `text`";
            return std::nullopt;
        }
        text.append(piece->get_string().data(), piece->get_string().size());
    }
    return text;
}

void read_messages(FieldReader& fields, Request& request) {
    const json::array* messages = fields.array("messages");
    if (messages == nullptr) return;
    if (messages->empty()) {
        fields.fail("messages", "found an empty list, allowed one message or more");
        return;
    }
    json::array out;
    out.reserve(messages->size());
    for (std::size_t i = 0; i < messages->size(); ++i) {
        std::optional<json::object> message = read_message(fields, (*messages)[i], i);
        if (!message) return;
        out.push_back(std::move(*message));
    }
    request.messages = std::move(out);
}

void read_token_ids(FieldReader& fields, std::string_view name, Request& request) {
    const json::array* ids = fields.array(name);
    if (ids == nullptr) return;
    if (ids->empty()) {
        fields.fail(name, "found an empty list, allowed one token id or more");
        return;
    }
    std::vector<std::int32_t> tokens;
    tokens.reserve(ids->size());
    for (const json::value& item : *ids) {
        const std::optional<std::int64_t> id = as_integer(item);
        if (!id || *id < 0 || *id > kMaxInt32) {
            fields.fail(name, "found " + shown(item) + ", allowed token ids");
            return;
        }
        tokens.push_back(static_cast<std::int32_t>(*id));
    }
    request.tokens = std::move(tokens);
}

void read_template_extras(FieldReader& fields, Request& request) {
    if (const json::array* tools = fields.array("tools")) {
        for (const json::value& tool : *tools) {
            const json::object* object = tool.if_object();
            const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
            if (object == nullptr) fields.fail("tools", "found " + shown(tool) + ", allowed objects");
            if (type != nullptr && *type != "function") {
                fields.fail("tools", "a tool of another type than function is not available in this version");
            }
        }
        if (!request.messages) fields.fail("tools", "allowed only with `messages`");
        if (!tools->empty()) request.tools = *tools;
    }
    if (const json::object* arguments = fields.object("chat_template_kwargs")) {
        if (!request.messages) fields.fail("chat_template_kwargs", "allowed only with `messages`");
        request.chat_template_kwargs = *arguments;
    }
}

void read_tool_choice(FieldReader& fields, Request& request) {
    const json::value* choice = fields.find("tool_choice");
    if (choice == nullptr) return;
    if (choice->is_string() && choice->get_string() == "none") {
        request.tools.reset();
    } else if (!choice->is_string() || choice->get_string() != "auto") {
        fields.fail("tool_choice", "a choice other than none and auto is not available in this version");
    }
}

}  // namespace takt::server
