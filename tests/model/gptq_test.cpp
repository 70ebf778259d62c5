// GPTQ folders: what is written is the layout by its definition and reads back as exactly the blocks it stands for, runs as the float64
// forward of those weights, and every shape, order and zero point that takt does not know is refused by name.
#include "catch.h"

#include <cmath>
#include <cstring>

#include "model/gptq.h"
#include "model/model_file.h"
#include "model/model_folder.h"
#include "model/quantize.h"
#include "model_driver.h"
#include "synthetic_folder.h"

using namespace takt;
using namespace takt::test;

namespace {

constexpr int64_t kRows = 64, kCols = 96;

struct Matrix {
    std::vector<uint8_t> bytes;
    std::vector<double> values;
    HostTensor tensor;
    explicit Matrix(uint64_t seed) {
        std::mt19937_64 random(seed);
        bytes = random_weights(DType::f32, kRows * kCols, 0.1, random);
        values = weight_values(DType::f32, bytes);
        tensor = {bytes.data(), DType::f32, kRows, kCols};
    }
};

/// The packed tensors as a file would hold them.
struct Packed {
    GptqMatrix m;
    GptqConfig config;
    Packed(const Matrix& matrix, GptqConfig c) : m(write_gptq(matrix.tensor, c)), config(c) {}
    [[nodiscard]] GptqTensors tensors() const {
        const int64_t words = m.cols * config.bits / 32;
        return {{m.qweight.data(), DType::i32, words, m.rows},
                {m.qzeros.data(), DType::i32, m.groups, m.rows * config.bits / 32},
                {m.scales.data(), DType::f16, m.groups, m.rows},
                {m.g_idx.data(), DType::i32, 1, m.cols}};
    }
};

/// Value `index` of a stream of `bits`-bit values, bit by bit: word k holds bits 32 k to 32 k + 31, lowest first.
uint32_t stream_value(const std::vector<uint32_t>& words, int64_t first, int64_t stride, int bits, int64_t index) {
    uint32_t value = 0;
    for (int b = 0; b < bits; ++b) {
        const int64_t bit = index * bits + b;
        value |= (words[static_cast<size_t>(first + bit / 32 * stride)] >> (bit % 32) & 1) << b;
    }
    return value;
}

}  // namespace

TEST_CASE("what is written is scale x (quant - middle), near the weights, and reads back as exactly that") {
    const Matrix matrix(5);
    const std::pair<GptqConfig, double> cases[] = {{{8, -1}, 0.01}, {{4, 32}, 0.1}, {{4, 64}, 0.12}, {{3, 32}, 0.22}};
    for (const auto& [config, bound] : cases) {
        INFO(config.bits << " bits, groups of " << config.group_size);
        const Packed packed(matrix, config);
        const int64_t length = config.group_size < 0 ? kCols : config.group_size;
        CHECK(packed.m.groups == (kCols + length - 1) / length);   // the last one shorter where 64 does not divide 96
        const Result<OwnedTensor> read = read_gptq(packed.tensors(), config);
        INFO((read ? "" : read.error()));
        REQUIRE(read.ok());
        CHECK(read.value().type == (config.bits == 8 ? DType::q8_0 : DType::q4_0));
        const std::vector<double> blocks = weight_values(read.value().type, read.value().bytes);
        double errors = 0, squares = 0;
        for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t i = 0; i < kCols; ++i) {
                const auto* scale = reinterpret_cast<const uint8_t*>(&packed.m.scales[static_cast<size_t>(i / length * kRows + r)]);
                const auto q = static_cast<int>(stream_value(packed.m.qweight, r, kRows, config.bits, i));
                const double value = half_value(scale) * (q - (1 << (config.bits - 1)));
                const auto at = static_cast<size_t>(r * kCols + i);
                REQUIRE(blocks[at] == value);
                errors += (value - matrix.values[at]) * (value - matrix.values[at]);
                squares += matrix.values[at] * matrix.values[at];
            }
        }
        CHECK(std::sqrt(errors / squares) < bound);
        CHECK(std::abs(packed.m.relative_error - std::sqrt(errors / squares)) < 1e-9);
        // Files hold the zero point less one.
        CHECK(stream_value(packed.m.qzeros, 0, 1, config.bits, kRows - 1) == (1u << (config.bits - 1)) - 1);
    }
}

