// Normalisation form C (UAX 15) by utf8proc, in stretches, so that its cost stays linear. Pure; any thread.
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "model/unicode.h"

namespace takt {
namespace {

constexpr uint32_t kCodePoints = 0x110000;
constexpr char32_t kFirstUnstable = 0x300;  // below, every character is NFC and combines with nothing before it
constexpr size_t kLongestDecomposition = 8;
constexpr char32_t kHangulTailBase = 0x11A7;  // stands before the tails: no tail itself, which utf8proc before 2.9 takes it for

constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);

using Stretch = std::vector<utf8proc_int32_t>;

bool is_mark(utf8proc_int32_t cp) { return utf8proc_get_property(cp)->combining_class != 0; }

void append_decomposed(Stretch& out, utf8proc_int32_t cp) {
    std::array<utf8proc_int32_t, kLongestDecomposition> parts{};
    int boundary = 0;
    const auto size = utf8proc_decompose_char(cp, parts.data(), parts.size(), kDecompose, &boundary);
    out.insert(out.end(), parts.begin(), parts.begin() + size);
}

/// Marks between two starters by combining class. utf8proc_decompose() would do it in quadratic time, which a hostile text pays.
void order_marks(Stretch& text) {
    const auto by_class = [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return utf8proc_get_property(a)->combining_class < utf8proc_get_property(b)->combining_class;
    };
    for (auto at = text.begin(); at != text.end();) {
        at = std::find_if(at, text.end(), is_mark);
        const auto end = std::find_if_not(at, text.end(), is_mark);
        std::stable_sort(at, end, by_class);
        at = end;
    }
}

void append_composed(std::string& out, Stretch& text) {
    order_marks(text);
    const auto size = utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()), kCompose);
    for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(out, static_cast<char32_t>(text[static_cast<size_t>(i)]));
    text.clear();
}

/// One bit a code point: it may change under NFC or combine with one before it.
class UnstableCharacters {
public:
    UnstableCharacters() {
        Stretch parts;
        std::string composed;
        std::string self;
        for (uint32_t cp = kFirstUnstable; cp < kCodePoints; ++cp) {
            const auto signed_cp = static_cast<utf8proc_int32_t>(cp);
            if (is_mark(signed_cp)) mark(cp);
            parts.clear();
            append_decomposed(parts, signed_cp);
            if (parts.size() == 1 && parts.front() == signed_cp) continue;
            if (parts.size() > 1) mark(static_cast<uint32_t>(parts.back()));
            composed.clear();
            self.clear();
            append_composed(composed, parts);
            append_utf8(self, cp);
            if (composed != self) mark(cp);
        }
    }

    bool operator()(char32_t cp) const { return ((bits_[cp / 64] >> (cp % 64)) & 1U) != 0; }

private:
    void mark(uint32_t cp) { bits_[cp / 64] |= uint64_t{1} << (cp % 64); }

    std::vector<uint64_t> bits_ = std::vector<uint64_t>(kCodePoints / 64);
};

}  // namespace

bool may_need_nfc(std::string_view text) {
    for (size_t i = 0; i < text.size();) {
        if (static_cast<unsigned char>(text[i]) < 0xCC) {  // lead bytes below U+0300, continuation bytes, ASCII
            ++i;
            continue;
        }
        static const UnstableCharacters unstable;
        const DecodedCharacter c = decode_utf8(text, i);
        if (c.valid && unstable(c.code_point)) return true;
        i += c.size;
    }
    return false;
}

std::string to_nfc(std::string_view text) {
    if (!may_need_nfc(text)) return std::string(text);
    std::string out;
    out.reserve(text.size());
    Stretch stretch;
    for (size_t i = 0; i < text.size();) {
        const DecodedCharacter c = decode_utf8(text, i);
        // These combine with nothing before them.
        const bool begins_stretch = !c.valid || c.code_point < kFirstUnstable || c.code_point == kHangulTailBase;
        if (begins_stretch) append_composed(out, stretch);
        if (c.valid) {
            append_decomposed(stretch, static_cast<utf8proc_int32_t>(c.code_point));
            i += c.size;
        } else {
            out.push_back(text[i++]);
        }
    }
    append_composed(out, stretch);
    return out;
}

}  // namespace takt
