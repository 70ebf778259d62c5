// The GGUF reader against files written here: what is right is found, and every wrong count, length, offset, shape, type and
// alignment is refused with a message that names the file, the thing, what was found and what was expected.
#include "catch.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gguf_writer.h"
#include "model/gguf.h"

using namespace takt;

namespace {

using Bytes = GgufWriter::Bytes;

constexpr uint32_t kF32 = 0, kQ4_0 = 2, kQ8_1 = 9, kQ6_K = 14;
constexpr uint32_t kFileU32 = 4, kFileF32 = 6, kFileString = 8, kFileArray = 9, kFileF64 = 12;

Result<GgufFile> parse(const Bytes& bytes) { return GgufFile::parse(bytes, "a.gguf"); }

const GgufTensor* tensor_of(const GgufFile& file, std::string_view name) {
    for (const GgufTensor& tensor : file.tensors()) {
        if (tensor.name == name) return &tensor;
    }
    return nullptr;
}

/// The message of a file that must be refused.
std::string refusal(const Bytes& bytes) {
    const auto file = parse(bytes);
    return file ? "parsed" : file.error();
}

/// Fails unless the message names the file and each of the parts.
void check_names(const std::string& message, const std::vector<std::string>& parts) {
    INFO(message);
    CHECK(message.rfind("a.gguf: ", 0) == 0);
    for (const std::string& part : parts) {
        INFO(part);
        CHECK(message.find(part) != std::string::npos);
    }
}

/// One key of each kind and two tensors.
GgufWriter sample() {
    GgufWriter out;
    out.add("general.architecture", "llama");
    out.add("u", uint32_t{7});
    out.add("i", int32_t{-7});
    out.add("f", 0.5f);
    out.add("yes", true);
    out.add("words", std::vector<std::string>{"a", "", "\xC3\xA9"});
    out.add("floats", std::vector<float>{1.5f, -2.0f});
    out.add("numbers", std::vector<int32_t>{3, -4});
    out.add_tensor("x", {2, 3}, kF32, Bytes(24, 1));
    out.add_tensor("y", {64}, kQ4_0, Bytes(36, 2));
    return out;
}

Bytes head(uint64_t num_tensors, uint64_t num_values) {
    GgufWriter out;
    out.extra_tensors = static_cast<int64_t>(num_tensors);
    out.extra_values = static_cast<int64_t>(num_values);
    return out.bytes();
}

Bytes with_value(uint32_t type, const Bytes& value) {
    GgufWriter out;
    out.add_raw("k", type, value);
    return out.bytes();
}

Bytes with_tensor(const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset, size_t num_data_bytes = 0) {
    GgufWriter out;
    out.add_tensor_info("t", shape, type, offset);
    Bytes bytes = out.bytes();
    bytes.resize(bytes.size() + num_data_bytes);
    return bytes;
}

}  // namespace

TEST_CASE("values and tensors of a well-formed file") {
    const Bytes bytes = sample().bytes();
    const auto parsed = parse(bytes);
    REQUIRE(parsed);
    const GgufFile& file = parsed.value();
    CHECK(file.path() == "a.gguf");
    CHECK(file.metadata().size() == 8);
    CHECK(file.text("general.architecture").value() == "llama");
    CHECK(file.integer("u", 0, 10).value() == 7);
    CHECK(file.integer("i", -10, 10).value() == -7);
    CHECK(file.number("f").value() == 0.5);
    CHECK(file.number("i").value() == -7.0);
    CHECK(file.flag("yes").value() == true);
    CHECK(file.texts("words").value() == std::vector<std::string>{"a", "", "\xC3\xA9"});
    CHECK(file.floats("floats").value() == std::vector<float>{1.5f, -2.0f});
    CHECK(file.integers("numbers").value() == std::vector<int64_t>{3, -4});
    CHECK_FALSE(file.text("absent").value().has_value());
    CHECK_FALSE(file.integers("absent").value().has_value());

    REQUIRE(file.tensors().size() == 2);
    const GgufTensor* x = tensor_of(file, "x");
    REQUIRE(x != nullptr);
    CHECK(x->shape == std::vector<int64_t>{2, 3});
    CHECK(x->tensor.cols == 2);
    CHECK(x->tensor.rows == 3);
    CHECK(x->tensor.bytes() == 24);
    const GgufTensor* y = tensor_of(file, "y");
    REQUIRE(y != nullptr);
    CHECK(y->tensor.type == DType::q4_0);
    CHECK(y->tensor.bytes() == 36);
    const auto* data = static_cast<const uint8_t*>(y->tensor.data);
    CHECK(data + 36 == bytes.data() + bytes.size());
    CHECK(data[0] == 2);
    CHECK(data[35] == 2);
}

