// Keys of a JSON object read one by one, with errors that name the key. Pure.
#pragma once

#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/status.h"

namespace takt {

namespace json = boost::json;

/// The one object that `text` is, in `storage`.
inline Result<json::object> parse_object(std::string_view text, json::storage_ptr storage = {}) {
    json::error_code failure;
    json::value root = json::parse(json::string_view(text.data(), text.size()), failure, std::move(storage));
    if (failure) return Error{"not valid JSON: " + failure.message()};
    if (!root.is_object()) return Error{"not a JSON object"};
    return std::move(root.as_object());
}

/// Reads keys of one object and remembers the first error. null counts as absent.
class JsonKeys {
public:
    explicit JsonKeys(const json::object& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

    [[nodiscard]] const json::value* find(const char* key) const {
        const json::value* v = object_.if_contains(key);
        return v == nullptr || v->is_null() ? nullptr : v;
    }
    /// Whether the key is there, be it null.
    [[nodiscard]] bool has(const char* key) const { return object_.contains(key); }
    int32_t integer(const char* key, int64_t min, int64_t max, std::optional<int64_t> otherwise = std::nullopt) {
        const json::value* v = find(key);
        if (v == nullptr && otherwise) return static_cast<int32_t>(*otherwise);
        if (v == nullptr) return fail(key, "is missing"), 0;
        if (!v->is_int64() || v->get_int64() < min || v->get_int64() > max) {
            return fail(key, json::serialize(*v) + " found, " + std::to_string(min) + " to " + std::to_string(max) + " expected"), 0;
        }
        return static_cast<int32_t>(v->get_int64());
    }
    double number(const char* key, double otherwise) {
        const json::value* v = find(key);
        if (v == nullptr) return otherwise;
        if (!v->is_number() || !std::isfinite(v->to_number<double>())) return fail(key, "a number expected"), 0.0;
        return v->to_number<double>();
    }
    bool flag(const char* key, bool otherwise) {
        const json::value* v = find(key);
        if (v == nullptr) return otherwise;
        if (!v->is_bool()) return fail(key, "true or false expected"), false;
        return v->get_bool();
    }
    std::string text(const char* key, std::string otherwise = {}) {
        const json::value* v = find(key);
        if (v == nullptr) return otherwise;
        if (!v->is_string()) return fail(key, "a string expected"), std::string();
        return std::string(v->get_string());
    }
    void fail(const char* key, const std::string& message) {
        if (error.empty()) error = "key \"" + prefix_ + key + "\": " + message;
    }
    std::string error;

private:
    const json::object& object_;
    std::string prefix_;
};

}  // namespace takt
