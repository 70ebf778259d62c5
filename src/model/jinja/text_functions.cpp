// Python's string operations. One render, one thread. See text_functions.h.
#include "model/jinja/text_functions.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include "model/jinja/operations.h"
#include "model/unicode.h"

namespace takt::jinja {
namespace {

template <class Map>
Text mapped(const Text& text, Map map) {
    Text out;
    text.for_each_run([&](std::string_view run, bool from_message) {
        std::string bytes;
        for (size_t i = 0; i < run.size();) {
            const DecodedCharacter c = decode_utf8(run, i);
            if (c.valid) {
                map(c.code_point, bytes);
            } else {
                bytes.append(run, i, c.size);
            }
            i += c.size;
        }
        out.append(bytes, from_message);
    });
    return out;
}

void append_upper(char32_t cp, std::string& out) {
    if (cp == 0xDF) {
        out += "SS";
    } else {
        append_utf8(out, to_upper(cp));
    }
}
void append_lower(char32_t cp, std::string& out) { append_utf8(out, to_lower(cp)); }

bool begins_word_after(char32_t previous, bool python_words) {
    if (python_words) return character_class(previous) != CharacterClass::letter;
    return is_python_space(previous) ||
           (previous < 0x80 && std::string_view("-({[<").find(static_cast<char>(previous)) != std::string_view::npos);
}

std::set<std::string_view> characters_of(std::string_view text) {
    std::set<std::string_view> out;
    for (size_t i = 0; i < text.size();) {
        const uint32_t size = decode_utf8(text, i).size;
        out.insert(text.substr(i, size));
        i += size;
    }
    return out;
}

size_t next_space(const Text& text, size_t from, bool wanted) {
    const std::string& bytes = text.bytes();
    while (from < bytes.size()) {
        const DecodedCharacter c = decode_utf8(bytes, from);
        if ((c.valid && is_python_space(c.code_point)) == wanted) return from;
        from += c.size;
    }
    return from;
}

std::vector<Text> split_words(const Text& text, int64_t limit) {
    std::vector<Text> out;
    size_t begin = next_space(text, 0, false);
    while (begin < text.size()) {
        if (limit >= 0 && static_cast<int64_t>(out.size()) >= limit) {
            out.push_back(stripped(text.slice(begin, text.size()), nullptr, false, true));
            break;
        }
        const size_t end = next_space(text, begin, true);
        out.push_back(text.slice(begin, end));
        begin = next_space(text, end, false);
    }
    return out;
}

std::vector<Text> split_words_from_right(const Text& text, int64_t limit) {
    const std::string& bytes = text.bytes();
    std::vector<Text> out;
    const auto is_space_before = [&](size_t end) {
        return is_python_space(decode_utf8(bytes, previous_character(bytes, end)).code_point);
    };
    size_t end = bytes.size();
    while (true) {
        while (end > 0 && is_space_before(end)) end = previous_character(bytes, end);
        if (end == 0) break;
        if (limit >= 0 && static_cast<int64_t>(out.size()) >= limit) {
            out.push_back(stripped(text.slice(0, end), nullptr, true, false));
            break;
        }
        size_t begin = end;
        while (begin > 0 && !is_space_before(begin)) begin = previous_character(bytes, begin);
        out.push_back(text.slice(begin, end));
        end = begin;
    }
    std::reverse(out.begin(), out.end());
    return out;
}

}  // namespace

bool is_python_space(char32_t cp) { return (cp >= 0x1C && cp <= 0x1F) || is_whitespace(character_class(cp)); }

Text stripped(const Text& text, const std::string* characters, bool left, bool right) {
    const std::string& bytes = text.bytes();
    const std::set<std::string_view> wanted = characters == nullptr ? std::set<std::string_view>() : characters_of(*characters);
    const auto goes = [&](size_t at) {
        const DecodedCharacter c = decode_utf8(bytes, at);
        if (characters == nullptr) return c.valid && is_python_space(c.code_point);
        return wanted.contains(std::string_view(bytes).substr(at, c.size));
    };
    size_t begin = 0;
    size_t end = bytes.size();
    while (left && begin < end && goes(begin)) begin += decode_utf8(bytes, begin).size;
    while (right && end > begin && goes(previous_character(bytes, end))) end = previous_character(bytes, end);
    return text.slice(begin, std::max(begin, end));
}

Text uppercase(const Text& text) { return mapped(text, append_upper); }
Text lowercase(const Text& text) { return mapped(text, append_lower); }

Text capitalised(const Text& text) {
    bool first = true;
    return mapped(text, [&first](char32_t cp, std::string& out) {
        first ? append_upper(cp, out) : append_lower(cp, out);
        first = false;
    });
}

Text titled(const Text& text, bool python_words) {
    char32_t previous = ' ';
    return mapped(text, [&](char32_t cp, std::string& out) {
        begins_word_after(previous, python_words) ? append_upper(cp, out) : append_lower(cp, out);
        previous = cp;
    });
}

size_t find_part(std::string_view text, std::string_view part, size_t from) {
    if (from > text.size()) return std::string_view::npos;
    if (part.empty()) return from;
    const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
    return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last_part(std::string_view text, std::string_view part) {
    const std::string backwards(text.rbegin(), text.rend()), wanted(part.rbegin(), part.rend());
    const size_t at = find_part(backwards, wanted);
    return at == std::string_view::npos ? at : text.size() - at - part.size();
}

Text replaced(Machine& machine, const Text& text, std::string_view from, const Text& to, int64_t limit) {
    const std::string& bytes = text.bytes();
    Text out;
    size_t done = 0;
    int64_t count = 0;
    if (!machine.spend_bytes(bytes.size())) return out;
    if (from.empty()) {
        for (size_t at = 0; at <= bytes.size() && (limit < 0 || count < limit) && machine.spend_bytes(to.size() + 1);
             ++count) {
            out.append(to);
            const size_t end = at < bytes.size() ? at + decode_utf8(bytes, at).size : at + 1;
            if (at < bytes.size()) out.append(text, at, end);
            done = at = end;
        }
        out.append(text, std::min(done, bytes.size()), bytes.size());
        return out;
    }
    for (size_t at = find_part(bytes, from); at != std::string::npos && (limit < 0 || count < limit);
         at = find_part(bytes, from, done), ++count) {
        if (!machine.spend_bytes(to.size() + 1)) return out;
        out.append(text, done, at);
        out.append(to);
        done = at + from.size();
    }
    out.append(text, done, bytes.size());
    return out;
}

std::vector<Text> split(const Text& text, const std::string* separator, int64_t limit) {
    if (separator == nullptr) return split_words(text, limit);
    std::vector<Text> out;
    size_t done = 0;
    for (size_t at = find_part(text.bytes(), *separator);
         at != std::string::npos && (limit < 0 || static_cast<int64_t>(out.size()) < limit);
         at = find_part(text.bytes(), *separator, done)) {
        out.push_back(text.slice(done, at));
        done = at + separator->size();
    }
    out.push_back(text.slice(done, text.size()));
    return out;
}

std::vector<Text> split_from_right(const Text& text, const std::string* separator, int64_t limit) {
    if (separator == nullptr) return split_words_from_right(text, limit);
    const std::string backwards(text.bytes().rbegin(), text.bytes().rend()), wanted(separator->rbegin(), separator->rend());
    std::vector<Text> out;
    size_t done = 0;  // from the end
    for (size_t at = find_part(backwards, wanted);
         at != std::string::npos && (limit < 0 || static_cast<int64_t>(out.size()) < limit);
         at = find_part(backwards, wanted, done)) {
        out.push_back(text.slice(text.size() - at, text.size() - done));
        done = at + separator->size();
    }
    out.push_back(text.slice(0, text.size() - done));
    std::reverse(out.begin(), out.end());
    return out;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
    const std::string& bytes = text.bytes();
    const auto is_end = [](char32_t cp) {
        return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
    };
    std::vector<Text> out;
    size_t begin = 0;
    for (size_t i = 0; i < bytes.size();) {
        const DecodedCharacter c = decode_utf8(bytes, i);
        size_t next = i + c.size;
        if (!is_end(c.code_point)) {
            i = next;
            continue;
        }
        if (c.code_point == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
        out.push_back(text.slice(begin, keep_ends ? next : i));
        begin = i = next;
    }
    if (begin < bytes.size()) out.push_back(text.slice(begin, bytes.size()));
    return out;
}

const Text* text_argument(Machine& machine, const Arguments& arguments, size_t position, std::string_view name) {
    const Value* value = arguments.get(position, name);
    const Text* text = value == nullptr ? nullptr : value->as_text();
    if (text == nullptr) {
        if (value != nullptr && value->is_undefined()) machine.fail_undefined(*value);
        machine.fail_type("argument '" + std::string(name) + "' must be a string");
    }
    return text;
}

const Text* optional_text(Machine& machine, const Arguments& arguments, size_t position, std::string_view name) {
    const Value* value = arguments.get(position, name);
    if (value == nullptr || value->is_none()) return nullptr;
    return text_argument(machine, arguments, position, name);
}

int64_t integer_argument(Machine& machine, const Arguments& arguments, size_t position, std::string_view name,
                         int64_t fallback) {
    const Value* value = arguments.get(position, name);
    if (value == nullptr || value->is_none()) return fallback;
    if (value->is_numeric() && value->as_number() == nullptr) return value->whole();
    machine.fail_type("argument '" + std::string(name) + "' must be an integer");
    return fallback;
}

bool flag_argument(const Arguments& arguments, size_t position, std::string_view name, bool fallback) {
    const Value* value = arguments.get(position, name);
    return value == nullptr ? fallback : is_true(*value);
}

}  // namespace takt::jinja
