// Tokenizers: merging, splitting, special tokens, any bytes in, and the real vocabularies where they are at hand.
#include "catch.h"

#include <algorithm>
#include <boost/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "model/pretokenizer.h"
#include "model/pretokenizer_scan.h"
#include "model/tokenizer_json.h"
#include "model/unicode.h"
#include "reference_vocabularies.h"
#include "text_fixtures.h"

using namespace takt;

namespace {

const EncodeOptions kPlain{.parse_special = false, .bos = BosPolicy::never, .eos = false};
const EncodeOptions kSpecial{.parse_special = true, .bos = BosPolicy::never, .eos = false};

/// Bytes, and merges of them in the order given.
TokenizerSpec merged_spec(const std::vector<std::pair<std::string, std::string>>& merges) {
    std::vector<std::string> words;
    for (const auto& [left, right] : merges) words.push_back(left + right);
    TokenizerSpec spec = byte_spec(words);
    for (const auto& [left, right] : merges)
        spec.merge_texts.push_back(to_byte_alphabet(left) + " " + to_byte_alphabet(right));
    return spec;
}

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, std::string_view text) {
    std::vector<std::string> out;
    for (const int32_t id : tokenizer.encode(text, kPlain)) out.push_back(tokenizer.token_text(id));
    return out;
}

/// The definition of byte-pair merging: the best pair, leftmost among equals, until none is left.
std::vector<std::string> merge_by_definition(std::vector<std::string> parts,
                                             const std::vector<std::pair<std::string, std::string>>& merges) {
    while (true) {
        size_t best_rank = merges.size();
        size_t best_at = 0;
        for (size_t i = 0; i + 1 < parts.size(); ++i) {
            for (size_t rank = 0; rank < best_rank; ++rank) {
                if (merges[rank].first != parts[i] || merges[rank].second != parts[i + 1]) continue;
                best_rank = rank;
                best_at = i;
            }
        }
        if (best_rank == merges.size()) return parts;
        parts[best_at] += parts[best_at + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
    }
}

std::string random_text(std::mt19937& random, size_t size) {
    const char* alphabet[] = {"a",      "B",      "z",      " ", "  ", "\n",     "\r\n", "\t", "1",  "23",
                              "'s",     "'LL",    "'",      ".", "!?", "é",      "ſ",    "'ſ", "中", "\u00A0",
                              "\u3000", "\u2028", "\u180E", "²", "٣",  "\u0301", "😀",    "_",  "x",  "q"};
    std::string out;
    while (out.size() < size) out += alphabet[random() % std::size(alphabet)];
    return out;
}

}  // namespace

TEST_CASE("random words merge as the definition says, short and long") {
    std::mt19937 random(3);
    for (int round = 0; round < 200; ++round) {
        std::vector<std::string> known{"a", "b", "c"};
        std::vector<std::pair<std::string, std::string>> merges;
        for (int i = 0; i < 12; ++i) {
            const auto pair = std::pair{known[random() % known.size()], known[random() % known.size()]};
            const std::string joined = pair.first + pair.second;
            if (joined.size() > 9 || std::find(known.begin(), known.end(), joined) != known.end()) continue;
            merges.push_back(pair);
            known.push_back(joined);
        }
        const Tokenizer tokenizer = build(merged_spec(merges));
        std::string word;
        for (size_t i = 1 + random() % (round % 4 == 0 ? 300 : 40); i > 0; --i)
            word.push_back(static_cast<char>('a' + random() % 3));
        std::vector<std::string> letters;
        for (const char c : word) letters.emplace_back(1, c);
        INFO(word);
        CHECK(pieces_of(tokenizer, word) == merge_by_definition(letters, merges));
        CHECK(pieces_of(tokenizer, word) == merge_by_definition(letters, merges));  // the second time from the cache
    }
}

TEST_CASE("any bytes come back from byte-level ids") {
    const Tokenizer tokenizer = build(merged_spec({{"a", "b"}, {" ", "a"}, {"\xC3", "\xA9"}}));
    std::mt19937 random(5);
    for (int round = 0; round < 500; ++round) {
        std::string text;
        for (size_t i = random() % 60; i > 0; --i)
            text.push_back(static_cast<char>(random() % (round % 2 == 0 ? 256 : 128)));
        std::string bytes;
        for (const int32_t id : tokenizer.encode(text, kPlain)) tokenizer.append_token_text(id, bytes);
        CHECK(bytes == text);
    }
}