TEST_CASE("wrong shapes, orders and zero points are refused in words") {
    const Matrix matrix(6);
    const GptqConfig config{4, 32};
    const auto error = [&](const std::function<void(Packed&, GptqTensors&)>& change) {
        Packed packed(matrix, config);
        GptqTensors tensors = packed.tensors();
        change(packed, tensors);
        const auto read = read_gptq(tensors, config);
        return read ? std::string("read") : read.error();
    };
    CHECK(error([](Packed&, GptqTensors&) {}) == "read");
    CHECK(error([](Packed&, GptqTensors& t) { t.g_idx = {}; }) == "read");
    CHECK(error([](Packed&, GptqTensors& t) { t.scales.rows = 2; }) == "scales: 2 x 64 found, 3 x 64 expected");
    CHECK(error([](Packed&, GptqTensors& t) { t.qzeros.cols = 7; }) == "qzeros: 3 x 7 found, 3 x 8 expected");
    CHECK(error([](Packed&, GptqTensors& t) { t.qweight.type = DType::f32; }) == "qweight and qzeros: int32 expected");
    CHECK(error([](Packed&, GptqTensors& t) { t.qweight.rows = 11; }).find("a whole number of 32 inputs expected") != std::string::npos);
    CHECK(error([](Packed& p, GptqTensors&) { std::swap(p.m.g_idx[0], p.m.g_idx[95]); }).find("desc_act") != std::string::npos);
    CHECK(error([](Packed& p, GptqTensors&) { p.m.qzeros[3] ^= 1; }).find("zero points off the middle") != std::string::npos);
}

TEST_CASE("a folder's quantization_config is taken or refused by name") {
    const auto parsed = [](const json::object& q) {
        const auto found = parse_gptq_config(json::serialize(json::object{{"quantization_config", q}}));
        return found ? std::to_string(found.value()->bits) + "/" + std::to_string(found.value()->group_size) : found.error();
    };
    CHECK(!parse_gptq_config("{}").value());
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}}) == "4/128");
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 8}}) == "8/-1");
    CHECK(parsed({{"quant_method", "awq"}, {"bits", 4}}) ==
          "key \"quantization_config.quant_method\": \"awq\" is not available in this version (gptq is)");
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 2}}) == "key \"quantization_config.bits\": 2 found, 3, 4 or 8 expected");
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 48}}).find("48 found, -1 or a multiple") < 60);
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"sym", false}}).find("quantization_config.sym") != std::string::npos);
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"desc_act", true}}).find("quantization_config.desc_act") != std::string::npos);
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "gptq_v2"}}).find("gptq_v2") != std::string::npos);
}

TEST_CASE("a quantised folder opens, keeps tokenizer and tables, and its weights are those reported") {
    SyntheticShape shape;
    shape.architecture = "qwen2";
    shape.matrices = shape.tables = shape.vectors = DType::bf16;
    const SyntheticModel model(shape);
    const TemporaryFolder in, parent;
    write_folder(model, in, 2);
    for (const char* name : {"w8", "w4g128", "w3g128"}) {
        INFO(name);
        const std::string out = parent.file(name);
        std::vector<QuantizedTensor> report;
        const auto totals = quantize_folder(in.path(), out, *gptq_format(name), [&](const QuantizedTensor& t) { report.push_back(t); });
        INFO((totals ? "" : totals.error()));
        REQUIRE(totals.ok());
        CHECK(report.size() == model.tensors().size());
        const auto opened = ModelFile::open(out);
        INFO((opened ? "" : opened.error()));
        REQUIRE(opened.ok());
        CHECK(opened.value()->tokenizer_spec().value().tokens == SyntheticModel::tokens());
        CHECK(opened.value()->tensors().embedding.type == DType::bf16);
        const HostTensor& down = opened.value()->tensors().layers[1].down;
        CHECK(down.type == (std::string(name) == "w8" ? DType::q8_0 : DType::q4_0));
        const auto* data = static_cast<const uint8_t*>(down.data);
        const std::vector<double> read = weight_values(down.type, std::vector<uint8_t>(data, data + down.bytes()));
        const SyntheticTensor& was = model.tensor("model.layers.1.mlp.down_proj.weight");
        double errors = 0, squares = 0;
        for (size_t i = 0; i < read.size(); ++i) {
            errors += (read[i] - was.values[i]) * (read[i] - was.values[i]);
            squares += was.values[i] * was.values[i];
        }
        for (const QuantizedTensor& t : report) {
            if (t.name == was.name) CHECK(std::abs(t.relative_error - std::sqrt(errors / squares)) < 1e-4);
        }
        CHECK(quantize_folder(in.path(), out, *gptq_format(name), {}).error() == out + ": a new or empty folder expected");
        ModelDriver driver(out, {}, {[](void*) -> uint64_t { return 0; }, nullptr}, DType::f16, 64);
        INFO(driver.error);
        REQUIRE(driver.error.empty());
        const std::vector<int32_t> tokens{1, 2, 3};
        CHECK(driver.feed(tokens, 1, 3).size() == 1);
    }
}
