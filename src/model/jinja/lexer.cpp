// Lexer of the template language. Pure; any thread. See lexer.h.
#include "model/jinja/lexer.h"

#include <array>
#include <cstdlib>
#include <optional>

#include "model/unicode.h"

namespace takt::jinja {
namespace {

bool is_space(char c) { return c == ' ' || (c >= 9 && c <= 13); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}

/// All line ends as \n, one newline at the very end dropped, as Jinja does by default.
std::string normalise_newlines(std::string_view source) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        if (source[i] != '\r') {
            out.push_back(source[i]);
            continue;
        }
        out.push_back('\n');
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
    if (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
}

class Lexer {
public:
    explicit Lexer(std::string_view source) : source_(normalise_newlines(source)), rest_(source_) {}

    Result<std::vector<Token>> run() {
        while (position_ < rest_.size() && error_.empty()) lex_text_and_tag();
        push(TokenKind::end, "");
        if (!error_.empty()) return Error{"line " + std::to_string(line_) + ": " + error_};
        return std::move(tokens_);
    }

private:
    void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
    [[nodiscard]] char at(size_t offset) const {
        return position_ + offset < rest_.size() ? rest_[position_ + offset] : '\0';
    }
    [[nodiscard]] bool looking_at(std::string_view text) const { return rest_.substr(position_).starts_with(text); }

    void advance(size_t count) {
        for (size_t i = 0; i < count; ++i) line_ += rest_[position_ + i] == '\n' ? 1 : 0;
        position_ += count;
    }

    /// Where the next tag opens; npos if none does.
    [[nodiscard]] size_t next_tag(size_t from) const {
        for (size_t i = rest_.find('{', from); i != std::string_view::npos; i = rest_.find('{', i + 1)) {
            const char next = i + 1 < rest_.size() ? rest_[i + 1] : '\0';
            if (next == '{' || next == '%' || next == '#') return i;
        }
        return std::string_view::npos;
    }

    /// Text before a tag, cut as the tag's sign and lstrip_blocks ask.
    [[nodiscard]] std::string_view text_before(size_t tag) const {
        std::string_view text = rest_.substr(position_, tag - position_);
        const char sign = tag + 2 < rest_.size() ? rest_[tag + 2] : '\0';
        if (sign == '-') {
            while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
        } else if (sign != '+' && rest_[tag + 1] != '{') {
            const size_t newline = text.rfind('\n');
            const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
            const bool at_line_start = line_begin > 0 || position_ == 0 || rest_[position_ - 1] == '\n';
            std::string_view indent = text.substr(line_begin);
            while (!indent.empty() && is_space(indent.back())) indent.remove_suffix(1);
            if (at_line_start && indent.empty()) text = text.substr(0, line_begin);
        }
        return text;
    }

    void lex_text_and_tag() {
        const size_t tag = next_tag(position_);
        if (tag == std::string_view::npos) {
            push(TokenKind::text, std::string(rest_.substr(position_)));
            advance(rest_.size() - position_);
            return;
        }
        const std::string_view text = text_before(tag);
        if (!text.empty()) push(TokenKind::text, std::string(text));
        advance(tag - position_);
        const char kind = at(1);
        if (kind == '#') return skip_comment();
        const bool signed_tag = at(2) == '-' || at(2) == '+';
        if (kind == '%' && lex_raw()) return;
        push(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, "");
        advance(signed_tag ? 3 : 2);
        lex_inside(kind == '{' ? "}}" : "%}", kind == '{' ? TokenKind::variable_end : TokenKind::block_end);
    }

    /// Behind the end of a tag: `-` eats all whitespace, a block or comment eats one newline unless marked `+`.
    void skip_after(char sign, bool eats_newline) {
        if (sign == '-') {
            while (position_ < rest_.size() && is_space(at(0))) advance(1);
        } else if (sign != '+' && eats_newline && at(0) == '\n') {
            advance(1);
        }
    }

    void skip_comment() {
        const size_t end = rest_.find("#}", position_ + 2);
        if (end == std::string_view::npos) {
            error_ = "a comment that never ends";
            return;
        }
        const char sign = end > position_ + 2 ? rest_[end - 1] : '\0';
        advance(end + 2 - position_);
        skip_after(sign == '-' || sign == '+' ? sign : '\0', true);
    }

    /// The end of a `{% word %}` tag that begins at `tag`; its two signs. Nothing if another tag stands there.
    struct BareTag {
        size_t end;
        char open_sign;
        char close_sign;
    };
    [[nodiscard]] std::optional<BareTag> bare_tag(size_t tag, std::string_view word) const {
        size_t i = tag + 2;
        BareTag out{0, '\0', '\0'};
        if (i < rest_.size() && (rest_[i] == '-' || rest_[i] == '+')) out.open_sign = rest_[i++];
        while (i < rest_.size() && is_space(rest_[i])) ++i;
        if (!rest_.substr(i).starts_with(word)) return std::nullopt;
        i += word.size();
        while (i < rest_.size() && is_space(rest_[i])) ++i;
        if (i < rest_.size() && (rest_[i] == '-' || rest_[i] == '+')) out.close_sign = rest_[i++];
        if (!rest_.substr(i).starts_with("%}")) return std::nullopt;
        out.end = i + 2;
        return out;
    }

    /// {% raw %} ... {% endraw %}: the text between as it is.
    bool lex_raw() {
        const auto open = bare_tag(position_, "raw");
        if (!open) return false;
        advance(open->end - position_);
        skip_after(open->close_sign, true);
        for (size_t tag = rest_.find("{%", position_); tag != std::string_view::npos; tag = rest_.find("{%", tag + 2)) {
            const auto close = bare_tag(tag, "endraw");
            if (!close) continue;
            const std::string_view text = text_before(tag);
            if (!text.empty()) push(TokenKind::text, std::string(text));
            advance(close->end - position_);
            skip_after(close->close_sign, true);
            return true;
        }
        error_ = "a raw block that never ends";
        return true;
    }

