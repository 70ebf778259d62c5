// FieldReader and the JSON parser's bounds. Pure.
#include "server/field_reader.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>

#include "server/json_text.h"

namespace takt::server {

namespace json = boost::json;

namespace {

// Deep enough for any tool schema, far from what a recursive destructor could overflow on.
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kShownBytes = 40;

}  // namespace

ParsedJson parse_json(std::string_view text) {
    ParsedJson out;
    json::parse_options options;
    options.max_depth = kMaxDepth;
    json::error_code ec;
    out.value = json::parse(json::string_view(text.data(), text.size()), ec, {}, options);
    if (ec) {
        out.value = nullptr;
        out.problem = "not valid JSON: " + ec.message();
        if (ec == json::error::too_deep) out.problem = "JSON nested deeper than 64 levels";
    }
    return out;
}

std::string shown(const json::value& value) {
    if (value.is_object()) return "an object";
    if (value.is_array()) return "a list";
    std::string text = json::serialize(value);
    if (text.size() > kShownBytes) text = valid_utf8(text.substr(0, kShownBytes)) + "...";
    return text;
}

std::string shown(double value) {
    std::string text;
    append_json_number(text, value);
    return text;
}

std::optional<std::int64_t> as_integer(const json::value& value) {
    if (value.is_int64()) return value.get_int64();
    if (value.is_uint64()) {
        const std::uint64_t number = value.get_uint64();
        if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
        return static_cast<std::int64_t>(number);
    }
    if (value.is_double()) {
        const double number = value.get_double();
        constexpr double limit = 9007199254740992.0;  // 2^53: beyond it doubles skip integers
        if (std::trunc(number) == number && std::abs(number) <= limit) return static_cast<std::int64_t>(number);
    }
    return std::nullopt;
}

const json::value* FieldReader::find(std::string_view name) {
    known_.emplace(name);
    if (!ok()) return nullptr;
    const json::value* value = object_.if_contains(json::string_view(name.data(), name.size()));
    return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<std::string> FieldReader::string(std::string_view name) {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) {
        fail(name, "found " + shown(*value) + ", allowed a string");
        return std::nullopt;
    }
    const json::string& text = value->get_string();
    return std::string(text.data(), text.size());
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_bool()) {
        fail(name, "found " + shown(*value) + ", allowed true or false");
        return std::nullopt;
    }
    return value->get_bool();
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name, std::int64_t low, std::int64_t high) {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<std::int64_t> number = as_integer(*value);
    if (!number || *number < low || *number > high) {
        fail(name, "found " + shown(*value) + ", allowed a whole number from " + std::to_string(low) + " to " +
                       std::to_string(high));
        return std::nullopt;
    }
    return number;
}

std::optional<double> FieldReader::number(std::string_view name, double low, double high) {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->to_number<double>() : std::nan("");
    if (!(number >= low && number <= high)) {
        fail(name, "found " + shown(*value) + ", allowed a number from " + shown(low) + " to " + shown(high));
        return std::nullopt;
    }
    return number;
}

std::optional<double> FieldReader::number_above(std::string_view name, double low, double high) {
    const json::value* value = find(name);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->to_number<double>() : std::nan("");
    if (!(number > low && number <= high)) {
        fail(name, "found " + shown(*value) + ", allowed a number over " + shown(low) + " up to " + shown(high));
        return std::nullopt;
    }
    return number;
}

const json::array* FieldReader::array(std::string_view name) {
    const json::value* value = find(name);
    if (value == nullptr) return nullptr;
    if (!value->is_array()) fail(name, "found " + shown(*value) + ", allowed a list");
    return value->if_array();
}

const json::object* FieldReader::object(std::string_view name) {
    const json::value* value = find(name);
    if (value == nullptr) return nullptr;
    if (!value->is_object()) fail(name, "found " + shown(*value) + ", allowed an object");
    return value->if_object();
}

void FieldReader::refuse_unknown() {
    if (!ok()) return;
    for (const auto& field : object_) {
        const std::string_view name(field.key().data(), field.key().size());
        if (known_.find(name) == known_.end()) {
            fail(name.substr(0, kShownBytes), "there is no such field here");
            return;
        }
    }
}

void FieldReader::fail(std::string_view name, std::string message) {
    if (!ok()) return;
    param_ = valid_utf8(name);
    problem_ = param_.empty() ? std::move(message) : param_ + ": " + message;
}

void FieldReader::fail_as(const FieldReader& other) {
    if (!ok()) return;
    param_ = other.param_;
    problem_ = other.problem_;
}

void FieldReader::not_available(std::string_view name) { fail(name, "not available in this version"); }

}  // namespace takt::server
