// tokenizer.ggml.* keys as a tokenizer: what the file says, what it only implies by its pre-tokenizer's name, what is refused,
// and real vocabularies written as GGUF against the reference ids.
#include "catch.h"

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "gguf_writer.h"
#include "model/gguf.h"
#include "model/model_file.h"
#include "model/tokenizer_json.h"
#include "reference_vocabularies.h"
#include "text_fixtures.h"

using namespace takt;

namespace {

const EncodeOptions kPlain{.parse_special = false, .bos = BosPolicy::never, .eos = false};
const EncodeOptions kSpecial{.parse_special = true, .bos = BosPolicy::never, .eos = false};

std::vector<std::string> merge_texts(const TokenizerSpec& spec) {
    std::vector<std::string> out = spec.merge_texts;
    for (const auto& [left, right] : spec.merge_ids)
        out.push_back(spec.tokens[static_cast<size_t>(left)] + " " + spec.tokens[static_cast<size_t>(right)]);
    return out;
}

/// The keys that a converter writes for a byte-level vocabulary.
GgufWriter written(const TokenizerSpec& spec, const char* pre) {
    GgufWriter out;
    out.add("tokenizer.ggml.model", "gpt2");
    if (pre != nullptr) out.add("tokenizer.ggml.pre", pre);
    out.add("tokenizer.ggml.tokens", spec.tokens);
    std::vector<int32_t> types;
    for (const TokenType type : spec.types) types.push_back(static_cast<int32_t>(type));
    out.add("tokenizer.ggml.token_type", types);
    out.add("tokenizer.ggml.merges", merge_texts(spec));
    if (spec.bos_id >= 0) out.add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(spec.bos_id));
    if (spec.eos_id >= 0) out.add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(spec.eos_id));
    out.add("tokenizer.ggml.add_bos_token", spec.add_bos);
    return out;
}

Result<TokenizerSpec> spec_of(const GgufWriter& writer) {
    const GgufWriter::Bytes bytes = writer.bytes();
    const auto file = GgufFile::parse(bytes, "v.gguf");
    if (!file) return Error{file.error()};
    return read_tokenizer_spec(file.value());
}

std::string refusal(const GgufWriter& writer) {
    const auto spec = spec_of(writer);
    return spec ? "read" : spec.error();
}

/// "abc" is a token that no merge makes: only a tokenizer that looks whole words up finds it.
TokenizerSpec unreachable_word() {
    TokenizerSpec spec = byte_spec({"ab", "abc", "\xC3\xA9"});
    spec.merge_texts = {"a b", to_byte_alphabet("\xC3") + " " + to_byte_alphabet("\xA9")};
    return spec;
}

std::vector<int32_t> ids(const char* pre, const std::string& text) {
    const auto spec = spec_of(written(unreachable_word(), pre));
    REQUIRE(spec);
    return build(spec.value()).encode(text, kPlain);
}

}  // namespace

TEST_CASE("families that look whole words up before merging do so from GGUF too") {
    for (const char* pre : {"llama-bpe", "llama3", "llama-v3", "tekken"}) {
        INFO(pre);
        CHECK(ids(pre, "abc") == std::vector<int32_t>{257});
    }
    for (const char* pre : {"gpt-2", "smollm", "qwen2"}) {
        INFO(pre);
        CHECK(ids(pre, "abc") == std::vector<int32_t>{256, 'c'});
    }
}

TEST_CASE("families that normalise to NFC do so from GGUF too") {
    const std::string decomposed = "e\xCC\x81";
    CHECK(ids("qwen2", decomposed) == std::vector<int32_t>{258});
    CHECK(ids("deepseek-r1-qwen", decomposed) == std::vector<int32_t>{258});
    CHECK(ids("llama-bpe", decomposed) == std::vector<int32_t>{'e', 0xCC, 0x81});
}

