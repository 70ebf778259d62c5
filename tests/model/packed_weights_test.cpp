// Packed weights of folders: each layout, packed here by its definition, reads as (quant - zero point) * scale in the type that holds it
// exactly; what takt does not know is refused by name; a folder of each kind gives the answers of its float32 model.
#include "catch.h"

#include <cmath>
#include <cstring>
#include <functional>

#include "model/model_file.h"
#include "model/packed_weights.h"
#include "logit_rules.h"
#include "synthetic_folder.h"

using namespace takt;
using namespace takt::test;

namespace {

using Layout = PackedFormat::Layout;

constexpr int64_t kRows = 64, kCols = 96;

uint16_t half_of(double value) {   // exact for the scales used here: multiples of 2^-10 below 1
    const auto steps = static_cast<int>(value * 1024);
    int exponent = 0, mantissa = steps;
    while (mantissa < 1024) mantissa *= 2, --exponent;
    return static_cast<uint16_t>((exponent + 15) << 10 | (mantissa & 1023));
}

/// A matrix of quants, and its parts as a file of `format` would hold them.
class Packed {
public:
    Packed(PackedFormat format, uint64_t seed, int64_t rows = kRows, int64_t cols = kCols) : format_(format), rows_(rows), cols_(cols) {
        std::mt19937_64 random(seed);
        length_ = format.group_size < 0 ? cols : format.group_size;
        groups_ = (cols + length_ - 1) / length_;
        const int32_t range = 1 << format.bits;
        for (int64_t i = 0; i < rows * cols; ++i) quants_.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(range)));
        for (int64_t i = 0; i < rows * groups_; ++i) {
            const bool anywhere = format.layout == Layout::awq || (format.layout == Layout::compressed_tensors && format.has_zero_points);
            zeros_.push_back(anywhere ? static_cast<int32_t>(random() % static_cast<uint64_t>(range)) : range / 2);
            scales_.push_back(static_cast<double>(1 + random() % 60) / 1024);
        }
        for (int64_t i = 0; i < cols; ++i) order_.push_back(static_cast<int32_t>(i / length_));
    }

    std::vector<int32_t>& order() { return order_; }
    int32_t& zero(int64_t row, int64_t group) { return zeros_[static_cast<size_t>(row * groups_ + group)]; }

    [[nodiscard]] double value(int64_t row, int64_t input) const {
        const auto group = static_cast<size_t>(row * groups_ + order_[static_cast<size_t>(input)]);
        return scales_[group] * (quants_[static_cast<size_t>(row * cols_ + input)] - zeros_[group]);
    }

    /// The parts, written into `this`; valid until the next call.
    PackedTensors tensors(bool with_order = true) {
        const auto quant = [&](int64_t r, int64_t i) { return static_cast<uint32_t>(quants_[static_cast<size_t>(r * cols_ + i)]); };
        const auto zero = [&](int64_t r, int64_t g) {
            return static_cast<uint32_t>(zeros_[static_cast<size_t>(r * groups_ + g)] - format_.zero_point_bias);
        };
        words_.clear();
        zero_words_.clear();
        halves_.clear();
        PackedTensors t;
        const bool rows_first = format_.layout == Layout::compressed_tensors;
        if (format_.layout == Layout::gptq) {
            words_ = down_columns(cols_, rows_, [&](int64_t i, int64_t r) { return quant(r, i); });
            t.quants = {words_.data(), DType::i32, cols_ * format_.bits / 32, rows_};
            zero_words_ = along_rows(groups_, rows_, [&](int64_t g, int64_t r) { return zero(r, g); });
        } else if (format_.layout == Layout::awq) {
            words_ = awq(cols_, [&](int64_t i, int64_t r) { return quant(r, i); });
            t.quants = {words_.data(), DType::i32, cols_, rows_ / 8};
            zero_words_ = awq(groups_, [&](int64_t g, int64_t r) { return zero(r, g); });
        } else {
            words_ = along_rows(rows_, cols_, quant);
            t.quants = {words_.data(), DType::i32, rows_, cols_ * format_.bits / 32};
            zero_words_ = down_columns(rows_, groups_, zero);
        }
        const int64_t line = rows_ * format_.bits / 32;
        t.zeros = {zero_words_.data(), DType::i32, rows_first ? line : groups_, rows_first ? groups_ : line};
        if (!format_.has_zero_points) t.zeros = {};
        for (int64_t i = 0; i < rows_ * groups_; ++i) {
            const int64_t r = rows_first ? i / groups_ : i % rows_, g = rows_first ? i % groups_ : i / rows_;
            halves_.push_back(half_of(scales_[static_cast<size_t>(r * groups_ + g)]));
        }
        t.scales = {halves_.data(), DType::f16, rows_first ? rows_ : groups_, rows_first ? groups_ : rows_};
        if (with_order) t.g_idx = {order_.data(), DType::i32, 1, cols_};
        return t;
    }