TEST_CASE("a file of version 2 and one without tensors are read") {
    GgufWriter out = sample();
    out.version = 2;
    CHECK(parse(out.bytes()));
    CHECK(parse(GgufWriter().bytes()));
}

TEST_CASE("a value of another kind than asked is named with both") {
    const Bytes bytes = sample().bytes();
    const auto parsed = parse(bytes);
    REQUIRE(parsed);
    const GgufFile& file = parsed.value();
    check_names(file.integer("f", 0, 1).error(), {"\"f\"", "a number found", "an integer expected"});
    check_names(file.integer("u", 8, 10).error(), {"\"u\"", "7 found", "8 to 10 expected"});
    check_names(file.number("yes").error(), {"\"yes\"", "a bool found", "a number expected"});
    check_names(file.text("u").error(), {"\"u\"", "an unsigned integer found", "a string expected"});
    check_names(file.flag("i").error(), {"\"i\"", "an integer found", "a bool expected"});
    check_names(file.texts("numbers").error(), {"\"numbers\"", "an array found", "an array of strings expected"});
    check_names(file.floats("words").error(), {"\"words\"", "an array found", "an array of f32 expected"});
    check_names(file.integers("floats").error(), {"\"floats\"", "an array found", "an array of integers expected"});
    check_names(file.integers("u").error(), {"\"u\"", "an unsigned integer found", "an array of integers expected"});
    GgufWriter infinite;
    infinite.add("inf", std::numeric_limits<float>::infinity());
    infinite.add("big", std::numeric_limits<uint64_t>::max());
    const Bytes second = infinite.bytes();
    const auto numbers = parse(second);
    REQUIRE(numbers);
    check_names(numbers.value().number("inf").error(), {"\"inf\"", "not finite"});
    CHECK(numbers.value().integer("big", 0, INT64_MAX).value() == INT64_MAX);
    check_names(numbers.value().integer("big", 0, 5).error(), {"\"big\"", "0 to 5 expected"});
}

TEST_CASE("magic, version and counts are checked first") {
    check_names(refusal({}), {"the magic", "4 bytes expected", "0 left"});
    GgufWriter out = sample();
    out.magic = "GGUX";
    check_names(refusal(out.bytes()), {"does not begin with \"GGUF\""});
    out.magic = "GGUF";
    out.version = 1;
    check_names(refusal(out.bytes()), {"version 1 found", "2 or 3 expected"});
    out.version = 0x03000000;   // the other byte order
    check_names(refusal(out.bytes()), {"version 50331648 found"});
    check_names(refusal(head(0, 1)), {"key count 1"});
    check_names(refusal(head(0, uint64_t{1} << 60)), {"key count 1152921504606846976"});
    check_names(refusal(head(0, UINT64_MAX)), {"key count 18446744073709551615"});
    check_names(refusal(head(1, 0)), {"tensor count 1"});
    check_names(refusal(head(UINT64_MAX, 0)), {"tensor count 18446744073709551615"});
}

TEST_CASE("one key or tensor more than there is ends with a message") {
    GgufWriter more_values = sample();
    more_values.extra_values = 1;
    CHECK(refusal(more_values.bytes()).rfind("a.gguf: ", 0) == 0);
    GgufWriter more_tensors = sample();
    more_tensors.extra_tensors = 1;
    CHECK(refusal(more_tensors.bytes()).rfind("a.gguf: ", 0) == 0);
}

