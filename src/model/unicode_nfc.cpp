// Normalisation form C (UAX 15): canonical decomposition, ordering of marks, composition. Pure; any thread.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "model/unicode.h"
#include "model/unicode_tables.h"

namespace takt {
namespace {

constexpr uint32_t kHangulBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161, kTailBase = 0x11A7;
constexpr uint32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28, kNumSyllables = kNumLeads * kNumVowels * kNumTails;
constexpr char32_t kFirstUnstable = 0x300;  // below, every character is NFC and combines with nothing before it

/// Ill-formed bytes travel through the normaliser as code points past Unicode, so that they come out unchanged.
constexpr char32_t kRawByte = 0x110000;

struct Mark {
    char32_t code_point;
    uint8_t combining_class;
};

/// The tables as hash maps, built once and read-only afterwards.
class CanonicalData {
public:
    CanonicalData() {
        for (const auto part : {unicode_tables::decompositions_low, unicode_tables::decompositions_high}) {
            for (const auto& row : part) {
                decompositions_.emplace(row.composed, &row);
                if (row.primary != 0 && row.second != 0) {
                    compositions_.emplace(key(row.first, row.second), row.composed);
                    mark_unstable(row.second);
                }
                if (row.primary == 0) mark_unstable(row.composed);
            }
        }
        for (const auto& range : unicode_tables::combining_classes) {
            for (uint32_t cp = range.first; cp <= range.last; ++cp) {
                classes_.emplace(cp, static_cast<uint8_t>(range.combining_class));
                mark_unstable(cp);
            }
        }
        for (uint32_t cp = kVowelBase; cp < kTailBase + kNumTails; ++cp) mark_unstable(cp);
    }

    const unicode_tables::Decomposition* decomposition(char32_t cp) const {
        const auto found = decompositions_.find(cp);
        return found == decompositions_.end() ? nullptr : found->second;
    }

    uint8_t combining_class(char32_t cp) const {
        if (cp < kFirstUnstable) return 0;
        const auto found = classes_.find(cp);
        return found == classes_.end() ? uint8_t{0} : found->second;
    }

    /// The composed character, or 0.
    char32_t compose(char32_t first, char32_t second) const {
        const auto found = compositions_.find(key(first, second));
        return found == compositions_.end() ? char32_t{0} : found->second;
    }

    /// True if the character may change under NFC or combine with one before it.
    bool unstable(char32_t cp) const { return ((unstable_[cp / 64] >> (cp % 64)) & 1U) != 0; }

private:
    void mark_unstable(uint32_t cp) { unstable_[cp / 64] |= uint64_t{1} << (cp % 64); }

    static uint64_t key(char32_t first, char32_t second) { return (uint64_t{first} << 32) | second; }

    std::unordered_map<uint32_t, const unicode_tables::Decomposition*> decompositions_;
    std::unordered_map<uint64_t, uint32_t> compositions_;
    std::unordered_map<uint32_t, uint8_t> classes_;
    std::vector<uint64_t> unstable_ = std::vector<uint64_t>(0x110000 / 64);  // one bit a code point
};

const CanonicalData& canonical_data() {
    static const CanonicalData data;
    return data;
}

void decompose(const CanonicalData& data, char32_t cp, std::vector<Mark>& out) {
    if (cp >= kHangulBase && cp < kHangulBase + kNumSyllables) {
        const uint32_t index = cp - kHangulBase;
        out.push_back({kLeadBase + index / (kNumVowels * kNumTails), 0});
        out.push_back({kVowelBase + index / kNumTails % kNumVowels, 0});
        if (index % kNumTails != 0) out.push_back({kTailBase + index % kNumTails, 0});
        return;
    }
    const auto* row = data.decomposition(cp);
    if (row == nullptr) {
        out.push_back({cp, data.combining_class(cp)});
        return;
    }
    decompose(data, row->first, out);  // tables nest at most four deep
    if (row->second != 0) decompose(data, row->second, out);
}

void order_marks(std::vector<Mark>& text) {
    const auto by_class = [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; };
    for (size_t i = 0; i < text.size();) {
        if (text[i].combining_class == 0) {
            ++i;
            continue;
        }
        size_t end = i;
        while (end < text.size() && text[end].combining_class != 0) ++end;
        const auto at = [&text](size_t index) { return text.begin() + static_cast<std::ptrdiff_t>(index); };
        std::stable_sort(at(i), at(end), by_class);
        i = end;
    }
}

char32_t compose_pair(const CanonicalData& data, char32_t first, char32_t second) {
    if (first >= kLeadBase && first < kLeadBase + kNumLeads && second >= kVowelBase &&
        second < kVowelBase + kNumVowels) {
        return kHangulBase + ((first - kLeadBase) * kNumVowels + (second - kVowelBase)) * kNumTails;
    }
    if (first >= kHangulBase && first < kHangulBase + kNumSyllables && (first - kHangulBase) % kNumTails == 0 &&
        second > kTailBase && second < kTailBase + kNumTails) {
        return first + (second - kTailBase);
    }
    return data.compose(first, second);
}

/// Composes in place: each mark joins the last starter unless a mark of the same or a higher class lies between.
void compose(const CanonicalData& data, std::vector<Mark>& text) {
    constexpr size_t kNone = static_cast<size_t>(-1);
    size_t out = 0;
    size_t starter = kNone;
    int last_class = -1;  // of what follows the starter; -1: nothing does
    for (const Mark& mark : text) {
        if (starter != kNone && last_class < static_cast<int>(mark.combining_class)) {
            const char32_t joined = compose_pair(data, text[starter].code_point, mark.code_point);
            if (joined != 0) {
                text[starter].code_point = joined;
                continue;
            }
        }
        if (mark.combining_class == 0) {
            starter = out;
            last_class = -1;
        } else {
            last_class = mark.combining_class;
        }
        text[out++] = mark;
    }
    text.resize(out);
}

void append_marks(std::string& out, const std::vector<Mark>& text) {
    for (const Mark& mark : text) {
        if (mark.code_point >= kRawByte) {
            out.push_back(static_cast<char>(mark.code_point - kRawByte));
        } else {
            append_utf8(out, mark.code_point);
        }
    }
}

}  // namespace

bool may_need_nfc(std::string_view text) {
    const CanonicalData* data = nullptr;
    for (size_t i = 0; i < text.size();) {
        if (static_cast<unsigned char>(text[i]) < 0xCC) {  // lead bytes below U+0300, continuation bytes, ASCII
            ++i;
            continue;
        }
        const DecodedCharacter c = decode_utf8(text, i);
        if (data == nullptr) data = &canonical_data();
        if (c.valid && data->unstable(c.code_point)) return true;
        i += c.size;
    }
    return false;
}

std::string to_nfc(std::string_view text) {
    if (!may_need_nfc(text)) return std::string(text);
    const CanonicalData& data = canonical_data();
    std::string out;
    out.reserve(text.size());
    std::vector<Mark> marks;
    for (size_t i = 0; i < text.size();) {
        // A stretch ends before a character below U+0300: it never combines with what is before it.
        marks.clear();
        do {
            const DecodedCharacter c = decode_utf8(text, i);
            if (c.valid) {
                decompose(data, c.code_point, marks);
                i += c.size;
            } else {
                marks.push_back({kRawByte + static_cast<unsigned char>(text[i]), 0});
                ++i;
            }
        } while (i < text.size() && static_cast<unsigned char>(text[i]) >= 0xCC);
        order_marks(marks);
        compose(data, marks);
        append_marks(out, marks);
    }
    return out;
}

}  // namespace takt