private:
    using Value = std::function<uint32_t(int64_t line, int64_t column)>;

    void put(std::vector<uint32_t>& words, int64_t first, int64_t stride, int64_t index, uint32_t value) const {
        for (int b = 0; b < format_.bits; ++b) {
            const int64_t bit = index * format_.bits + b;
            words[static_cast<size_t>(first + bit / 32 * stride)] |= (value >> b & 1u) << (bit % 32);
        }
    }
    [[nodiscard]] std::vector<uint32_t> along_rows(int64_t lines, int64_t columns, const Value& value) const {
        const int64_t width = columns * format_.bits / 32;
        std::vector<uint32_t> words(static_cast<size_t>(lines * width));
        for (int64_t l = 0; l < lines; ++l) {
            for (int64_t c = 0; c < columns; ++c) put(words, l * width, 1, c, value(l, c));
        }
        return words;
    }
    [[nodiscard]] std::vector<uint32_t> down_columns(int64_t lines, int64_t columns, const Value& value) const {
        std::vector<uint32_t> words(static_cast<size_t>(lines * format_.bits / 32 * columns));
        for (int64_t c = 0; c < columns; ++c) {
            for (int64_t l = 0; l < lines; ++l) put(words, c, columns, l, value(l, c));
        }
        return words;
    }
    /// Nibble i of a word of eight outputs holds output order[i].
    [[nodiscard]] std::vector<uint32_t> awq(int64_t lines, const Value& value) const {
        constexpr int64_t order[] = {0, 2, 4, 6, 1, 3, 5, 7};
        std::vector<uint32_t> words;
        for (int64_t l = 0; l < lines; ++l) {
            for (int64_t c = 0; c < rows_ / 8; ++c) {
                uint32_t word = 0;
                for (int i = 0; i < 8; ++i) word |= value(l, c * 8 + order[i]) << (4 * i);
                words.push_back(word);
            }
        }
        return words;
    }

    PackedFormat format_;
    int64_t rows_, cols_, groups_ = 0, length_ = 0;
    std::vector<int32_t> quants_, zeros_, order_;
    std::vector<double> scales_;
    std::vector<uint32_t> words_, zero_words_;
    std::vector<uint16_t> halves_;
};

/// The model with every layer's matrix replaced by a random one, as a packed file and as what that spells out.
struct PackedModel {
    std::vector<uint8_t> file;
    std::vector<SyntheticTensor> plain;
};

/// float32; other tensors as they are.
SyntheticTensor spelled_out(const SyntheticTensor& t, const Packed& packed) {
    SyntheticTensor out = t;
    out.type = DType::f32;
    out.bytes.clear();
    for (int64_t r = 0; r < t.rows; ++r) {
        for (int64_t i = 0; i < t.cols; ++i) {
            const auto value = static_cast<float>(packed.value(r, i));
            const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
            out.bytes.insert(out.bytes.end(), bytes, bytes + sizeof value);
        }
    }
    return out;
}

