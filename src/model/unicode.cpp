// UTF-8, character classes and case mapping; what Unicode says of a character comes from utf8proc. Pure; any thread.
#include "model/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

namespace takt {
namespace {

uint32_t byte_at(std::string_view text, size_t position) { return static_cast<unsigned char>(text[position]); }

bool is_continuation(uint32_t byte) { return (byte & 0xC0U) == 0x80U; }

/// Bytes a lead byte announces, 0 if no character begins with it.
uint32_t announced_size(uint32_t lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) return 3;
    return lead < 0xF5 ? 4 : 0;
}

/// The second byte is narrower after E0, ED, F0 and F4 (overlong forms, surrogates, beyond U+10FFFF).
bool second_byte_fits(uint32_t lead, uint32_t second) {
    if (!is_continuation(second)) return false;
    if (lead == 0xE0) return second >= 0xA0;
    if (lead == 0xED) return second < 0xA0;
    if (lead == 0xF0) return second >= 0x90;
    if (lead == 0xF4) return second < 0x90;
    return true;
}

CharacterClass class_of(uint32_t cp) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(cp))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return CharacterClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return CharacterClass::number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return CharacterClass::space;
    default: break;
    }
    if (cp == '\n' || cp == '\r') return CharacterClass::newline;
    const bool control_space = (cp >= 0x09 && cp <= 0x0D) || cp == 0x85;  // White_Space, category Cc
    return control_space ? CharacterClass::space : CharacterClass::other;
}

/// The classes of the basic plane, one byte each: scanners ask for every character. Built once, read-only afterwards.
class ClassTable {
public:
    ClassTable() {
        for (uint32_t cp = 0; cp < kSize; ++cp) classes_[cp] = class_of(cp);
    }

    CharacterClass operator()(char32_t cp) const {
        if (cp < kSize) return classes_[cp];
        return cp < 0x110000 ? class_of(cp) : CharacterClass::other;
    }

private:
    static constexpr uint32_t kSize = 0x10000;
    std::array<CharacterClass, kSize> classes_{};
};

}  // namespace

DecodedCharacter decode_utf8(std::string_view text, size_t position) {
    const uint32_t lead = byte_at(text, position);
    if (lead < 0x80) return {lead, 1, true};
    const uint32_t size = announced_size(lead);
    const size_t left = text.size() - position;
    if (size < 2 || left < 2 || !second_byte_fits(lead, byte_at(text, position + 1))) return {};
    uint32_t cp = ((lead & (0x7FU >> size)) << 6) | (byte_at(text, position + 1) & 0x3FU);
    for (uint32_t i = 2; i < size; ++i) {
        if (i >= left || !is_continuation(byte_at(text, position + i))) return {kReplacementCharacter, i, false};
        cp = (cp << 6) | (byte_at(text, position + i) & 0x3FU);
    }
    return {cp, size, true};
}

size_t previous_character(std::string_view text, size_t end) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && is_continuation(byte_at(text, begin))) --begin;
    return begin;
}

size_t incomplete_utf8_suffix(std::string_view text) {
    for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
        const uint32_t byte = byte_at(text, text.size() - back);
        if (is_continuation(byte)) continue;
        if (announced_size(byte) <= back) return 0;
        const bool fits = back < 2 || second_byte_fits(byte, byte_at(text, text.size() - back + 1));
        return fits ? back : 0;
    }
    return 0;
}

void append_utf8(std::string& out, char32_t cp) {
    const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (cp < 0x80) {
        put(cp);
    } else if (cp < 0x800) {
        put(0xC0U | (cp >> 6));
        put(0x80U | (cp & 0x3FU));
    } else if (cp < 0x10000) {
        put(0xE0U | (cp >> 12));
        put(0x80U | ((cp >> 6) & 0x3FU));
        put(0x80U | (cp & 0x3FU));
    } else {
        put(0xF0U | (cp >> 18));
        put(0x80U | ((cp >> 12) & 0x3FU));
        put(0x80U | ((cp >> 6) & 0x3FU));
        put(0x80U | (cp & 0x3FU));
    }
}

bool is_valid_utf8(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        const DecodedCharacter c = decode_utf8(text, i);
        if (!c.valid) return false;
        i += c.size;
    }
    return true;
}

void append_valid_utf8(std::string& out, std::string_view text) {
    size_t good = 0;  // start of the well-formed stretch not yet copied
    for (size_t i = 0; i < text.size();) {
        const DecodedCharacter c = decode_utf8(text, i);
        if (!c.valid) {
            out.append(text, good, i - good);
            append_utf8(out, kReplacementCharacter);
            good = i + c.size;
        }
        i += c.size;
    }
    out.append(text, good, text.size() - good);
}

size_t count_characters(std::string_view text) {
    size_t count = 0;
    for (size_t i = 0; i < text.size(); ++count) i += decode_utf8(text, i).size;
    return count;
}

CharacterClass character_class(char32_t code_point) {
    static const ClassTable table;
    return table(code_point);
}

bool is_word_character(char32_t cp) {
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(cp))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    // The symbols that are Alphabetic: circled, parenthesised and squared Latin letters.
    case UTF8PROC_CATEGORY_SO:
        return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
               (cp >= 0x1F170 && cp <= 0x1F189);
    default: return cp == 0x200C || cp == 0x200D;
    }
}

char32_t to_upper(char32_t cp) {
    return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(cp)));
}

char32_t to_lower(char32_t cp) {
    return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(cp)));
}

}  // namespace takt
