// Streaming text: whole characters only, stop strings held back no longer than needed, tokens travelling with their
// text.
#include "catch.h"

#include <random>
#include <string>
#include <vector>

#include "model/detokenizer.h"
#include "model/unicode.h"
#include "text_fixtures.h"

using namespace takt;

namespace {

StopStrings stops_of(std::vector<std::string> strings) {
    Result<StopStrings> made = StopStrings::make(std::move(strings));
    REQUIRE(made.ok());
    return std::move(made).value();
}

/// The answer by the definition: decode everything, cut at the stop that ends first (the longest of those).
struct Reference {
    std::string text;
    bool stopped = false;
};

Reference reference_answer(const std::string& whole, const std::vector<std::string>& stops) {
    for (size_t end = 1; end <= whole.size(); ++end) {
        size_t longest = 0;
        for (const std::string& stop : stops) {
            if (std::string_view(whole).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
        }
        if (longest != 0) return {whole.substr(0, end - longest), true};
    }
    return {whole, false};
}

/// Longest suffix of `text` that is a proper prefix of some stop.
size_t longest_open(const std::string& text, const std::vector<std::string>& stops) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
        for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
            if (std::string_view(text).ends_with(std::string_view(stop).substr(0, n))) longest = std::max(longest, n);
        }
    }
    return longest;
}

}  // namespace

TEST_CASE("a character split over tokens comes out whole") {
    const Tokenizer tokenizer = byte_tokenizer();
    Detokenizer stream(tokenizer, {});
    const std::string text = "a\xF0\x9F\x98\x80z";  // a, U+1F600, z
    std::vector<std::string> deltas;
    std::vector<uint32_t> counts;
    for (const char c : text) {
        const TextDelta delta = stream.push(byte_id(c));
        deltas.push_back(delta.text);
        counts.push_back(delta.num_tokens);
    }
    CHECK(deltas == std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "z"});
    CHECK(counts == std::vector<uint32_t>{1, 0, 0, 0, 4, 1});
}

TEST_CASE("a bad byte is replaced and the answer goes on") {
    const Tokenizer tokenizer = byte_tokenizer();
    Detokenizer stream(tokenizer, {});
    std::string text;
    for (const char c : std::string("a\xFFz\xE2\x82!\xC3")) text += stream.push(byte_id(c)).text;
    CHECK(text == "a\xEF\xBF\xBDz\xEF\xBF\xBD!");
    CHECK(stream.finish().text == "\xEF\xBF\xBD");  // half a character at the very end
}

TEST_CASE("special tokens have no text but are counted") {
    const Tokenizer tokenizer = byte_tokenizer();
    Detokenizer stream(tokenizer, {});
    const TextDelta special = stream.push(*tokenizer.find_token("<|end|>"));
    CHECK(special.text.empty());
    CHECK(special.num_tokens == 1);
    const TextDelta next = stream.push(byte_id('x'));
    CHECK(next.text == "x");
    CHECK(next.index == 1);

    Detokenizer shown(tokenizer, {}, {.skip_special = false, .at_text_start = false});
    CHECK(shown.push(*tokenizer.find_token("<|end|>")).text == "<|end|>");
}

TEST_CASE("only a suffix that can become a stop is held") {
    const Tokenizer tokenizer = byte_tokenizer();
    Detokenizer stream(tokenizer, stops_of({"END", "\n\n"}));
    CHECK(stream.push(byte_id('a')).text == "a");
    CHECK(stream.push(byte_id('E')).text.empty());
    CHECK(stream.push(byte_id('N')).text.empty());
    const TextDelta released = stream.push(byte_id('E'));  // EN cannot be END any more, E can
    CHECK(released.text == "EN");
    CHECK(released.index == 1);
    CHECK(released.num_tokens == 2);
    CHECK(stream.push(byte_id('N')).text.empty());
    const TextDelta stop = stream.push(byte_id('D'));
    CHECK(stop.stopped);
    CHECK(stop.stop == 0);
    CHECK(stop.text.empty());
    CHECK(stop.num_tokens == 0);  // the tokens of the stop are not sent
}

TEST_CASE("held text is flushed at the end with its tokens") {
    const Tokenizer tokenizer = byte_tokenizer();
    Detokenizer stream(tokenizer, stops_of({"stop"}));
    CHECK(stream.push(byte_id('s')).text.empty());
    CHECK(stream.push(byte_id('t')).text.empty());
    const TextDelta rest = stream.finish();
    CHECK(rest.text == "st");
    CHECK(rest.index == 0);
    CHECK(rest.num_tokens == 2);
    CHECK_FALSE(rest.stopped);
}

