// UTF-8 decoding, character classes, case and normalisation form C against values of the Unicode standard's own tables.
#include "catch.h"

#include <random>
#include <string>

#include "model/unicode.h"

using namespace takt;

namespace {

std::string utf8(const std::u32string& text) {
    std::string out;
    for (const char32_t c : text) append_utf8(out, c);
    return out;
}

}  // namespace

TEST_CASE("ill-formed bytes are cut as browsers do") {
    const std::string text = "\xE2\x82" "A" "\xF0\x9F\x98\x80" "\xC0\xAF";
    std::string out;
    append_valid_utf8(out, text);
    CHECK(out == utf8(U"\uFFFDA\U0001F600\uFFFD\uFFFD"));
    CHECK(count_characters(text) == 5);
    CHECK_FALSE(is_valid_utf8(text));
    CHECK(incomplete_utf8_suffix("a\xF0\x9F\x98") == 3);
    CHECK(incomplete_utf8_suffix("a\xED\xA0") == 0);  // a surrogate: more bytes do not help
}

TEST_CASE("classes of characters") {
    CHECK(character_class(U'a') == CharacterClass::letter);
    CHECK(character_class(U'\u4E2D') == CharacterClass::letter);
    CHECK(character_class(U'\U00020000') == CharacterClass::letter);
    CHECK(character_class(U'\u0669') == CharacterClass::number);
    CHECK(character_class(U'\u00BD') == CharacterClass::number);
    CHECK(character_class(U'\t') == CharacterClass::space);
    CHECK(character_class(U'\u0085') == CharacterClass::space);
    CHECK(character_class(U'\u3000') == CharacterClass::space);
    CHECK(character_class(U'\n') == CharacterClass::newline);
    CHECK(character_class(U'\u200B') == CharacterClass::other);
    CHECK(character_class(U'\u0301') == CharacterClass::other);
    CHECK(character_class(char32_t{0x110000}) == CharacterClass::other);
}

TEST_CASE("case of single characters") {
    CHECK(to_upper(U'\u00E9') == U'\u00C9');
    CHECK(to_lower(U'\u0416') == U'\u0436');
    CHECK(to_upper(U'1') == U'1');
    CHECK(to_lower(U'\U00010400') == U'\U00010428');
}

TEST_CASE("normal form C") {
    CHECK(to_nfc(utf8(U"e\u0301")) == utf8(U"\u00E9"));
    CHECK(to_nfc(utf8(U"q\u0307\u0323")) == utf8(U"q\u0323\u0307"));        // marks are ordered
    CHECK(to_nfc(utf8(U"\u1E0B\u0323")) == utf8(U"\u1E0D\u0307"));          // and composed with the nearest class
    CHECK(to_nfc(utf8(U"\u0958")) == utf8(U"\u0915\u093C"));                // excluded from composition
    CHECK(to_nfc(utf8(U"\u212B")) == utf8(U"\u00C5"));                      // a singleton
    CHECK(to_nfc(utf8(U"\u1112\u1161\u11AB")) == utf8(U"\uD55C"));          // Hangul
    CHECK(to_nfc(utf8(U"\uAC00\u11A7")) == utf8(U"\uAC00\u11A7"));          // what stands before the tails is no tail
    CHECK(to_nfc(utf8(U"a\u0315\u0300\u05AEb")) == utf8(U"\u00E0\u05AE\u0315b"));  // classes 232, 230, 228
    CHECK(to_nfc("e\xCC\x81\xFF\xCC\x81") == "\xC3\xA9\xFF\xCC\x81");       // nothing joins across an ill-formed byte
    CHECK_FALSE(may_need_nfc(utf8(U"caf\u00E9 \u4E2D\u6587 \u0416 \U0001F600")));
    CHECK(may_need_nfc(utf8(U"e\u0301")));
    CHECK(may_need_nfc(utf8(U"\u1100\u1161")));
}

TEST_CASE("normalising twice changes nothing, and a text that needs none stays as it is") {
    std::mt19937 random(3);
    const char32_t first[] = {0x20, 0x300, 0x900, 0x1100, 0x1E00, 0xAC00, 0x2F800};
    for (int round = 0; round < 5000; ++round) {
        std::string text;
        for (auto i = random() % 12; i > 0; --i) {
            if (random() % 8 == 0) text.push_back(static_cast<char>(random() % 256));
            append_utf8(text, first[random() % std::size(first)] + static_cast<char32_t>(random() % 0x80));
        }
        const std::string normal = to_nfc(text);
        INFO("round " << round);
        REQUIRE(to_nfc(normal) == normal);
        if (!may_need_nfc(text)) REQUIRE(normal == text);
    }
}

TEST_CASE("a long run of marks in the wrong order is no trap") {
    std::string text = "a";
    for (int i = 0; i < 200'000; ++i) append_utf8(text, i % 2 == 0 ? 0x315 : 0x300);  // sorting by neighbours would take minutes
    std::string expected = utf8(U"\u00E0");
    for (int i = 1; i < 100'000; ++i) append_utf8(expected, 0x300);
    for (int i = 0; i < 100'000; ++i) append_utf8(expected, 0x315);
    CHECK(to_nfc(text) == expected);
}
