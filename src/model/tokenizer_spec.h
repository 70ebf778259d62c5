// TokenizerSpec: everything a tokenizer is made of, as plain data: the tables, and the options that outlive them. Filled from
// GGUF keys (model_file.h) or from tokenizer.json (tokenizer_json.h), consumed by make_tokenizer().
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/pretokenizer.h"

namespace takt {

enum class TokenizerKind : uint8_t {
    bpe_byte_level,  ///< GPT-2 style: words of bytes, bytes spelled in the 256-character alphabet
    spm_bpe,         ///< SentencePiece style: characters, U+2581 for a space, byte tokens for unknown characters
};

/// What a token is; the numbers are GGUF's.
enum class TokenType : uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

/// Never made of text: only matched whole where the text is trusted.
inline bool is_control(TokenType type) { return type == TokenType::control || type == TokenType::unknown; }
/// May come out of merges.
inline bool is_mergeable(TokenType type) {
    return type == TokenType::normal || type == TokenType::user_defined || type == TokenType::unused;
}

/// Where an SPM tokenizer puts a space before text that has none.
enum class SpacePrefix : uint8_t { never, at_start, after_special };

struct TokenizerOptions {
    TokenizerKind kind = TokenizerKind::bpe_byte_level;
    std::vector<SplitRule> split_rules;
    bool nfc = false;              ///< text is normalised to NFC between added tokens
    bool ignore_merges = false;    ///< a word that is a token as a whole is never merged up
    bool use_unknown = false;      ///< byte-level: a byte without a token becomes `unknown_id` (else it is dropped)
    bool fuse_unknown = false;     ///< consecutive unknown characters make one unknown token
    bool byte_fallback = true;     ///< SPM: unknown characters become byte tokens where the vocabulary has them
    bool prefix_space = false;     ///< byte-level: text not beginning with a space gets one
    SpacePrefix space_prefix = SpacePrefix::never;
    bool prefixes_spaces = true;   ///< text that begins with a space gets the prefix too: all but Metaspace do that
    bool strip_leading_space = false;  ///< decode() drops one space at the start of the whole text
    bool add_bos = false;
    bool add_eos = false;
    int32_t bos_id = -1;
    int32_t eos_id = -1;
    int32_t unknown_id = -1;
    int32_t pad_id = -1;
};

struct TokenizerSpec : TokenizerOptions {
    std::vector<std::string> tokens;  ///< by id, spelled as in the file
    std::vector<TokenType> types;     ///< by id; empty: all normal
    std::vector<float> scores;        ///< by id; SPM without merges takes its order from them

    std::vector<std::string> merge_texts;                  ///< "left right", best first (GGUF)
    std::vector<std::pair<int32_t, int32_t>> merge_ids;    ///< the same by token ids, instead of merge_texts

    /// Added tokens that take the whitespace beside them (id, left, right); few files have any.
    struct StripRule {
        int32_t id;
        bool left;
        bool right;
        bool single_word;
    };
    std::vector<StripRule> strip_rules;
    std::vector<int32_t> end_of_generation_ids;  ///< beside eos_id; well-known names are added by make_tokenizer
};

}  // namespace takt
