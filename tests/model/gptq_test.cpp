// Writing of GPTQ folders: what is written is the layout by its definition and reads back as exactly the blocks it stands for.
#include "catch.h"

#include <cmath>
#include <cstring>

#include "model/gptq.h"
#include "model/model_file.h"
#include "model/packed_weights.h"
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
    [[nodiscard]] Result<OwnedTensor> read() const {
        const int64_t words = m.cols * config.bits / 32;
        const PackedTensors tensors{{m.qweight.data(), DType::i32, words, m.rows},
                                    {m.qzeros.data(), DType::i32, m.groups, m.rows * config.bits / 32},
                                    {m.scales.data(), DType::f16, m.groups, m.rows},
                                    {m.g_idx.data(), DType::i32, 1, m.cols}};
        return unpack_weights(tensors, {PackedFormat::Layout::gptq, config.bits, config.group_size, true, 1});
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
        const Result<OwnedTensor> read = packed.read();
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
        CHECK(quantize_folder(out, parent.file("again"), *gptq_format(name), {}).error().find("quantised already") != std::string::npos);
        // Whoever is told of a tensor may end the work: the folder is as empty as the next try wants it.
        const std::string ended = parent.file(std::string(name) + "-ended");
        const auto end_it = [](const QuantizedTensor&) { throw std::runtime_error("enough"); };
        CHECK_THROWS_WITH(quantize_folder(in.path(), ended, *gptq_format(name), end_it), "enough");
        CHECK(std::filesystem::is_empty(ended));
        ModelDriver driver(out, {}, {[](void*) -> uint64_t { return 0; }, nullptr}, DType::f16, 64);
        INFO(driver.error);
        REQUIRE(driver.error.empty());
        const std::vector<int32_t> tokens{1, 2, 3};
        CHECK(driver.feed(tokens, 1, 3).size() == 1);
    }
}
