// Quantised copies: each format's error against the float64 of what was written, tables and keys kept, and a model that still runs.
#include "catch.h"

#include <cmath>
#include <filesystem>

#include "block_values.h"
#include "model/block_encoder.h"
#include "model/gguf_files.h"
#include "model/model_file.h"
#include "model/quantize.h"
#include "synthetic_gguf.h"
#include "temporary_folder.h"

using namespace takt;
using namespace takt::test;

namespace {

constexpr DType kFormats[] = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q4_k, DType::q6_k};

/// Normal-like weights with a few that stand out, as in real matrices.
std::vector<float> sample_weights(size_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<float> out;
    for (size_t i = 0; i < count; ++i) {
        double sum = 0;
        for (int k = 0; k < 6; ++k) sum += static_cast<double>(random() >> 11) * 0x1p-53 - 0.5;
        out.push_back(static_cast<float>(0.03 * sum * (random() % 50 == 0 ? 4 : 1)));
    }
    return out;
}

double relative_error(DType type, const std::vector<float>& weights) {
    std::vector<uint8_t> bytes(dtype_bytes(type, weights.size()));
    encode_blocks(type, weights.data(), static_cast<int64_t>(weights.size()), bytes.data());
    const std::vector<double> read = weight_values(type, bytes);
    double errors = 0, squares = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        errors += (read[i] - static_cast<double>(weights[i])) * (read[i] - static_cast<double>(weights[i]));
        squares += static_cast<double>(weights[i]) * static_cast<double>(weights[i]);
    }
    return std::sqrt(errors / squares);
}

SyntheticShape float_shape() {
    SyntheticShape s;
    s.matrices = s.tables = DType::f32;
    s.hidden = s.ffn = 256;
    s.head_dim = 64;
    s.layers = 1;
    return s;
}

}  // namespace

TEST_CASE("each format's error is that of its bits") {
    const std::vector<float> weights = sample_weights(256 * 64, 3);
    const std::pair<DType, double> bounds[] = {
        {DType::q8_0, 0.008}, {DType::q6_k, 0.025}, {DType::q4_1, 0.09}, {DType::q4_k, 0.09}, {DType::q4_0, 0.11}};
    for (const auto& [type, bound] : bounds) {
        INFO(dtype_info(type).name);
        CHECK(relative_error(type, weights) < bound);
        CHECK(relative_error(type, weights) > bound / 4);   // or the bound says nothing
    }
}

TEST_CASE("weights that a format holds exactly come back exactly, and zeros as zeros") {
    for (const DType type : kFormats) {
        INFO(dtype_info(type).name);
        std::vector<float> grid(256);
        for (size_t i = 0; i < grid.size(); ++i) grid[i] = 0.25f * static_cast<float>(static_cast<int>(i * 7 % 16) - 8);
        CHECK(relative_error(type, grid) < 0.01);
        const std::vector<float> zeros(256, 0.0f);
        std::vector<uint8_t> bytes(dtype_bytes(type, 256), 0xFF);
        encode_blocks(type, zeros.data(), 256, bytes.data());
        for (const double v : weight_values(type, bytes)) REQUIRE(v == 0);
    }
}

