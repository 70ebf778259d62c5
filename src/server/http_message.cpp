// Header look-up and the small text forms of HTTP. Pure.
#include "server/http_message.h"

#include <algorithm>
#include <cstdint>

namespace takt::server {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int hex_value(char c) {
    c = lower(c);
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

int base64url_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '-') return 62;
    if (c == '_') return 63;
    return -1;
}

}  // namespace

bool equal_without_case(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (lower(a[i]) != lower(b[i])) return false;
    }
    return true;
}

std::string_view HttpRequest::header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
        if (equal_without_case(key, name)) return value;
    }
    return {};
}

bool HttpRequest::has_header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
        if (equal_without_case(key, name)) return true;
    }
    return false;
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

std::vector<std::string> header_list(std::string_view value) {
    std::vector<std::string> out;
    while (!value.empty()) {
        const std::size_t comma = value.find(',');
        const std::string_view part = trimmed(value.substr(0, comma));
        if (!part.empty()) out.emplace_back(part);
        if (comma == std::string_view::npos) break;
        value.remove_prefix(comma + 1);
    }
    return out;
}

std::string base64url_decoded(std::string_view text, bool& ok) {
    while (!text.empty() && text.back() == '=') text.remove_suffix(1);
    std::string out;
    std::uint32_t bits = 0;
    int num_bits = 0;
    ok = text.size() % 4 != 1;
    for (const char c : text) {
        const int value = base64url_value(c);
        if (value < 0) {
            ok = false;
            return {};
        }
        bits = (bits << 6) | static_cast<std::uint32_t>(value);
        num_bits += 6;
        if (num_bits >= 8) {
            num_bits -= 8;
            out += static_cast<char>((bits >> num_bits) & 0xFF);
        }
    }
    return out;
}

std::string percent_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '%' && i + 2 < text.size()) {
            const int high = hex_value(text[i + 1]);
            const int low = hex_value(text[i + 2]);
            if (high >= 0 && low >= 0) {
                out += static_cast<char>(high * 16 + low);
                i += 2;
                continue;
            }
        }
        out += text[i];
    }
    return out;
}

RequestTarget parse_target(std::string_view target) {
    RequestTarget out;
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (!equal_without_case(target.substr(0, scheme.size()), scheme)) continue;
        target.remove_prefix(scheme.size());
        const std::size_t end = std::min(target.find_first_of("/?"), target.size());
        out.authority = std::string(target.substr(0, end));
        target.remove_prefix(end);
        break;
    }
    const std::size_t question = std::min(target.find('?'), target.size());
    out.path = percent_decoded(target.substr(0, question));
    if (!out.authority.empty() && out.path.empty()) out.path = "/";
    if (question < target.size()) out.query = std::string(target.substr(question + 1));
    return out;
}

}  // namespace takt::server