PackedModel packed_model(const SyntheticModel& model, const PackedFormat& format) {
    PackedModel out;
    json::object header;
    std::vector<uint8_t> data;
    const auto add = [&](const std::string& name, const char* type, const json::array& shape, const HostTensor& t) {
        const size_t begin = data.size();
        const auto* bytes = static_cast<const uint8_t*>(t.data);
        data.insert(data.end(), bytes, bytes + t.bytes());
        header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    };
    const PackedNames names = packed_names(format);
    uint64_t seed = 0;
    for (const SyntheticTensor& t : model.tensors()) {
        if (!t.name.ends_with("_proj.weight")) {
            const HostTensor whole{t.bytes.data(), t.type, t.is_vector ? 1 : t.rows, t.cols};
            add(t.name, "BF16", t.is_vector ? json::array{t.cols} : json::array{t.rows, t.cols}, whole);
            out.plain.push_back(t);
            continue;
        }
        const std::string stem = t.name.substr(0, t.name.size() - std::string(".weight").size());
        Packed packed(format, ++seed, t.rows, t.cols);
        out.plain.push_back(spelled_out(t, packed));
        const PackedTensors parts = packed.tensors();
        const auto add_part = [&](std::string_view suffix, const char* type, const HostTensor& part) {
            if (part.data != nullptr) add(stem + std::string(suffix), type, {part.rows, part.cols}, part);
        };
        add_part(names.quants, "I32", parts.quants);
        add_part(names.zeros, "I32", parts.zeros);
        add_part(names.scales, "F16", parts.scales);
        if (names.shape.empty()) continue;
        const int64_t whole[2] = {t.rows, t.cols};
        add(stem + std::string(names.shape), "I64", {2}, {whole, DType::i32, 1, 4});
    }
    out.file = safetensors_bytes(json::serialize(header), data);
    return out;
}

json::object quantization_config(const PackedFormat& format) {
    const auto group = format.group_size;
    switch (format.layout) {
        case Layout::gptq: return {{"quant_method", "gptq"}, {"bits", format.bits}, {"group_size", group}, {"desc_act", false}};
        case Layout::awq: return {{"quant_method", "awq"}, {"bits", format.bits}, {"group_size", group}};
        case Layout::compressed_tensors: break;
    }
    const json::object weights{{"num_bits", format.bits}, {"group_size", group}};
    return {{"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"config_groups", {{"group_0", {{"weights", weights}}}}}};
}

constexpr PackedFormat kGptq{Layout::gptq, 4, 32, true, 1}, kAwq{Layout::awq, 4, 32, true, 0},
    kCompressed{Layout::compressed_tensors, 4, 32, false, 0};

void check_values(const PackedFormat& format, DType type, double tolerance, const std::function<void(Packed&)>& change = {}) {
    Packed packed(format, 7);
    if (change) change(packed);
    const Result<OwnedTensor> read = unpack_weights(packed.tensors(), format);
    INFO((read ? "" : read.error()));
    REQUIRE(read.ok());
    CHECK(read.value().type == type);
    CHECK(read.value().rows == kRows);
    const std::vector<double> values = weight_values(type, read.value().bytes);
    REQUIRE(values.size() == static_cast<size_t>(kRows * kCols));
    for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < kCols; ++i) {
            const double found = values[static_cast<size_t>(r * kCols + i)], expected = packed.value(r, i);
            if (std::abs(found - expected) > tolerance * std::abs(expected)) FAIL("row " << r << ", input " << i << ": " << found);
        }
    }
}

}  // namespace

TEST_CASE("each layout reads as (quant - zero point) * scale") {
    const double rounded = 1.0 / 2048;
    SECTION("GPTQ of four bits") { check_values(kGptq, DType::q4_0, 0); }
    SECTION("GPTQ of three bits, groups of 64") { check_values({Layout::gptq, 3, 64, true, 1}, DType::q4_0, 0); }
    SECTION("GPTQ of eight bits, one group") { check_values({Layout::gptq, 8, -1, true, 1}, DType::q8_0, 0); }
    SECTION("GPTQ of the second checkpoint format") { check_values({Layout::gptq, 4, 32, true, 0}, DType::q4_0, 0); }
    SECTION("GPTQ with zero points anywhere") {
        check_values(kGptq, DType::q8_0, 0, [](Packed& p) { p.zero(3, 1) = 1, p.zero(4, 0) = 15; });
    }
    SECTION("GPTQ of eight bits with zero points anywhere") {
        check_values({Layout::gptq, 8, 32, true, 1}, DType::f16, rounded, [](Packed& p) { p.zero(3, 1) = 9; });
    }
    SECTION("GPTQ with inputs out of order") {
        check_values(kGptq, DType::f16, rounded, [](Packed& p) {
            std::mt19937_64 random(9);
            std::shuffle(p.order().begin(), p.order().end(), random);
        });
    }
    SECTION("AWQ") { check_values(kAwq, DType::q8_0, 0); }
    SECTION("compressed-tensors of four bits") { check_values(kCompressed, DType::q4_0, 0); }
    SECTION("compressed-tensors of eight bits, one group") { check_values({Layout::compressed_tensors, 8, -1, false, 0}, DType::q8_0, 0); }
    SECTION("compressed-tensors with zero points") { check_values({Layout::compressed_tensors, 4, 32, true, 0}, DType::q8_0, 0); }
}