TEST_CASE("a copy keeps keys and vectors, converts matrices, and reports each tensor's error") {
    const SyntheticModel model(float_shape());
    const TemporaryFolder folder;
    const std::string in = folder.write("in.gguf", synthetic_gguf(model));
    for (const DType format : kFormats) {
        const std::string out = folder.file("out.gguf");
        std::vector<QuantizedTensor> report;
        const auto totals = quantize_gguf(in, out, format, [&](const QuantizedTensor& t) { report.push_back(t); });
        INFO((totals ? "" : totals.error()));
        REQUIRE(totals.ok());
        CHECK(report.size() == model.tensors().size());
        CHECK(totals.value().bytes_out < totals.value().bytes_in / 3);
        const auto opened = ModelFile::open(out);
        INFO((opened ? "" : opened.error()));
        REQUIRE(opened.ok());
        CHECK(opened.value()->tensor_bytes() == totals.value().bytes_out);
        CHECK(opened.value()->tokenizer_spec().value().tokens == SyntheticModel::tokens());
        const LayerTensors& layer = opened.value()->tensors().layers[0];
        CHECK(layer.down.type == format);
        CHECK(layer.mlp_norm.type == DType::f32);
        const SyntheticTensor& down = model.tensor("model.layers.0.mlp.down_proj.weight");
        const auto* data = static_cast<const uint8_t*>(layer.down.data);
        const std::vector<uint8_t> bytes(data, data + layer.down.bytes());
        const std::vector<double> read = weight_values(format, bytes);
        double errors = 0, squares = 0;
        for (size_t i = 0; i < read.size(); ++i) {
            errors += (read[i] - down.values[i]) * (read[i] - down.values[i]);
            squares += down.values[i] * down.values[i];
        }
        for (const QuantizedTensor& t : report) {
            if (t.name == "blk.0.ffn_down.weight") CHECK(std::abs(t.relative_error - std::sqrt(errors / squares)) < 1e-4);
            if (t.name == "blk.0.ffn_norm.weight") CHECK(t.to == DType::f32);
        }
        CHECK(!std::filesystem::exists(out + ".partial"));
    }
}

TEST_CASE("rows that are no whole 256-block take the stand-in, and split models become one file") {
    SyntheticShape shape = float_shape();
    shape.hidden = 96;
    const SyntheticModel model(shape);
    const TemporaryFolder folder;
    const auto parts = synthetic_gguf_parts(model, 2);
    folder.write("m-00002-of-00002.gguf", parts[1]);
    const std::string in = folder.write("m-00001-of-00002.gguf", parts[0]);
    const std::string out = folder.file("out.gguf");
    REQUIRE(quantize_gguf(in, out, DType::q4_k, {}).ok());
    const auto opened = ModelFile::open(out);
    INFO((opened ? "" : opened.error()));
    REQUIRE(opened.ok());
    CHECK(opened.value()->tensors().layers[0].q.type == DType::q4_1);      // rows of 96
    CHECK(opened.value()->tensors().layers[0].down.type == DType::q4_k);   // rows of 256
    CHECK(opened.value()->tensors().head.type == DType::q8_0);
}

TEST_CASE("whoever is told of a tensor may end the work, and nothing of it is left") {
    const TemporaryFolder folder;
    const std::string in = folder.write("in.gguf", synthetic_gguf(SyntheticModel(float_shape())));
    const std::string out = folder.file("out.gguf");
    int told = 0;
    const auto end_it = [&](const QuantizedTensor&) {
        CHECK(std::filesystem::exists(out + ".partial"));
        if (++told == 3) throw std::runtime_error("enough");
    };
    CHECK_THROWS_WITH(quantize_gguf(in, out, DType::q8_0, end_it), "enough");
    CHECK(told == 3);
    CHECK_FALSE(std::filesystem::exists(out));
    CHECK_FALSE(std::filesystem::exists(out + ".partial"));
}

TEST_CASE("an unknown format and a path that cannot be written are refused") {
    CHECK(quantize_format("q4_k").value() == DType::q4_k);
    CHECK(quantize_format("q2_k").error() ==
          "format \"q2_k\" is not available in this version (q8_0, q4_0, q4_1, q4_k, q6_k, w8, w4g128, w3g128 are)");
    const TemporaryFolder folder;
    const std::string in = folder.write("in.gguf", synthetic_gguf(SyntheticModel(float_shape())));
    CHECK(quantize_gguf(in, folder.file("absent/out.gguf"), DType::q8_0, {}).error().find("absent/out.gguf: cannot be written") !=
          std::string::npos);
    // Not even under another name of the same file.
    const std::string other = folder.file("link.gguf");
    std::filesystem::create_symlink(in, other);
    const auto size = std::filesystem::file_size(in);
    for (const std::string& same : {in, other}) {
        CHECK(quantize_gguf(in, same, DType::q8_0, {}).error().find("the file that is read") != std::string::npos);
        CHECK(std::filesystem::file_size(in) == size);
        CHECK_FALSE(std::filesystem::exists(same + ".partial"));
    }
    CHECK(quantize_gguf(folder.file("gone.gguf"), folder.file("out.gguf"), DType::q8_0, {}).error().find("cannot be opened") !=
          std::string::npos);
}
