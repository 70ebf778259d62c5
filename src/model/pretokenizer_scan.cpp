// Hand-written pre-tokenizer scanners: one pass, no allocation, a table for ASCII. Pure; any thread.
#include "model/pretokenizer_scan.h"

#include <array>
#include <cstdint>

#include "model/unicode.h"

namespace takt {
namespace {

using Class = CharacterClass;

constexpr std::array<Class, 128> make_ascii_classes() {
    std::array<Class, 128> classes{};
    for (size_t c = 0; c < classes.size(); ++c) {
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) classes[c] = Class::letter;
        else if (c >= '0' && c <= '9') classes[c] = Class::number;
        else if (c == '\n' || c == '\r') classes[c] = Class::newline;
        else if (c == ' ' || (c >= 9 && c <= 13)) classes[c] = Class::space;
        else classes[c] = Class::other;
    }
    return classes;
}

constexpr std::array<Class, 128> kAsciiClasses = make_ascii_classes();

struct Seen {
    Class kind;
    uint32_t size;
};

Seen look(std::string_view text, size_t position) {
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte < 0x80) return {kAsciiClasses[byte], 1};
    const DecodedCharacter c = decode_utf8(text, position);
    return {c.valid ? character_class(c.code_point) : Class::other, c.size};
}

/// End of the run of `kind` from `position` on.
size_t run_end(std::string_view text, size_t position, Class kind) {
    while (position < text.size()) {
        const Seen seen = look(text, position);
        if (seen.kind != kind) break;
        position += seen.size;
    }
    return position;
}

char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

/// Length of the contraction at an apostrophe, 0 if there is none.
template <bool kAnyCase>
size_t contraction_size(std::string_view text, size_t position) {
    const auto at = [&](size_t offset) {
        const char c = position + offset < text.size() ? text[position + offset] : '\0';
        return kAnyCase ? lower_ascii(c) : c;
    };
    const char first = at(1);
    const char second = at(2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    if (first == 'l' && second == 'l') return 3;
    // U+017F folds to s.
    if (kAnyCase && first == '\xC5' && second == '\xBF') return 3;
    return 0;
}

/// \s+(?!\S)|\s+ : whitespace up to, not with, its last character, unless the text ends there or it is the only one.
/// `end_at_number`: a number counts as the end of the text.
template <bool kEndAtNumber>
size_t whitespace_end(std::string_view text, size_t position) {
    size_t last = position;  // start of the last whitespace character of the run
    size_t end = position;
    bool at_end = true;
    while (end < text.size()) {
        const Seen seen = look(text, end);
        if (!is_whitespace(seen.kind)) {
            at_end = kEndAtNumber && seen.kind == Class::number;
            break;
        }
        last = end;
        end += seen.size;
    }
    return at_end || last == position ? end : last;
}

template <bool kDigitsAlone>
size_t gpt2_end(std::string_view text, size_t position) {
    if (text[position] == '\'') {
        const size_t size = contraction_size<false>(text, position);
        if (size != 0) return position + size;
    }
    Seen seen = look(text, position);
    size_t body = position;
    if (text[position] == ' ' && position + 1 < text.size()) {
        const Seen next = look(text, position + 1);
        if (!is_whitespace(next.kind) && !(kDigitsAlone && next.kind == Class::number)) {
            seen = next;
            body = position + 1;
        }
    }
    if (is_whitespace(seen.kind)) return whitespace_end<kDigitsAlone>(text, position);
    if (kDigitsAlone && seen.kind == Class::number) return position + seen.size;
    return run_end(text, body + seen.size, seen.kind);
}

/// \s*[\r\n]+|\s+(?!\S)|\s+ : through the last newline of the whitespace run if it has one.
size_t lines_or_whitespace_end(std::string_view text, size_t position) {
    size_t after_newline = 0;
    for (size_t end = position; end < text.size();) {
        const Seen seen = look(text, end);
        if (!is_whitespace(seen.kind)) break;
        end += seen.size;
        if (seen.kind == Class::newline) after_newline = end;
    }
    return after_newline != 0 ? after_newline : whitespace_end<false>(text, position);
}

size_t numbers_end(std::string_view text, size_t position, size_t max_numbers) {
    for (size_t i = 0; i < max_numbers && position < text.size(); ++i) {
        const Seen seen = look(text, position);
        if (seen.kind != Class::number) break;
        position += seen.size;
    }
    return position;
}

template <size_t kMaxNumbers>
size_t llama3_end(std::string_view text, size_t position) {
    if (text[position] == '\'') {
        const size_t size = contraction_size<true>(text, position);
        if (size != 0) return position + size;
    }
    const Seen seen = look(text, position);
    if (seen.kind == Class::letter) return run_end(text, position + seen.size, Class::letter);
    if (seen.kind == Class::number) return numbers_end(text, position, kMaxNumbers);
    if (seen.kind == Class::newline) return lines_or_whitespace_end(text, position);
    const size_t next_position = position + seen.size;
    const bool has_next = next_position < text.size();
    const Seen next = has_next ? look(text, next_position) : Seen{Class::space, 0};
    if (has_next && next.kind == Class::letter) return run_end(text, next_position + next.size, Class::letter);
    const bool spaced_other = text[position] == ' ' && has_next && next.kind == Class::other;
    if (seen.kind == Class::other || spaced_other) {
        return run_end(text, run_end(text, next_position, Class::other), Class::newline);
    }
    return lines_or_whitespace_end(text, position);
}

}  // namespace

size_t scan_gpt2(std::string_view text, size_t position) { return gpt2_end<false>(text, position); }
size_t scan_digits_gpt2(std::string_view text, size_t position) { return gpt2_end<true>(text, position); }
size_t scan_llama3(std::string_view text, size_t position) { return llama3_end<3>(text, position); }
size_t scan_qwen2(std::string_view text, size_t position) { return llama3_end<1>(text, position); }

}  // namespace takt