TEST_CASE("a stop inside a token cuts the token's text") {
    const Tokenizer tokenizer = word_tokenizer({"hello", " world", "lo w"});
    Detokenizer stream(tokenizer, stops_of({"lo w"}));
    const TextDelta first = stream.push(*tokenizer.find_token("hello"));
    CHECK(first.text == "hel");
    CHECK(first.num_tokens == 0);  // "lo" is still held, so the token is not out yet
    const TextDelta second = stream.push(*tokenizer.find_token(" world"));
    CHECK(second.stopped);
    CHECK(second.text.empty());
    CHECK(second.num_tokens == 1);  // "hello" gave text, " world" lies in and behind the stop
}

TEST_CASE("stop strings are checked") {
    CHECK(StopStrings::make(std::vector<std::string>(8, "x")).ok());
    CHECK_FALSE(StopStrings::make(std::vector<std::string>(9, "x")).ok());
    CHECK_FALSE(StopStrings::make({"a", ""}).ok());
    CHECK_FALSE(StopStrings::make({"\xFF"}).ok());
    CHECK_FALSE(StopStrings::make({std::string(5000, 'x')}).ok());
    CHECK(StopStrings::make({}).ok());
}

// Few letters, so that stops overlap themselves; parts of characters, so that deltas must wait.
const std::vector<std::string>& overlapping_words() {
    static const std::vector<std::string> words{"a",
                                         "b",
                                         "ab",
                                         "ba",
                                         "aab",
                                         "\xC3",
                                         "\xA9",
                                         "\xC3\xA9",
                                         "\xF0\x9F",
                                         "\x98",
                                         "\x98\x80",
                                         "\xE2\x82",
                                         "\xAC",
                                         "\xFF",
                                         "a\xC3",
                                         "\xA9"
                                         "b",
                                         " "};
    return words;
}

TEST_CASE("random streams: the join is the whole decode up to the first stop, and nothing is held for long") {
    std::mt19937 random(7);
    const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
    const std::vector<std::string>& words = overlapping_words();
    const std::vector<std::string> stop_words{"aa",
                                              "ab",
                                              "aba",
                                              "abab",
                                              "b\xC3\xA9",
                                              "\xF0\x9F\x98\x80",
                                              "\xEF\xBF\xBD",
                                              "a a",
                                              "bb",
                                              "baab",
                                              "\xE2\x82\xAC"
                                              "a"};
    const Tokenizer tokenizer = word_tokenizer(words);
    const auto num_tokens = static_cast<size_t>(tokenizer.vocab_size());
    for (int round = 0; round < 4000; ++round) {
        std::vector<std::string> stops;
        for (size_t i = below(4); i > 0; --i) stops.push_back(stop_words[below(stop_words.size())]);
        std::vector<int32_t> ids;
        for (size_t i = below(40); i > 0; --i) ids.push_back(static_cast<int32_t>(below(num_tokens)));

        Detokenizer stream(tokenizer, stops_of(stops));
        std::string text;
        uint64_t num_released = 0;
        bool stopped = false;
        std::vector<int32_t> pushed;
        const auto take = [&](const TextDelta& delta) {
            REQUIRE(is_valid_utf8(delta.text));
            REQUIRE(delta.index == num_released);
            text += delta.text;
            num_released += delta.num_tokens;
            stopped = delta.stopped;
        };
        for (const int32_t id : ids) {
            pushed.push_back(id);
            take(stream.push(id));
            if (stopped) break;
            // Held: half a character, and the longest suffix of the complete text that begins a stop.
            std::string bytes;
            for (const int32_t seen : pushed) {
                if (!tokenizer.is_special(seen)) bytes += tokenizer.token_text(seen);
            }
            bytes.resize(bytes.size() - incomplete_utf8_suffix(bytes));
            std::string complete;
            append_valid_utf8(complete, bytes);
            REQUIRE(complete.size() - text.size() == longest_open(complete, stops));
        }
        if (!stopped) take(stream.finish());
        const Reference wanted = reference_answer(tokenizer.decode(ids, true), stops);
        REQUIRE(text == wanted.text);
        REQUIRE(stopped == wanted.stopped);
        REQUIRE(num_released <= pushed.size());
        if (!stopped) REQUIRE(num_released == ids.size());
    }
}