TEST_CASE("a megabyte of one letter and a quarter million characters end quickly") {
    const Tokenizer tokenizer = build(merged_spec({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}));
    const std::vector<int32_t> ids = tokenizer.encode(std::string(1 << 20, 'a'), kPlain);
    CHECK(ids.size() == (1 << 20) / 8);
    CHECK(tokenizer.encode(std::string(1 << 20, ' '), kPlain).size() == 1 << 20);
    CHECK(tokenizer.encode(std::string(1 << 20, '<'), kSpecial).size() == 1 << 20);
    std::mt19937 random(1);
    CHECK(tokenizer.encode(random_text(random, 1 << 18), kPlain).size() > 1 << 17);
}

TEST_CASE("the hand-written scanners cut where their patterns do") {
    // The scanners ask utf8proc, the patterns PCRE2; the newer of the two knows characters that the other calls unassigned.
    const Pretokenizer unassigned =
        Pretokenizer::make({{SplitKind::regex, "\\p{Cn}", SplitBehavior::isolated, false}}).value();
    for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
        const Pretokenizer fast = Pretokenizer::make(split_rules_by_name(name).value()).value();
        const Pretokenizer slow = Pretokenizer::make(split_rules_by_name(name).value(), false).value();
        REQUIRE(fast.uses_scanner());
        REQUIRE_FALSE(slow.uses_scanner());
        Pretokenizer::Scratch scratch;
        std::mt19937 random(11);
        const auto agree = [&](const std::string& text) {
            std::vector<WordSpan> left, right;
            fast.split(text, left, scratch);
            slow.split(text, right, scratch);
            return left == right;
        };
        for (int round = 0; round < 3000; ++round) {
            const std::string text = random_text(random, random() % 40);
            INFO(name << " \"" << text << "\"");
            REQUIRE(agree(text));
        }
        for (char32_t cp = 1; cp < 0x20000; ++cp) {  // every character, between a letter, a space and a number
            if (cp >= 0xD800 && cp < 0xE000) continue;
            std::string text = "a";
            append_utf8(text, cp);
            text += " ";
            append_utf8(text, cp);
            text += "1";
            if (agree(text)) continue;  // half a million of them: no INFO each
            std::vector<WordSpan> spans;
            unassigned.split(text, spans, scratch);
            if (spans.size() == 1) FAIL(name << " U+" << static_cast<uint32_t>(cp));
        }
    }
}

TEST_CASE("split behaviours") {
    const auto words = [](SplitBehavior behavior, bool invert) {
        const Pretokenizer split = Pretokenizer::make({{SplitKind::literal, "-", behavior, invert}}).value();
        Pretokenizer::Scratch scratch;
        std::vector<WordSpan> spans;
        const std::string text = "a--b-c";
        split.split(text, spans, scratch);
        std::string out;
        for (const WordSpan& span : spans) out += text.substr(span.begin, span.end - span.begin) + "/";
        return out;
    };
    CHECK(words(SplitBehavior::isolated, false) == "a/-/-/b/-/c/");
    CHECK(words(SplitBehavior::removed, false) == "a/b/c/");
    CHECK(words(SplitBehavior::removed, true) == "-/-/-/");
    CHECK(words(SplitBehavior::merged_with_previous, false) == "a-/-/b-/c/");
    CHECK(words(SplitBehavior::merged_with_next, false) == "a/-/-b/-c/");
    CHECK(words(SplitBehavior::contiguous, false) == "a/--/b/-/c/");
    // An expression that matches nothing cuts there, and lines begin behind each newline.
    const auto cut = [](const char* expression, SplitBehavior behavior) {
        const Pretokenizer split = Pretokenizer::make({{SplitKind::regex, expression, behavior, false}}).value();
        Pretokenizer::Scratch scratch;
        std::vector<WordSpan> spans;
        const std::string text = expression[0] == '\\' ? "a\u0301 \u00BDb" : "aBC\nxyz";
        split.split(text, spans, scratch);
        std::string out;
        for (const WordSpan& span : spans) out += text.substr(span.begin, span.end - span.begin) + "/";
        return out;
    };
    CHECK(cut("(?=[A-Z])", SplitBehavior::isolated) == "a/B/C\nxyz/");
    CHECK(cut("(?=[A-Z])", SplitBehavior::removed) == "a/B/C\nxyz/");
    CHECK(cut("(?=[A-Z])", SplitBehavior::merged_with_next) == "a/B/C\nxyz/");
    CHECK(cut("B*", SplitBehavior::isolated) == "a/B/C/\n/x/y/z/");
    CHECK(cut("^.", SplitBehavior::isolated) == "a/BC\n/x/yz/");
    CHECK(cut("\\w+", SplitBehavior::isolated) == "a\u0301/ \u00BD/b/");   // marks are word characters, fractions are not
    CHECK(cut("\\W+", SplitBehavior::isolated) == "a\u0301/ \u00BD/b/");
    CHECK_FALSE(split_rules_by_name("no-such").ok());
    CHECK_FALSE(Pretokenizer::make({{SplitKind::regex, "(", SplitBehavior::isolated, false}}).ok());
}

