// Files of takt's own writer against the float32 models that they spell out: a random network is quantised, its blocks are read by their
// definition and written as a float32 file, and both run. Every format, every arithmetic by its rule; [.long]: at the width of real models.
#include "catch.h"

#include <random>

#include "block_values.h"
#include "logit_rules.h"
#include "model/quantize.h"
#include "synthetic_gguf.h"
#include "temporary_folder.h"

using namespace takt;
using namespace takt::test;

namespace {

constexpr LogitRule kRules[] = {
    kFloat32Rule,
    {"int16, float32 KV", CpuArithmetic::int16, DType::f32, 0.01, 0.01},
    {"int16", CpuArithmetic::int16, DType::f16, 0.02, 0.02},
    {"int16, int8 KV", CpuArithmetic::int16, DType::i8, 0.4, 0.3},
    {"bf16", CpuArithmetic::bf16, DType::f16, 0.2, 0.1},
    {"int8", CpuArithmetic::int8, DType::f16, 0.7, 0.5},
};

/// The tensors of a GGUF file as float32, by the definition of their types.
std::vector<SyntheticTensor> dequantised(const std::vector<uint8_t>& file) {
    const Result<GgufFile> index = GgufFile::parse(file, "quantised");
    REQUIRE(index.ok());
    std::vector<SyntheticTensor> out;
    for (const GgufTensor& t : index.value().tensors()) {
        SyntheticTensor plain;
        plain.name = std::string(t.name);
        plain.rows = t.tensor.rows;
        plain.cols = t.tensor.cols;
        plain.is_vector = t.shape.size() == 1;
        const auto* data = static_cast<const uint8_t*>(t.tensor.data);
        for (const double value : weight_values(t.tensor.type, std::vector<uint8_t>(data, data + t.tensor.bytes()))) {
            const auto single = static_cast<float>(value);
            const auto* bytes = reinterpret_cast<const uint8_t*>(&single);
            plain.bytes.insert(plain.bytes.end(), bytes, bytes + sizeof single);
        }
        out.push_back(std::move(plain));
    }
    return out;
}

std::vector<uint8_t> file_bytes(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void check_format(const SyntheticModel& model, DType format, int32_t length) {
    INFO(dtype_info(format).name << ", width " << model.shape().hidden);
    const TemporaryFolder folder;
    const std::string in = folder.write("in.gguf", synthetic_gguf(model)), out = folder.file("out.gguf");
    REQUIRE(quantize_gguf(in, out, format, {}).ok());
    GgufWriter keys;
    write_gguf_keys(keys, model.shape());
    const std::string plain = folder.write("plain.gguf", gguf_file(model, keys, dequantised(file_bytes(out))));
    std::mt19937_64 random(model.shape().seed);
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(random() % kSyntheticTokens));
    const std::vector<SampleResult> expected = answers(plain, kFloat32Rule, tokens, kSyntheticTokens, 16);
    for (const LogitRule& rule : kRules) {
        const double largest = compare_answers(answers(out, rule, tokens, kSyntheticTokens, 16), expected, rule);
        // The same products in the same order of the same weights; any other arithmetic rounds, or it is not the one that ran.
        CHECK((largest == 0) == (rule.arithmetic == CpuArithmetic::float32));
        UNSCOPED_INFO(rule.name << ": log-probabilities off by at most " << largest);
    }
}

SyntheticShape shape_of(int32_t width, int32_t layers) {
    SyntheticShape s;
    s.architecture = "qwen3";
    s.matrices = s.tables = DType::f32;
    s.layers = layers;
    s.hidden = s.ffn = width;
    s.heads = width / 64;
    s.kv_heads = s.heads / 4;
    s.head_dim = 64;
    s.seed = 80 + static_cast<uint64_t>(layers);
    return s;
}

}  // namespace

TEST_CASE("a file of each format gives the log-probabilities of its dequantised float32 model, in every arithmetic") {
    const SyntheticModel model(shape_of(256, 2));
    for (const DType format : {DType::q4_k, DType::q6_k, DType::q4_0, DType::q4_1, DType::q8_0}) check_format(model, format, 80);
}

TEST_CASE("K types at a width of 2,048 and eight layers give those of their dequantised float32 models", "[.long]") {
    const SyntheticModel model(shape_of(2048, 8));
    for (const DType format : {DType::q4_k, DType::q6_k}) check_format(model, format, 80);
}