    void lex_inside(std::string_view closer, TokenKind end_kind) {
        std::string brackets;  // those still open: a closer inside them is no end
        while (error_.empty()) {
            while (position_ < rest_.size() && is_space(at(0))) advance(1);
            if (position_ >= rest_.size()) {
                error_ = "a tag that never ends";
                return;
            }
            const bool signed_end = (at(0) == '-' || at(0) == '+') && rest_.substr(position_ + 1).starts_with(closer);
            if (brackets.empty() && (signed_end || looking_at(closer))) {
                const char sign = signed_end ? at(0) : '\0';
                push(end_kind, "");
                advance(closer.size() + (signed_end ? 1 : 0));
                skip_after(sign, end_kind == TokenKind::block_end);
                return;
            }
            lex_token(brackets);
        }
    }

    void lex_token(std::string& brackets) {
        const char c = at(0);
        if (c == '\'' || c == '"') return lex_string(c);
        if (is_digit(c)) return lex_number();
        if (is_name_start(c)) {
            size_t size = 1;
            while (is_name_start(at(size)) || is_digit(at(size))) ++size;
            push(TokenKind::name, std::string(rest_.substr(position_, size)));
            return advance(size);
        }
        for (const std::string_view symbol : {"**", "//", "==", "!=", "<=", ">="}) {
            if (looking_at(symbol)) {
                push(TokenKind::symbol, std::string(symbol));
                return advance(2);
            }
        }
        if (std::string_view("+-*/%~<>=.,:|()[]{};").find(c) == std::string_view::npos) {
            error_ = "unexpected character '" +
                     std::string(rest_.substr(position_, decode_utf8(rest_, position_).size)) + "'";
            return;
        }
        if (c == '(' || c == '[' || c == '{') brackets.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
        if (c == ')' || c == ']' || c == '}') {
            if (brackets.empty() || brackets.back() != c) {
                error_ = std::string("unexpected '") + c + "'";
                return;
            }
            brackets.pop_back();
        }
        push(TokenKind::symbol, std::string(1, c));
        advance(1);
    }

    void lex_number() {
        size_t size = 0;
        bool is_float = false;
        std::string digits;
        const auto take_digits = [&] {
            while (is_digit(at(size)) || (at(size) == '_' && is_digit(at(size + 1)))) {
                if (at(size) != '_') digits.push_back(at(size));
                ++size;
            }
        };
        take_digits();
        if (at(size) == '.' && is_digit(at(size + 1))) {
            is_float = true;
            digits.push_back('.');
            ++size;
            take_digits();
        }
        const size_t sign = at(size + 1) == '+' || at(size + 1) == '-' ? 1 : 0;
        if ((at(size) == 'e' || at(size) == 'E') && is_digit(at(size + 1 + sign))) {
            is_float = true;
            digits.push_back('e');
            if (sign != 0) digits.push_back(at(size + 1));
            size += 1 + sign;
            take_digits();
        }
        if (digits.size() > 300) {
            error_ = "a number of more than 300 digits";
            return;
        }
        push(is_float ? TokenKind::number : TokenKind::integer, std::move(digits));
        advance(size);
    }

    void lex_string(char quote) {
        size_t end = 1;
        while (position_ + end < rest_.size() && at(end) != quote) end += at(end) == '\\' ? 2 : 1;
        if (position_ + end >= rest_.size()) {
            error_ = "a string that never ends";
            return;
        }
        push(TokenKind::string, unescape(rest_.substr(position_ + 1, end - 1)));
        advance(end + 1);
    }

    /// Python's escapes; an unknown one keeps its backslash.
    static std::string unescape(std::string_view text) {
        std::string out;
        for (size_t i = 0; i < text.size(); ++i) {
            if (text[i] != '\\' || i + 1 >= text.size()) {
                out.push_back(text[i]);
                continue;
            }
            const char c = text[++i];
            constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
            if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
                out.push_back(kTo[simple]);
            } else if (c != '\n') {  // a backslash at the end of a line joins the lines
                i += unescape_code(text.substr(i), out);
            }
        }
        return out;
    }

    /// \xHH, \uHHHH, \UHHHHHHHH and \ooo; gives the characters used beyond the first.
    static size_t unescape_code(std::string_view text, std::string& out) {
        const char kind = text[0];
        const size_t num_hex = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
        const bool octal = kind >= '0' && kind <= '7';
        uint32_t code = 0;
        size_t used = octal ? 0 : 1;
        const size_t limit = octal ? 3 : 1 + num_hex;
        while (used < limit && used < text.size()) {
            const char c = text[used];
            const uint32_t digit = is_digit(c)              ? static_cast<uint32_t>(c - '0')
                                   : (c >= 'a' && c <= 'f') ? static_cast<uint32_t>(c - 'a' + 10)
                                   : (c >= 'A' && c <= 'F') ? static_cast<uint32_t>(c - 'A' + 10)
                                                            : 99;
            if (digit >= (octal ? 8U : 16U)) break;
            code = code * (octal ? 8 : 16) + digit;
            ++used;
        }
        const bool complete = octal || (num_hex != 0 && used == limit);
        const bool is_character = code < 0x110000 && (code < 0xD800 || code >= 0xE000);
        if (!complete) {
            out.push_back('\\');
            out.push_back(kind);
            return 0;
        }
        append_utf8(out, is_character ? code : kReplacementCharacter);
        return used - 1;
    }

    std::string source_;
    std::string_view rest_;
    size_t position_ = 0;
    int line_ = 1;
    std::string error_;
    std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace takt::jinja
