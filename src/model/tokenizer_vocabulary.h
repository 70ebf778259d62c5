// Vocabulary: token texts by id in one arena, and the way back from text to id. Immutable after make(); any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/status.h"
#include "model/tokenizer_spec.h"

namespace takt {

constexpr int32_t kNoToken = -1;
/// U+2581, which stands for a space in SentencePiece vocabularies.
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class Vocabulary {
public:
    /// Refuses an empty vocabulary, tables of other lengths than `tokens`, and texts of over 4 GiB.
    static Result<Vocabulary> make(const TokenizerSpec& spec);

    [[nodiscard]] int32_t size() const { return static_cast<int32_t>(types_.size()); }
    [[nodiscard]] bool contains(int32_t id) const { return id >= 0 && id < size(); }
    [[nodiscard]] TokenType type(int32_t id) const { return types_[static_cast<size_t>(id)]; }

    /// The text that encoding matches: raw bytes for a byte-level vocabulary, with U+2581 for SPM.
    [[nodiscard]] std::string_view text(int32_t id) const {
        const auto index = static_cast<size_t>(id);
        return std::string_view(arena_).substr(ends_[index], ends_[index + 1] - ends_[index]);
    }

    /// Appends the bytes that the token stands for in text.
    void append_bytes(int32_t id, std::string& out) const;

    /// The mergeable token (normal, user-defined, unused) with this text, or kNoToken.
    [[nodiscard]] int32_t find(std::string_view text) const;
    /// The token of any type that is spelled so in the file, or kNoToken. Slow (a scan); for set-up only.
    [[nodiscard]] int32_t find_any(std::string_view spelling) const;

    /// Byte-level: the token of one byte. SPM: the byte token <0xXX>. kNoToken where the vocabulary has none.
    [[nodiscard]] int32_t byte_token(unsigned char byte) const { return byte_tokens_[byte]; }

private:
    void add_text(std::string_view text);
    void build_index();
    void find_byte_tokens();

    TokenizerKind kind_ = TokenizerKind::bpe_byte_level;
    std::vector<TokenType> types_;
    std::string arena_;
    std::vector<uint32_t> ends_;   // ends_[i], ends_[i + 1]: bounds of token i in the arena
    std::vector<int32_t> index_;   // open addressing, kNoToken where empty; size a power of two
    std::array<int32_t, 256> byte_tokens_{};
};

/// Spells bytes in GPT-2's 256-character alphabet and back. `decode` gives false if a character is not in the alphabet.
std::string to_byte_alphabet(std::string_view bytes);
bool from_byte_alphabet(std::string_view spelled, std::string& bytes);

}  // namespace takt
