// Small vocabularies for the tokenizer and streaming tests. Test code only.
#pragma once

#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "model/tokenizer_vocabulary.h"

namespace takt {

/// Byte-level spec: ids 0 to 255 are the bytes in order, then `words` (raw bytes, reachable by no merge), then the
/// special tokens <|begin|> and <|end|> and the user-defined <tool>.
inline TokenizerSpec byte_spec(const std::vector<std::string>& words = {}) {
    TokenizerSpec spec;
    for (int b = 0; b < 256; ++b) spec.tokens.push_back(to_byte_alphabet(std::string(1, static_cast<char>(b))));
    for (const std::string& word : words) spec.tokens.push_back(to_byte_alphabet(word));
    spec.types.assign(spec.tokens.size(), TokenType::normal);
    spec.bos_id = static_cast<int32_t>(spec.tokens.size());
    spec.eos_id = spec.bos_id + 1;
    for (const char* special : {"<|begin|>", "<|end|>"}) spec.tokens.emplace_back(special);
    spec.types.resize(spec.tokens.size(), TokenType::control);
    spec.tokens.emplace_back("<tool>");
    spec.types.push_back(TokenType::user_defined);
    spec.split_rules = split_rules_by_name("gpt-2").value();
    return spec;
}

inline Tokenizer build(const TokenizerSpec& spec) {
    Result<Tokenizer> made = make_tokenizer(spec);
    if (!made) FAIL(made.error());
    return std::move(made).value();
}

inline Tokenizer byte_tokenizer() { return build(byte_spec()); }
inline int32_t byte_id(char c) { return static_cast<unsigned char>(c); }

/// Tokens are exactly `words` and <|end|>; for decoding only.
inline Tokenizer word_tokenizer(const std::vector<std::string>& words) {
    TokenizerSpec spec;
    for (const std::string& word : words) spec.tokens.push_back(to_byte_alphabet(word));
    spec.types.assign(spec.tokens.size(), TokenType::normal);
    spec.tokens.emplace_back("<|end|>");
    spec.types.push_back(TokenType::control);
    return build(spec);
}

}  // namespace takt