TEST_CASE("whole bytes and scales of other types") {
    std::vector<int8_t> quants(64 * 32);
    for (size_t i = 0; i < quants.size(); ++i) quants[i] = static_cast<int8_t>(i * 7 % 255 - 127);
    std::vector<float> scales(64, 0.25f);
    const PackedFormat format{Layout::compressed_tensors, 8, -1, false, 0};
    const PackedTensors tensors{{quants.data(), DType::i8, 64, 32}, {}, {scales.data(), DType::f32, 64, 1}, {}};
    const Result<OwnedTensor> read = unpack_weights(tensors, format);
    REQUIRE(read.ok());
    const std::vector<double> values = weight_values(read.value().type, read.value().bytes);
    for (size_t i = 0; i < quants.size(); ++i) REQUIRE(values[i] == 0.25 * quants[i]);
}

TEST_CASE("wrong shapes and parts are refused in words") {
    const auto error = [&](const PackedFormat& format, const std::function<void(Packed&, PackedTensors&)>& change) {
        Packed packed(format, 6);
        PackedTensors tensors = packed.tensors();
        change(packed, tensors);
        const auto read = unpack_weights(tensors, format);
        return read ? std::string("read") : read.error();
    };
    CHECK(error(kGptq, [](Packed&, PackedTensors& t) { t.g_idx = {}; }) == "read");
    CHECK(error(kGptq, [](Packed&, PackedTensors& t) { t.scales.rows = 2; }) == ".scales: 2 x 64 found, 3 x 64 expected");
    CHECK(error(kGptq, [](Packed&, PackedTensors& t) { t.zeros.cols = 7; }) == ".qzeros: 3 x 7 found, 3 x 8 expected");
    CHECK(error(kGptq, [](Packed&, PackedTensors& t) { t.zeros = {}; }) == ".qzeros is missing");
    CHECK(error(kGptq, [](Packed&, PackedTensors& t) { t.quants.type = DType::f32; }) == ".qweight: int32 expected");
    CHECK(error(kGptq, [](Packed&, PackedTensors& t) { t.scales.type = DType::i32; }) == ".scales: f16, bf16 or f32 expected");
    CHECK(error(kGptq, [](Packed&, PackedTensors& t) { t.quants.rows = 11; }).find("a whole number of 32 inputs") != std::string::npos);
    CHECK(error(kGptq, [](Packed& p, PackedTensors&) { p.order()[5] = 3; }) == ".g_idx: group 3 of input 5 found, there are 3");
    CHECK(error(kGptq, [](Packed& p, PackedTensors&) { p.order()[5] = -1; }).find(".g_idx: group") == 0);
    CHECK(error(kAwq, [](Packed&, PackedTensors& t) { t.scales.cols = 8; }) == ".scales: 3 x 8 found, 3 x 64 expected");
    CHECK(error(kCompressed, [](Packed&, PackedTensors& t) { t.scales.rows = 8; }) == ".weight_scale: 8 x 3 found, 64 x 3 expected");
}

