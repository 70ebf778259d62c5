// UTF-8 decoding, the character classes that pre-tokenizers ask for, case mapping and NFC. Pure functions, any thread.
// Knows nothing of tokens or templates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace takt {

constexpr char32_t kReplacementCharacter = 0xFFFD;

/// One step of a UTF-8 decoder. If `valid` is false, `size` bytes (at least 1) are the longest prefix that could have
/// begun a character: they stand for one U+FFFD, which is what browsers, Python and Rust do too.
struct DecodedCharacter {
    char32_t code_point = kReplacementCharacter;
    uint32_t size = 1;
    bool valid = false;
};

/// Decodes the character at `position` < text.size().
DecodedCharacter decode_utf8(std::string_view text, size_t position);

/// Start of the character that ends at `end` > 0; an ill-formed stretch counts as one of up to four bytes.
size_t previous_character(std::string_view text, size_t end);

/// Number of bytes at the end of `text` that begin a character which more bytes could complete (0 to 3).
size_t incomplete_utf8_suffix(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

bool is_valid_utf8(std::string_view text);

/// Appends `text` to `out`, each ill-formed stretch as one U+FFFD.
void append_valid_utf8(std::string& out, std::string_view text);

/// Number of characters; an ill-formed stretch counts as one.
size_t count_characters(std::string_view text);

enum class CharacterClass : uint8_t {
    other,
    letter,   ///< category L*
    number,   ///< category N*
    space,    ///< White_Space without CR and LF
    newline,  ///< CR or LF
};

CharacterClass character_class(char32_t code_point);

/// What `\w` is in Unicode's regular expressions (UTS 18): Alphabetic, marks, decimal numbers, connectors, joiners.
bool is_word_character(char32_t code_point);

inline bool is_whitespace(CharacterClass c) { return c == CharacterClass::space || c == CharacterClass::newline; }

/// Single-character case mappings; characters without one are returned as they are.
char32_t to_upper(char32_t code_point);
char32_t to_lower(char32_t code_point);

/// Normalisation form C. Ill-formed bytes are copied as they are. Linear but for runs of combining marks, which are
/// sorted.
std::string to_nfc(std::string_view text);

/// False only if `text` certainly is in NFC already (a scan without allocation).
bool may_need_nfc(std::string_view text);

}  // namespace takt
