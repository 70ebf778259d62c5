// Token texts and their index. Immutable; any thread.
#include "model/tokenizer_vocabulary.h"

#include <cstring>
#include <functional>
#include <limits>

#include "model/unicode.h"

namespace takt {
namespace {

/// GPT-2's alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 onwards.
struct ByteAlphabet {
    std::array<char32_t, 256> character{};
    std::array<int16_t, 324> byte{};

    ByteAlphabet() {
        byte.fill(-1);
        char32_t next = 256;
        for (uint32_t b = 0; b < 256; ++b) {
            const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
            character[b] = printable ? b : next++;
            byte[character[b]] = static_cast<int16_t>(b);
        }
    }
};

const ByteAlphabet& byte_alphabet() {
    static const ByteAlphabet alphabet;
    return alphabet;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/// The byte that "<0xXX>" names, or -1.
int named_byte(std::string_view text) {
    if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
    const int high = hex_digit(text[3]);
    const int low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

size_t hash_text(std::string_view text) { return std::hash<std::string_view>{}(text); }

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) append_utf8(out, byte_alphabet().character[static_cast<unsigned char>(c)]);
    return out;
}

bool from_byte_alphabet(std::string_view spelled, std::string& bytes) {
    const ByteAlphabet& alphabet = byte_alphabet();
    bytes.clear();
    for (size_t i = 0; i < spelled.size();) {
        const DecodedCharacter c = decode_utf8(spelled, i);
        if (!c.valid || c.code_point >= alphabet.byte.size() || alphabet.byte[c.code_point] < 0) return false;
        bytes.push_back(static_cast<char>(alphabet.byte[c.code_point]));
        i += c.size;
    }
    return true;
}

Result<Vocabulary> Vocabulary::make(const TokenizerSpec& spec) {
    constexpr size_t kMaxTokens = size_t{1} << 28;
    if (spec.tokens.empty()) return Error{"tokenizer: the vocabulary is empty"};
    if (spec.tokens.size() > kMaxTokens) return Error{"tokenizer: more than 268,435,456 tokens"};
    if (!spec.types.empty() && spec.types.size() != spec.tokens.size()) {
        return Error{"tokenizer: " + std::to_string(spec.types.size()) + " token types for " +
                     std::to_string(spec.tokens.size()) + " tokens"};
    }
    Vocabulary out;
    out.kind_ = spec.kind;
    out.types_ = spec.types;
    out.types_.resize(spec.tokens.size(), TokenType::normal);
    out.ends_.reserve(spec.tokens.size() + 1);
    out.ends_.push_back(0);
    size_t total = 0;
    for (const std::string& token : spec.tokens) total += token.size();
    if (total > std::numeric_limits<uint32_t>::max()) return Error{"tokenizer: token texts of more than 4 GiB"};
    out.arena_.reserve(total);
    std::string bytes;
    for (size_t id = 0; id < spec.tokens.size(); ++id) {
        // In a byte-level vocabulary added tokens are spelled as they are, the others in the byte alphabet.
        const bool spelled = spec.kind == TokenizerKind::bpe_byte_level && out.types_[id] == TokenType::normal;
        out.add_text(spelled && from_byte_alphabet(spec.tokens[id], bytes) ? std::string_view(bytes)
                                                                           : std::string_view(spec.tokens[id]));
    }
    out.build_index();
    out.find_byte_tokens();
    return out;
}

void Vocabulary::add_text(std::string_view text) {
    arena_.append(text);
    ends_.push_back(static_cast<uint32_t>(arena_.size()));
}

void Vocabulary::build_index() {
    size_t capacity = 16;
    while (capacity < types_.size() * 2) capacity *= 2;
    index_.assign(capacity, kNoToken);
    // Normal tokens first, so that an added token with the same text does not hide one.
    for (const bool normal : {true, false}) {
        for (int32_t id = 0; id < size(); ++id) {
            if (!is_mergeable(type(id)) || (type(id) == TokenType::normal) != normal) continue;
            size_t slot = hash_text(text(id)) & (capacity - 1);
            while (index_[slot] != kNoToken && text(index_[slot]) != text(id)) slot = (slot + 1) & (capacity - 1);
            if (index_[slot] == kNoToken) index_[slot] = id;
        }
    }
}

void Vocabulary::find_byte_tokens() {
    byte_tokens_.fill(kNoToken);
    if (kind_ == TokenizerKind::bpe_byte_level) {
        for (uint32_t b = 0; b < 256; ++b) {
            const char c = static_cast<char>(b);
            byte_tokens_[b] = find(std::string_view(&c, 1));
        }
        return;
    }
    for (int32_t id = 0; id < size(); ++id) {
        if (is_control(type(id))) continue;
        const int byte = named_byte(text(id));
        if (byte < 0) continue;
        types_[static_cast<size_t>(id)] = TokenType::byte;
        byte_tokens_[static_cast<size_t>(byte)] = id;
    }
}

int32_t Vocabulary::find(std::string_view wanted) const {
    const size_t mask = index_.size() - 1;
    for (size_t slot = hash_text(wanted) & mask; index_[slot] != kNoToken; slot = (slot + 1) & mask) {
        if (text(index_[slot]) == wanted) return index_[slot];
    }
    return kNoToken;
}

int32_t Vocabulary::find_any(std::string_view spelling) const {
    for (int32_t id = 0; id < size(); ++id) {
        if (text(id) == spelling) return id;
    }
    return kNoToken;
}

void Vocabulary::append_bytes(int32_t id, std::string& out) const {
    const std::string_view spelled = text(id);
    const TokenType kind = type(id);
    if (kind_ == TokenizerKind::bpe_byte_level || is_control(kind)) {
        out.append(spelled);
        return;
    }
    if (kind == TokenType::byte) {
        out.push_back(static_cast<char>(named_byte(spelled)));
        return;
    }
    size_t done = 0;
    for (size_t at = spelled.find(kSpaceMark); at != std::string_view::npos; at = spelled.find(kSpaceMark, done)) {
        out.append(spelled, done, at - done);
        out.push_back(' ');
        done = at + kSpaceMark.size();
    }
    out.append(spelled, done, spelled.size() - done);
}

}  // namespace takt
