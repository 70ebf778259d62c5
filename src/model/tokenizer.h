// Tokenizer: text to token ids and back, for byte-level BPE and SentencePiece-style BPE. Const after make_tokenizer()
// and safe from any thread at once (working memory comes from a pool inside). Knows files only as a TokenizerSpec;
// knows no chat roles, no requests, no devices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/status.h"
#include "model/tokenizer_spec.h"

namespace takt {

/// Whether the begin-of-sequence token goes in front; it never does for a model that wants none.
enum class BosPolicy : uint8_t {
    never,
    unless_present,  ///< not if the text's first token is one already
    always,
};

struct EncodeOptions {
    bool parse_special = false;  ///< control tokens written out in the text become tokens
    BosPolicy bos = BosPolicy::unless_present;
    bool eos = false;  ///< also append the end token, for a model that wants one
};

/// A stretch of a longer text. Only control tokens that lie wholly in `parse_special` stretches are recognised.
struct TextPiece {
    std::string_view text;
    bool parse_special = false;
};

class Tokenizer {
public:
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    /// Token ids of `text`. Any bytes are accepted. n log n in the longest word, linear otherwise.
    [[nodiscard]] std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

    /// The same for the concatenation of `pieces` (options.parse_special is not looked at). Words and merges do not
    /// stop at piece borders, so that trusted and message text give the ids that their whole text gives.
    [[nodiscard]] std::vector<int32_t> encode_pieces(std::span<const TextPiece> pieces,
                                                     const EncodeOptions& options = {}) const;

    /// The whole text of `ids`; ill-formed UTF-8 becomes U+FFFD, unknown ids are skipped.
    [[nodiscard]] std::string decode(std::span<const int32_t> ids, bool skip_special) const;

    /// The bytes of one token, which need not be whole characters. Empty for an id outside the vocabulary.
    [[nodiscard]] std::string token_text(int32_t id) const;
    void append_token_text(int32_t id, std::string& out) const;

    /// Begin, end, padding and other control tokens, which decode(skip_special) and the Detokenizer leave out.
    [[nodiscard]] bool is_special(int32_t id) const;
    [[nodiscard]] bool is_end_of_generation(int32_t id) const;
    /// True for id in [0, vocab_size()).
    [[nodiscard]] bool contains(int32_t id) const;
    /// The token spelled so in the file, control tokens included. A scan of the vocabulary: for set-up.
    [[nodiscard]] std::optional<int32_t> find_token(std::string_view spelling) const;

    [[nodiscard]] int32_t vocab_size() const;
    [[nodiscard]] int32_t bos() const;  ///< -1 where the model has none; likewise below
    [[nodiscard]] int32_t eos() const;
    [[nodiscard]] int32_t pad() const;
    [[nodiscard]] int32_t unknown() const;
    /// decode() drops one space at the start of a whole text (Llama 2's way).
    [[nodiscard]] bool strips_leading_space() const;
    /// Ascending.
    [[nodiscard]] std::span<const int32_t> end_of_generation_ids() const;

    struct Parts;

private:
    friend Result<Tokenizer> make_tokenizer(const TokenizerSpec& spec);
    explicit Tokenizer(std::unique_ptr<const Parts> parts);

    std::unique_ptr<const Parts> parts_;
};

/// Checks the spec (ids in range, tables of equal length, known pre-tokenizer) and builds the tables. About 0.1 s for
/// 150,000 tokens. Errors name what is wrong.
Result<Tokenizer> make_tokenizer(const TokenizerSpec& spec);

}  // namespace takt
