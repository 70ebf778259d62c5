// AddedTokens: finds the tokens that are matched as whole texts before any splitting: control tokens (where the caller
// trusts the text) and user-defined ones (everywhere). Leftmost first, then longest. Immutable after add(); any thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizer_spec.h"

namespace takt {

/// Bytes [begin, end) of a text in which control tokens may be recognised.
struct TrustedRange {
    size_t begin;
    size_t end;
};

class AddedTokens {
public:
    struct Match {
        size_t begin;  ///< with the whitespace that the token takes on its left
        size_t end;    ///< and on its right
        size_t next;   ///< behind its text: where the search for the next one begins
        int32_t id;
    };

    /// `trusted_only`: matched only inside a trusted range (control tokens). Empty texts are ignored.
    void add(std::string_view text, int32_t id, bool trusted_only);
    void set_strip(const TokenizerSpec::StripRule& rule) { strip_[rule.id] = rule; }

    [[nodiscard]] bool empty() const { return nodes_.empty(); }

    /// The first match whose text begins at or after `from`, or false; it takes nothing before `taken`, the end of the match before,
    /// whose whitespace may be the next one's text. `trusted` is sorted and disjoint.
    bool find(std::string_view text, size_t from, size_t taken, std::span<const TrustedRange> trusted, Match& match) const;

private:
    struct Node {
        int32_t plain = -1;    ///< token matched everywhere
        int32_t trusted = -1;  ///< token matched in trusted text only
    };

    [[nodiscard]] uint32_t child(uint32_t node, unsigned char byte) const;
    bool match_at(std::string_view text, size_t from, std::span<const TrustedRange> trusted, Match& match) const;
    [[nodiscard]] bool accept(std::string_view text, size_t floor, Match& match) const;

    std::vector<Node> nodes_;                          // nodes_[0] is the root
    std::unordered_map<uint64_t, uint32_t> children_;  // (node << 8 | byte) -> node
    std::bitset<65536> starts_;                        // first two bytes of some token (one-byte tokens: all seconds)
    std::unordered_map<int32_t, TokenizerSpec::StripRule> strip_;
};

}  // namespace takt