TEST_CASE("control tokens are recognised only where the text is trusted") {
    const Tokenizer tokenizer = byte_tokenizer();
    const int32_t end = *tokenizer.find_token("<|end|>");
    const int32_t tool = *tokenizer.find_token("<tool>");
    CHECK(tokenizer.encode("x<|end|>", kSpecial) == std::vector<int32_t>{'x', end});
    CHECK(tokenizer.encode("<|end|>", kPlain).size() == 7);
    CHECK(tokenizer.encode("<tool>", kPlain) == std::vector<int32_t>{tool});
    const TextPiece split[] = {{"<|en", true}, {"d|>", false}};
    CHECK(tokenizer.encode_pieces(split, kPlain).size() == 7);
    const TextPiece joined[] = {{"<|en", true}, {"d|>", true}, {"<|end|>", false}, {"<|end|>", true}};
    const std::vector<int32_t> ids = tokenizer.encode_pieces(joined, kPlain);
    CHECK(ids.size() == 9);
    CHECK(ids.front() == end);
    CHECK(ids.back() == end);
    CHECK(tokenizer.decode(ids, false) == "<|end|><|end|><|end|>");
    CHECK(tokenizer.decode(ids, true) == "<|end|>");
    CHECK(tokenizer.is_end_of_generation(end));
    CHECK_FALSE(tokenizer.is_end_of_generation('x'));
}

TEST_CASE("the begin token is added once") {
    TokenizerSpec spec = byte_spec();
    spec.add_bos = true;
    const Tokenizer tokenizer = build(spec);
    const int32_t bos = tokenizer.bos();
    CHECK(tokenizer.encode("a") == std::vector<int32_t>{bos, 'a'});
    CHECK(tokenizer.encode("<|begin|>a", {.parse_special = true}) == std::vector<int32_t>{bos, 'a'});
    CHECK(tokenizer.encode("<|begin|>a", {.parse_special = true, .bos = BosPolicy::always}) ==
          std::vector<int32_t>{bos, bos, 'a'});
    CHECK(tokenizer.encode("a", {.bos = BosPolicy::never}) == std::vector<int32_t>{'a'});
    CHECK(byte_tokenizer().encode("a") == std::vector<int32_t>{'a'});  // a model that wants none
}

TEST_CASE("SentencePiece-style vocabularies: marks, scores, byte fallback, unknown") {
    TokenizerSpec spec;
    spec.kind = TokenizerKind::spm_bpe;
    spec.tokens = {"<unk>", "<s>", "\u2581", "a", "b", "ab", "\u2581a", "\u2581ab", "<0xC3>", "<0xA9>", "c"};
    spec.types = {TokenType::unknown, TokenType::control, TokenType::normal, TokenType::normal,
                  TokenType::normal,  TokenType::normal,  TokenType::normal, TokenType::normal,
                  TokenType::byte,    TokenType::byte,    TokenType::normal};
    spec.scores = {0, 0, -10, -11, -12, -2, -1, -3, 0, 0, -13};
    spec.unknown_id = 0;
    spec.fuse_unknown = true;
    const Tokenizer tokenizer = build(spec);
    CHECK(tokenizer.encode("ab", kPlain) == std::vector<int32_t>{5});
    CHECK(tokenizer.encode(" ab", kPlain) == std::vector<int32_t>{7});  // the better score joins first: (▁ a), then b
    CHECK(tokenizer.encode("\u00E9", kPlain) == std::vector<int32_t>{8, 9});
    CHECK(tokenizer.encode("a\u4E2D\u4E2Dc", kPlain) == std::vector<int32_t>{3, 0, 10});
    CHECK(tokenizer.decode(std::vector<int32_t>{6, 4, 8, 9}, false) == " ab\u00E9");
    spec.space_prefix = SpacePrefix::after_special;
    spec.strip_leading_space = true;
    const Tokenizer prefixed = build(spec);
    CHECK(prefixed.encode("a", kPlain) == std::vector<int32_t>{6});
    CHECK(prefixed.decode(std::vector<int32_t>{6, 4}, false) == "ab");
}

