// Hand-written scanners for the pre-tokenizer patterns of the common model families. Each gives the end of the word
// that begins at `position`, exactly as its pattern would match there; tests hold them against PCRE2. Pure; any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace takt {

/// The GPT-2 expression: contractions, then runs of letters, numbers, others (each with one optional space),
/// whitespace.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Llama 3: any case of contractions, any one non-letter before letters, numbers by three, newlines by themselves.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Qwen 2 and 3: the same with every number alone.
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

size_t scan_gpt2(std::string_view text, size_t position);
/// Every number alone first (a number is then the end of the text for the lookahead), then GPT-2: SmolLM2, StarCoder.
size_t scan_digits_gpt2(std::string_view text, size_t position);
size_t scan_llama3(std::string_view text, size_t position);
size_t scan_qwen2(std::string_view text, size_t position);

}  // namespace takt
