// JSON text by hand. Pure functions, any thread.
#include "server/json_text.h"

#include <charconv>
#include <cmath>

namespace takt::server {

namespace {

bool is_continuation(std::string_view text, std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

void append_escape(std::string& out, unsigned char c) {
    switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
    }
    constexpr char digits[] = "0123456789abcdef";
    out += "\\u00";
    out += digits[c >> 4];
    out += digits[c & 15];
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x80) return 1;
    if (c < 0xC2 || c > 0xF4 || !is_continuation(text, at + 1)) return 0;
    if (c < 0xE0) return 2;
    const auto second = static_cast<unsigned char>(text[at + 1]);
    if (!is_continuation(text, at + 2)) return 0;
    if (c < 0xF0) {
        const bool overlong = c == 0xE0 && second < 0xA0;
        const bool surrogate = c == 0xED && second > 0x9F;
        return overlong || surrogate ? 0 : 3;
    }
    const bool outside = (c == 0xF0 && second < 0x90) || (c == 0xF4 && second > 0x8F);
    return outside || !is_continuation(text, at + 3) ? 0 : 4;
}

std::size_t num_utf8_characters(std::string_view text) {
    std::size_t count = 0;
    for (std::size_t at = 0; at < text.size(); ++at) count += is_continuation(text, at) ? 0 : 1;
    return count;
}

void append_json_string(std::string& out, std::string_view text) {
    out += '"';
    std::size_t begin = 0;
    std::size_t at = 0;
    while (at < text.size()) {
        const auto c = static_cast<unsigned char>(text[at]);
        if (c >= 0x20 && c < 0x7F && c != '"' && c != '\\') {
            ++at;
            continue;
        }
        const std::size_t length = c < 0x80 ? 0 : utf8_length(text, at);
        if (length > 0) {
            at += length;
            continue;
        }
        out.append(text, begin, at - begin);
        if (c < 0x80) {
            append_escape(out, c);
        } else {
            out += kReplacement;
        }
        begin = ++at;
    }
    out.append(text, begin, at - begin);
    out += '"';
}

void append_json_number(std::string& out, double value) {
    if (std::isnan(value)) {
        out += "null";
        return;
    }
    if (std::isinf(value)) value = value < 0 ? -9999 : 9999;
    char buffer[32];
    const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
    out.append(buffer, result.ptr);
}

void append_json_number(std::string& out, std::int64_t value) {
    char buffer[24];
    const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
    out.append(buffer, result.ptr);
}

void append_json_number(std::string& out, std::uint64_t value) {
    char buffer[24];
    const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
    out.append(buffer, result.ptr);
}

std::string valid_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = utf8_length(text, at);
        if (length == 0) {
            out += kReplacement;
            ++at;
        } else {
            out.append(text, at, length);
            at += length;
        }
    }
    return out;
}

}  // namespace takt::server
