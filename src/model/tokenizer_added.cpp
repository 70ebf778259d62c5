// A byte trie over the added tokens. Immutable after set-up; any thread.
#include "model/tokenizer_added.h"

#include <algorithm>

#include "model/unicode.h"

namespace takt {
namespace {

size_t start_key(unsigned char first, unsigned char second) { return size_t{first} * 256 + second; }

bool is_space_at(std::string_view text, size_t position) {
    return is_whitespace(character_class(decode_utf8(text, position).code_point));
}

bool is_word_at(std::string_view text, size_t position) {
    const DecodedCharacter c = decode_utf8(text, position);
    return c.valid && is_word_character(c.code_point);
}

bool is_trusted(std::span<const TrustedRange> trusted, size_t begin, size_t end) {
    const auto after = std::upper_bound(trusted.begin(), trusted.end(), begin,
                                        [](size_t value, const TrustedRange& range) { return value < range.begin; });
    return after != trusted.begin() && end <= (after - 1)->end;
}

}  // namespace

void AddedTokens::add(std::string_view text, int32_t id, bool trusted_only) {
    if (text.empty()) return;
    if (nodes_.empty()) nodes_.emplace_back();
    uint32_t node = 0;
    for (const char c : text) {
        const uint64_t key = (uint64_t{node} << 8) | static_cast<unsigned char>(c);
        const auto [entry, is_new] = children_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
        if (is_new) nodes_.emplace_back();
        node = entry->second;
    }
    int32_t& slot = trusted_only ? nodes_[node].trusted : nodes_[node].plain;
    if (slot < 0) slot = id;
    const auto first = static_cast<unsigned char>(text[0]);
    if (text.size() > 1) {
        starts_.set(start_key(first, static_cast<unsigned char>(text[1])));
    } else {
        for (uint32_t second = 0; second < 256; ++second) starts_.set(start_key(first, static_cast<uint8_t>(second)));
    }
}

uint32_t AddedTokens::child(uint32_t node, unsigned char byte) const {
    const auto found = children_.find((uint64_t{node} << 8) | byte);
    return found == children_.end() ? 0 : found->second;
}

bool AddedTokens::match_at(std::string_view text, size_t from, std::span<const TrustedRange> trusted,
                           Match& match) const {
    bool found = false;
    uint32_t node = 0;
    for (size_t i = from; i < text.size(); ++i) {
        node = child(node, static_cast<unsigned char>(text[i]));
        if (node == 0) break;
        const Node& here = nodes_[node];
        if (here.plain >= 0) {
            match = {from, i + 1, i + 1, here.plain};
            found = true;
        } else if (here.trusted >= 0 && is_trusted(trusted, from, i + 1)) {
            match = {from, i + 1, i + 1, here.trusted};
            found = true;
        }
    }
    return found;
}

bool AddedTokens::accept(std::string_view text, size_t floor, Match& match) const {
    const auto rule = strip_.find(match.id);
    if (rule == strip_.end()) return true;
    if (rule->second.single_word) {
        const bool before = match.begin > 0 && is_word_at(text, previous_character(text, match.begin));
        if (before || (match.end < text.size() && is_word_at(text, match.end))) return false;
    }
    if (rule->second.left) {
        while (match.begin > floor && is_space_at(text, previous_character(text, match.begin))) {
            match.begin = previous_character(text, match.begin);
        }
    }
    if (rule->second.right) {
        while (match.end < text.size() && is_space_at(text, match.end)) match.end += decode_utf8(text, match.end).size;
    }
    return true;
}

bool AddedTokens::find(std::string_view text, size_t from, size_t taken, std::span<const TrustedRange> trusted,
                       Match& match) const {
    if (nodes_.empty()) return false;
    for (size_t i = from; i < text.size(); ++i) {
        const auto first = static_cast<unsigned char>(text[i]);
        const auto second = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : uint8_t{0};
        if (!starts_.test(start_key(first, second))) continue;
        if (!match_at(text, i, trusted, match)) continue;
        if (accept(text, taken, match) && match.end > taken) {
            match.begin = std::max(match.begin, taken);
            return true;
        }
        i = match.next - 1;   // nothing begins inside a match, be it taken or not
    }
    return false;
}

}  // namespace takt