TEST_CASE("strings and arrays may not reach past the file") {
    Bytes long_text;
    GgufWriter::put(long_text, uint64_t{1} << 40);
    check_names(refusal(with_value(kFileString, long_text)), {"key \"k\"", "1099511627776 bytes expected", "0 left"});
    Bytes huge;
    GgufWriter::put(huge, UINT64_MAX);
    check_names(refusal(with_value(kFileString, huge)), {"key \"k\"", "18446744073709551615 bytes expected"});
    check_names(refusal(with_value(kFileArray, GgufWriter::array_head(kFileF64, uint64_t{1} << 61))),
                {"key \"k\"", "2305843009213693952 values"});
    check_names(refusal(with_value(kFileArray, GgufWriter::array_head(kFileF32, 1))), {"key \"k\"", "1 values"});
    check_names(refusal(with_value(kFileArray, GgufWriter::array_head(kFileString, UINT64_MAX))),
                {"key \"k\"", "18446744073709551615 strings"});
    Bytes two_strings = GgufWriter::array_head(kFileString, 2);
    GgufWriter::put_text(two_strings, "12345678");
    check_names(refusal(with_value(kFileArray, two_strings)), {"key \"k\"", "8 bytes expected, 0 left"});
    check_names(refusal(with_value(kFileU32, {1, 2})), {"key \"k\"", "4 bytes expected, 2 left"});
}

TEST_CASE("unknown value types are named") {
    check_names(refusal(with_value(13, Bytes(16))), {"key \"k\"", "unknown value type 13"});
    check_names(refusal(with_value(UINT32_MAX, Bytes(16))), {"key \"k\"", "unknown value type 4294967295"});
    check_names(refusal(with_value(kFileArray, GgufWriter::array_head(kFileArray, 1))), {"key \"k\"", "unknown array type 9"});
    check_names(refusal(with_value(kFileArray, GgufWriter::array_head(99, 0))), {"key \"k\"", "unknown array type 99"});
}

TEST_CASE("names that stand twice are refused") {
    GgufWriter keys;
    keys.add("k", uint32_t{1});
    keys.add("k", uint32_t{1});
    check_names(refusal(keys.bytes()), {"key \"k\" stands twice"});
    GgufWriter tensors;
    tensors.add_tensor("t", {1}, kF32, Bytes(4));
    tensors.add_tensor("t", {1}, kF32, Bytes(4));
    check_names(refusal(tensors.bytes()), {"tensor \"t\" stands twice"});
}

TEST_CASE("alignment is the file's own and a power of two") {
    GgufWriter out;
    out.alignment = 64;
    out.add("general.alignment", uint32_t{64});
    out.add_tensor("a", {1}, kF32, Bytes(4, 1));
    out.add_tensor("b", {1}, kF32, Bytes(4, 2));
    const Bytes bytes = out.bytes();
    const auto file = parse(bytes);
    REQUIRE(file);
    const auto place = [&](const char* name) {
        return static_cast<const uint8_t*>(tensor_of(file.value(), name)->tensor.data) - bytes.data();
    };
    CHECK(place("a") % 64 == 0);
    CHECK(place("b") == place("a") + 64);
    for (const uint32_t wrong : {0u, 48u, 1u << 21}) {
        GgufWriter bad;
        bad.add("general.alignment", wrong);
        check_names(refusal(bad.bytes()), {"general.alignment", std::to_string(wrong)});
    }
    GgufWriter text;
    text.add("general.alignment", "32");
    check_names(refusal(text.bytes()), {"general.alignment", "a string found", "an integer expected"});
    check_names(refusal(with_tensor({1}, kF32, 8, 12)), {"tensor \"t\"", "offset 8", "multiple of 32"});
}

