// UTF-8, character classes and case mapping over the generated tables. Pure; any thread.
#include "model/unicode.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "model/unicode_tables.h"

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

/// Two-stage table of classes: 256 code points a page, equal pages shared. Built once, read-only afterwards.
class ClassTable {
public:
    ClassTable() {
        std::vector<uint8_t> flat(0x110000, static_cast<uint8_t>(CharacterClass::other));
        fill(flat, unicode_tables::letters, CharacterClass::letter);
        fill(flat, unicode_tables::numbers, CharacterClass::number);
        for (const auto& [first, last] : kSpaces) {
            for (uint32_t cp = first; cp <= last; ++cp) flat[cp] = static_cast<uint8_t>(CharacterClass::space);
        }
        flat['\n'] = flat['\r'] = static_cast<uint8_t>(CharacterClass::newline);
        for (size_t page = 0; page < page_of_.size(); ++page) {
            page_of_[page] = static_cast<uint16_t>(intern(flat.data() + page * kPageSize));
        }
        pages_.shrink_to_fit();
    }

    CharacterClass operator()(char32_t cp) const {
        if (cp >= 0x110000) return CharacterClass::other;
        return static_cast<CharacterClass>(pages_[page_of_[cp / kPageSize] * kPageSize + cp % kPageSize]);
    }

private:
    static constexpr size_t kPageSize = 256;
    /// White_Space of Unicode, CR and LF included.
    static constexpr std::array<unicode_tables::Range, 10> kSpaces{{{0x09, 0x0D},
                                                                    {0x20, 0x20},
                                                                    {0x85, 0x85},
                                                                    {0xA0, 0xA0},
                                                                    {0x1680, 0x1680},
                                                                    {0x2000, 0x200A},
                                                                    {0x2028, 0x2029},
                                                                    {0x202F, 0x202F},
                                                                    {0x205F, 0x205F},
                                                                    {0x3000, 0x3000}}};

    static void fill(std::vector<uint8_t>& flat, std::span<const unicode_tables::Range> ranges, CharacterClass c) {
        for (const auto& range : ranges) {
            for (uint32_t cp = range.first; cp <= range.last; ++cp) flat[cp] = static_cast<uint8_t>(c);
        }
    }

    size_t intern(const uint8_t* page) {
        for (size_t known = 0; known * kPageSize < pages_.size(); ++known) {
            if (std::equal(page, page + kPageSize, pages_.data() + known * kPageSize)) return known;
        }
        pages_.insert(pages_.end(), page, page + kPageSize);
        return pages_.size() / kPageSize - 1;
    }

    std::array<uint16_t, 0x110000 / kPageSize> page_of_{};
    std::vector<uint8_t> pages_;
};

char32_t map_case(std::span<const unicode_tables::CaseRange> table, char32_t cp) {
    auto next = std::upper_bound(table.begin(), table.end(), cp,
                                 [](char32_t value, const auto& range) { return value < range.first; });
    if (next == table.begin()) return cp;
    const auto& range = *(next - 1);
    if (cp > range.last || (cp - range.first) % range.stride != 0) return cp;
    return static_cast<char32_t>(static_cast<int32_t>(cp) + range.delta);
}

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

char32_t to_upper(char32_t cp) { return map_case(unicode_tables::to_upper, cp); }
char32_t to_lower(char32_t cp) { return map_case(unicode_tables::to_lower, cp); }

}  // namespace takt