TEST_CASE("special tokens come from their keys") {
    TokenizerSpec source = byte_spec();
    source.add_bos = true;
    GgufWriter out = written(source, "gpt-2");
    out.add("tokenizer.ggml.add_eos_token", true);
    out.add("tokenizer.ggml.padding_token_id", uint32_t{4'000'000'000u});   // some writers mean "none" by it
    out.add("tokenizer.ggml.eot_token_id", uint32_t{'x'});
    const auto spec = spec_of(out);
    INFO(refusal(out));
    REQUIRE(spec);
    CHECK(spec.value().bos_id == source.bos_id);
    CHECK(spec.value().eos_id == source.eos_id);
    CHECK(spec.value().pad_id == -1);
    CHECK(spec.value().end_of_generation_ids == std::vector<int32_t>{'x'});
    const Tokenizer tokenizer = build(spec.value());
    CHECK(tokenizer.encode("a", {.eos = true}) == std::vector<int32_t>{source.bos_id, 'a', source.eos_id});
    CHECK(tokenizer.encode("a") == std::vector<int32_t>{source.bos_id, 'a'});
    CHECK(tokenizer.is_end_of_generation('x'));
}

TEST_CASE("what is wrong or not known in the keys is named") {
    CHECK(refusal(GgufWriter()).find("tokenizer.ggml.model") != std::string::npos);
    GgufWriter unknown = written(byte_spec(), "no-such");
    CHECK(refusal(unknown).find("no-such") != std::string::npos);
    GgufWriter kind;
    kind.add("tokenizer.ggml.model", "bert");
    kind.add("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
    CHECK(refusal(kind).find("\"bert\" is not available") != std::string::npos);
    GgufWriter tokens;
    tokens.add("tokenizer.ggml.model", "gpt2");
    CHECK(refusal(tokens).find("tokenizer.ggml.tokens") != std::string::npos);
    tokens.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
    tokens.add("tokenizer.ggml.token_type", std::vector<int32_t>{1});
    CHECK(refusal(tokens).find("has 1 entries, 2 expected") != std::string::npos);
    GgufWriter type;
    type.add("tokenizer.ggml.model", "gpt2");
    type.add("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
    type.add("tokenizer.ggml.token_type", std::vector<int32_t>{7});
    CHECK(refusal(type).find("7 found, 1 to 6 expected") != std::string::npos);
    GgufWriter flag = written(byte_spec(), "gpt-2");
    flag.add("tokenizer.ggml.add_eos_token", uint32_t{1});
    CHECK(refusal(flag).find("a bool expected") != std::string::npos);
}

TEST_CASE("real vocabularies written as GGUF give the reference ids") {
    if (!test::has_reference_ids()) {
        WARN("skipped: no reference ids beside the source tree");
        return;
    }
    for (const auto& [name, pre] : {std::pair{std::string("qwen3"), "qwen2"}, {"llama3_1", "llama-bpe"}}) {
        const auto text = test::reference_tokenizer_json(name);
        REQUIRE(text);
        const auto original = parse_tokenizer_json(*text);
        REQUIRE(original);
        const auto spec = spec_of(written(original.value(), pre));
        REQUIRE(spec);
        CHECK(spec.value().add_bos == (name == "llama3_1"));
        const BosPolicy bos = spec.value().add_bos ? BosPolicy::always : BosPolicy::never;
        const Tokenizer tokenizer = build(spec.value());
        const std::vector<boost::json::object> rows = test::reference_rows(name);
        for (const boost::json::object& row : rows) {
            const std::string words = boost::json::value_to<std::string>(row.at("text"));
            INFO(name << " " << boost::json::value_to<std::string>(row.at("id")));
            CHECK(tokenizer.encode(words, kSpecial) == test::ids_of(row.at("ids")));
            CHECK(tokenizer.encode(words, {.parse_special = true, .bos = bos, .eos = false}) ==
                  test::ids_of(row.at("ids_with_special")));
        }
        CHECK(rows.size() == 150);
    }
}