/// A tokenizer.json of letters, digits and a few merges, with these added tokens (ids from 200) and further parts.
Tokenizer json_tokenizer(const std::string& added, const std::string& parts, const std::string& model = "") {
    std::string vocab;
    for (int c = 0; c < 26; ++c) vocab += "\"" + std::string(1, static_cast<char>('a' + c)) + "\":" + std::to_string(c) + ",";
    vocab += R"("\u2581":26,"\u2581a":27,"ab":28,"\u0120":29,"1":30,"_":31,"\u2581a\u2581b":32)";
    const Result<TokenizerSpec> spec =
        parse_tokenizer_json("{" + parts + R"(,"added_tokens":[)" + added + R"(],"model":{"type":"BPE",)" + model + R"("vocab":{)" +
                             vocab + R"(},"merges":["\u2581 a","a b"]}})");
    if (!spec) FAIL(spec.error());
    return build(spec.value());
}

constexpr const char* kBytes = R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false})";

TEST_CASE("added tokens take whole words and the whitespace beside them as the reference does") {
    const auto token = [](int id, const std::string& text, const std::string& flags) {
        return R"({"id":)" + std::to_string(id) + R"(,"content":")" + text + "\"" + flags + "}";
    };
    const Tokenizer words = json_tokenizer(token(200, "<w>", R"(,"single_word":true)") + "," + token(201, "w>", ""), kBytes);
    const auto ids = [](const Tokenizer& tokenizer, std::string_view text) { return tokenizer.encode(text, kSpecial); };
    CHECK(ids(words, "<w>") == std::vector<int32_t>{200});
    // A letter, digit, mark, joiner or underscore beside it makes it none, and nothing is looked for inside what was refused.
    for (const char* beside : {"a", "1", "_", "\u0301", "\u200D", "\u24B6", "\u2163"}) {
        const std::vector<int32_t> found = ids(words, "<w>" + std::string(beside));
        CHECK(std::count_if(found.begin(), found.end(), [](int32_t id) { return id >= 200; }) == 0);
    }
    for (const char* beside : {" ", "!", "\u00BD", "\u2460", "\u20AC"}) CHECK(ids(words, "<w>" + std::string(beside))[0] == 200);
    // Whitespace that one has taken may be the next one's text, and is then not given out a second time.
    const std::string greedy = R"(,"rstrip":true)";
    const std::string three = token(200, "<s>", greedy) + "," + token(201, " x", greedy) + "," + token(202, "  ", "");
    const Tokenizer spaces = json_tokenizer(three, kBytes);
    CHECK(ids(spaces, "<s> xb") == std::vector<int32_t>{200, 201, 1});
    CHECK(ids(spaces, "<s>  b") == std::vector<int32_t>{200, 1});
}

TEST_CASE("space marks: Metaspace prefixes what has no space, Prepend everything; whole texts may be tokens") {
    const auto metaspace = [](const std::string& scheme) {
        const std::string step = R"({"type":"Metaspace","replacement":"\u2581","split":false,"prepend_scheme":")" + scheme + "\"}";
        return json_tokenizer("", R"("pre_tokenizer":)" + step);
    };
    for (const char* scheme : {"first", "always"}) {
        CHECK(metaspace(scheme).encode("a", kPlain) == std::vector<int32_t>{27});
        CHECK(metaspace(scheme).encode(" a", kPlain) == std::vector<int32_t>{27});
        CHECK(metaspace(scheme).encode("\u2581a", kPlain) == std::vector<int32_t>{27});
        CHECK(metaspace(scheme).encode("  a", kPlain) == std::vector<int32_t>{26, 27});
    }
    CHECK(metaspace("never").encode(" a", kPlain) == std::vector<int32_t>{27});
    const std::string replace = R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"})";
    const std::string prepend = R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},)" + replace + "]}";
    CHECK(json_tokenizer("", prepend).encode(" a", kPlain) == std::vector<int32_t>{26, 27});
    const std::string whole = R"("normalizer":)" + replace;
    CHECK(json_tokenizer("", whole).encode(" a b", kPlain) == std::vector<int32_t>{27, 26, 1});
    CHECK(json_tokenizer("", whole, R"("ignore_merges":true,)").encode(" a b", kPlain) == std::vector<int32_t>{32});
}