TEST_CASE("a folder's quantization_config is taken or refused by name") {
    const auto parsed = [](const json::object& q) {
        const auto found = parse_packed_format(json::serialize(json::object{{"quantization_config", q}}));
        if (!found) return found.error();
        const PackedFormat& f = found.value().value();
        return std::to_string(static_cast<int>(f.layout)) + ": " + std::to_string(f.bits) + "/" + std::to_string(f.group_size) + " " +
               std::to_string(f.has_zero_points) + std::to_string(f.zero_point_bias);
    };
    CHECK(!parse_packed_format("{}").value());
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}}) == "0: 4/128 11");
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 8}, {"sym", false}, {"desc_act", true}}) == "0: 8/-1 11");
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "gptq_v2"}}) == "0: 4/-1 10");
    CHECK(parsed({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "gemm"}}) == "1: 4/128 10");
    const auto compressed = [](const json::object& weights, const char* format = "pack-quantized") {
        return json::object{{"quant_method", "compressed-tensors"},
                            {"format", format},
                            {"config_groups", {{"group_0", {{"weights", weights}, {"targets", {"Linear"}}}}}}};
    };
    CHECK(parsed(compressed({{"num_bits", 4}, {"group_size", 128}, {"strategy", "group"}})) == "2: 4/128 00");
    CHECK(parsed(compressed({{"num_bits", 8}, {"strategy", "channel"}}, "int-quantized")) == "2: 8/-1 00");
    CHECK(parsed(compressed({{"num_bits", 4}, {"group_size", 64}, {"symmetric", false}})) == "2: 4/64 10");

    CHECK(parsed({{"quant_method", "fp8"}}) ==
          "key \"quantization_config.quant_method\": \"fp8\" is not available in this version (gptq, awq and compressed-tensors are)");
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 2}}) == "key \"quantization_config.bits\": 2 found, 3, 4 or 8 expected");
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 48}}).find("48 found, -1 or a multiple") < 60);
    CHECK(parsed({{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}).find("marlin") != std::string::npos);
    CHECK(parsed({{"quant_method", "awq"}, {"bits", 8}}).find("quantization_config.bits") != std::string::npos);
    CHECK(parsed({{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}).find("\"gemv\" is not available") != std::string::npos);
    CHECK(parsed(compressed({{"num_bits", 8}, {"type", "float"}}, "float-quantized")).find("float-quantized") != std::string::npos);
    CHECK(parsed(compressed({{"num_bits", 8}, {"strategy", "tensor"}})).find("weights.strategy\": \"tensor\"") != std::string::npos);
    json::object cache = compressed({{"num_bits", 8}});
    cache["kv_cache_scheme"] = json::object{{"num_bits", 8}};
    CHECK(parsed(cache).find("kv_cache_scheme") != std::string::npos);
    json::object turned = compressed({{"num_bits", 8}});
    turned["transform_config"] = json::object{{"config_groups", json::object{{"R1", 1}}}};
    CHECK(parsed(turned).find("transform_config") != std::string::npos);
}

TEST_CASE("folders in each packed layout give the answers of their dequantised float32 models") {
    SyntheticShape shape;
    shape.architecture = "qwen2";
    shape.matrices = shape.tables = shape.vectors = DType::bf16;
    const SyntheticModel model(shape);
    const std::pair<PackedFormat, DType> cases[] = {{kGptq, DType::q4_0}, {{Layout::gptq, 8, 32, true, 1}, DType::q8_0},
                                                    {kAwq, DType::q8_0}, {kCompressed, DType::q4_0}};
    for (const auto& [format, type] : cases) {
        INFO(packed_names(format).quants << ", " << format.bits << " bits");
        const TemporaryFolder folder, plain;
        const PackedModel packed = packed_model(model, format);
        write_folder(model, folder);
        write_folder(model, plain);
        json::object config = folder_config(model.shape());
        config["quantization_config"] = quantization_config(format);
        folder.write("config.json", json::serialize(config));
        folder.write("model.safetensors", packed.file);
        plain.write("model.safetensors", safetensors_of(packed.plain));
        const auto opened = ModelFile::open(folder.path());
        INFO((opened ? "" : opened.error()));
        REQUIRE(opened.ok());
        CHECK(opened.value()->tensors().layers[0].down.type == type);
        std::vector<int32_t> tokens;
        for (int32_t i = 0; i < 60; ++i) tokens.push_back(i * 37 % kSyntheticTokens);
        const std::vector<SampleResult> expected = answers(plain.path(), kFloat32Rule, tokens, kSyntheticTokens, 20);
        for (const LogitRule& rule : {kFloat32Rule, LogitRule{"int16", CpuArithmetic::int16, DType::f32, 0.02, 0.01}}) {
            compare_answers(answers(folder.path(), rule, tokens, kSyntheticTokens, 20), expected, rule);
        }
    }
}