TEST_CASE("tensors: dimensions, types and places") {
    check_names(refusal(with_tensor({}, kF32, 0)), {"tensor \"t\"", "0 dimensions found", "1 to 4 expected"});
    check_names(refusal(with_tensor({1, 1, 1, 1, 1}, kF32, 0)), {"tensor \"t\"", "5 dimensions found"});
    check_names(refusal(with_tensor({0}, kF32, 0)), {"tensor \"t\"", "dimension 0 of 0"});
    check_names(refusal(with_tensor({2, UINT64_MAX}, kF32, 0)), {"dimension 1 of 18446744073709551615"});
    // The product of these wraps to a small number in 64 bits.
    check_names(refusal(with_tensor({uint64_t{1} << 32, uint64_t{1} << 32}, kF32, 0)), {"dimension 1 of 4294967296"});
    check_names(refusal(with_tensor({32}, kQ8_1, 0, 64)),
                {"tensor \"t\"", "type Q8_1 is not available", "(F32, F16, Q4_0, Q4_1, Q5_0", "BF16 are)"});
    const std::pair<uint32_t, const char*> others[] = {{16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
                                                       {21, "IQ3_S"},   {22, "IQ2_S"},  {23, "IQ4_XS"},  {29, "IQ1_M"},
                                                       {39, "MXFP4"},   {40, "NVFP4"},  {41, "Q1_0"}};
    for (const auto& [number, name] : others) {
        check_names(refusal(with_tensor({256}, number, 0, 256)), {"tensor \"t\"", std::string("type ") + name + " is not available"});
    }
    check_names(refusal(with_tensor({32}, 4, 0, 64)), {"tensor \"t\"", "unknown type 4"});
    check_names(refusal(with_tensor({33}, kQ4_0, 0, 64)), {"tensor \"t\"", "rows of 33 elements", "multiple of 32", "Q4_0"});
    check_names(refusal(with_tensor({128, 2}, kQ6_K, 0, 512)), {"rows of 128 elements", "multiple of 256", "Q6_K"});
    CHECK(parse(with_tensor({8}, kF32, 0, 32)));
    const Bytes short_file = with_tensor({8}, kF32, 0, 31);
    const size_t begin = short_file.size() - 31;
    check_names(refusal(short_file), {"tensor \"t\"", "bytes " + std::to_string(begin) + " to " + std::to_string(begin + 32),
                                      "the file has " + std::to_string(short_file.size())});
    check_names(refusal(with_tensor({8}, kF32, uint64_t{1} << 62, 32)), {"tensor \"t\"", "the file has"});
    check_names(refusal(with_tensor({8}, kF32, UINT64_MAX - 31, 32)), {"tensor \"t\"", "the file has"});
    check_names(refusal(with_tensor({uint64_t{1} << 46}, kF32, 0, 32)), {"tensor \"t\"", "the file has"});
}

TEST_CASE("a file cut anywhere is refused, never read past its end") {
    const Bytes whole = sample().bytes();
    for (size_t size = 0; size < whole.size(); ++size) {
        const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));   // of exactly this size on the heap
        INFO(size);
        check_names(refusal(cut), {});
    }
    // Behind a last key that is cut no tensor is missed.
    GgufWriter only_keys;
    only_keys.add("long", "so that two keys could fit the cut file");
    only_keys.add("k", uint32_t{7});
    const Bytes keys = only_keys.bytes();
    CHECK(parse(keys));
    for (size_t left = 1; left <= 8; ++left) {
        const Bytes cut(keys.begin(), keys.end() - static_cast<std::ptrdiff_t>(left));
        INFO(left);
        check_names(refusal(cut), {"ends inside key \"k\"", "4 bytes expected, " + std::to_string((8 - left) % 4) + " left"});
    }
}

TEST_CASE("the smallest key and the smallest tensor fit a file") {
    GgufWriter key;
    key.add("", true);
    CHECK(parse(key.bytes()));
    check_names(refusal(head(0, 1)), {"key count 1"});
    GgufWriter tensor;
    tensor.add_tensor_info("", {8}, kF32, 0);
    Bytes bytes = tensor.bytes();
    const size_t info_end = 24 + 32;
    bytes.resize(info_end);
    check_names(refusal(bytes), {"tensor \"\"", "the file has 56"});   // the count is believed, the data missed
    bytes.resize(info_end - 1);
    check_names(refusal(bytes), {"tensor count 1"});
}

TEST_CASE("a file with changed bytes is refused or stays within its bounds") {
    const Bytes whole = sample().bytes();
    std::mt19937_64 random(4);
    size_t num_parsed = 0;
    for (int round = 0; round < 20000; ++round) {
        Bytes changed = whole;
        for (size_t i = 0; i < 1 + random() % 3; ++i) changed[random() % changed.size()] = static_cast<uint8_t>(random());
        const auto file = parse(changed);
        if (!file) continue;
        ++num_parsed;
        for (const GgufTensor& tensor : file.value().tensors()) {
            const auto* data = static_cast<const uint8_t*>(tensor.tensor.data);
            REQUIRE(data >= changed.data());
            REQUIRE(data + tensor.tensor.bytes() <= changed.data() + changed.size());
        }
        for (const auto& [key, value] : file.value().metadata()) {
            (void)file.value().texts(key);
            (void)file.value().integers(key);
        }
    }
    CHECK(num_parsed > 100);
    CHECK(num_parsed < 20000);
}