TEST_CASE("wrong specs are refused with a reason") {
    const auto refused = [](auto change) {
        TokenizerSpec spec = byte_spec();
        change(spec);
        return !make_tokenizer(spec).ok();
    };
    CHECK(refused([](TokenizerSpec& s) {
        s.tokens.clear();
        s.types.clear();
        s.bos_id = s.eos_id = -1;
    }));
    CHECK(refused([](TokenizerSpec& s) { s.types.pop_back(); }));
    CHECK(refused([](TokenizerSpec& s) { s.bos_id = 100'000; }));
    CHECK(refused([](TokenizerSpec& s) { s.bos_id = -2; }));
    CHECK(refused([](TokenizerSpec& s) { s.merge_texts = {"ab"}; }));
    CHECK(refused([](TokenizerSpec& s) { s.merge_texts = {"a b"}; }));  // "ab" is no token
    CHECK(refused([](TokenizerSpec& s) { s.merge_ids = {{0, 100'000}}; }));
    CHECK(refused([](TokenizerSpec& s) { s.end_of_generation_ids = {-1}; }));
    CHECK(refused([](TokenizerSpec& s) { s.kind = TokenizerKind::spm_bpe; }));  // neither merges nor scores
}

TEST_CASE("tokenizer.json: what is not known is refused by name") {
    const std::string base =
        R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)"
        R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";
    REQUIRE(parse_tokenizer_json(base).ok());
    CHECK(build(parse_tokenizer_json(base).value()).encode("ab", kPlain) == std::vector<int32_t>{2});
    const auto error_with = [&base](const std::string& part) {
        return parse_tokenizer_json("{" + part + "," + base.substr(1)).error();
    };
    CHECK(error_with(R"("normalizer":{"type":"Lowercase"})").find("Lowercase") != std::string::npos);
    CHECK(error_with(R"("decoder":{"type":"WordPiece"})").find("WordPiece") != std::string::npos);
    CHECK(error_with(R"("added_tokens":5)") == "added_tokens is no list");
    CHECK(parse_tokenizer_json(R"({"added_tokens":null,)" + base.substr(1)).ok());
    CHECK(error_with(R"("post_processor":{"type":"BertProcessing"})").find("BertProcessing") != std::string::npos);
    CHECK_FALSE(parse_tokenizer_json(R"({"model":{"type":"Unigram"}})").ok());
    CHECK_FALSE(parse_tokenizer_json("{").ok());
    CHECK_FALSE(parse_tokenizer_json("[]").ok());
    const auto config = parse_tokenizer_config(
        R"({"eos_token":{"content":"b"},"bos_token":null,)"
        R"("chat_template":[{"name":"x","template":"1"},{"name":"default","template":"2"}]})");
    REQUIRE(config.ok());
    CHECK(config.value().eos_token == "b");
    CHECK_FALSE(config.value().bos_token.has_value());
    CHECK(config.value().chat_template == "2");
}

TEST_CASE("real vocabularies give the reference ids") {
    if (!test::has_reference_ids()) {
        WARN("skipped: no reference ids beside the source tree");
        return;
    }
    for (const std::string name : {"qwen3", "llama3_1", "gemma3"}) {
        const auto text = test::reference_tokenizer_json(name);
        if (!text) {
            WARN("skipped: gzip failed");
            continue;
        }
        const Tokenizer tokenizer = build(parse_tokenizer_json(*text).value());
        const std::vector<boost::json::object> rows = test::reference_rows(name);
        for (const boost::json::object& row : rows) {
            const auto string = [&row](const char* key) {
                return std::string(row.at(key).as_string().data(), row.at(key).as_string().size());
            };
            INFO(string("id"));
            CHECK(tokenizer.encode(string("text"), kSpecial) == test::ids_of(row.at("ids")));
            CHECK(tokenizer.encode(string("text"), {.parse_special = true, .bos = BosPolicy::always, .eos = true}) ==
                  test::ids_of(row.at("ids_with_special")));
            CHECK(tokenizer.encode(string("text"), kPlain) ==
                  test::ids_of(row.contains("ids_as_text") ? row.at("ids_as_text") : row.at("ids")));
            CHECK(tokenizer.decode(test::ids_of(row.at("ids")), false) == string("decoded"));
            CHECK(tokenizer.decode(test::ids_of(row.at("ids_with_special")), true) ==
                  string(row.contains("decoded_skip_special") ? "decoded_skip_special" : "decoded"));
        }
        CHECK(rows.size() == 150);
    }
}
