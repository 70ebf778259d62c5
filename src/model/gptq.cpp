// Packing and unpacking of GPTQ matrices; see gptq.h.
#include "model/gptq.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/pack.h"
#include "model/block_encoder.h"

namespace takt {
namespace {

constexpr int64_t kBlock = 32;

int64_t group_length(const GptqConfig& c, int64_t cols) { return c.group_size < 0 ? cols : c.group_size; }
int64_t num_groups(const GptqConfig& c, int64_t cols) { return (cols + group_length(c, cols) - 1) / group_length(c, cols); }

/// Reads value `index` of a stream of `bits`-bit values over words that lie `stride` words apart.
class BitStream {
public:
    BitStream(const void* words, int64_t first, int64_t stride, int32_t bits)
        : words_(static_cast<const uint8_t*>(words)), first_(first), stride_(stride), bits_(bits) {}
    [[nodiscard]] uint32_t operator[](int64_t index) const {
        const int64_t bit = index * bits_;
        const auto shift = static_cast<int>(bit % 32);
        uint64_t value = word(bit / 32) >> shift;
        if (shift + bits_ > 32) value |= static_cast<uint64_t>(word(bit / 32 + 1)) << (32 - shift);
        return static_cast<uint32_t>(value & ((uint64_t{1} << bits_) - 1));
    }

private:
    [[nodiscard]] uint32_t word(int64_t index) const {
        uint32_t value = 0;
        std::memcpy(&value, words_ + static_cast<size_t>(first_ + index * stride_) * 4, 4);
        return value;
    }
    const uint8_t* words_;
    int64_t first_, stride_;
    int32_t bits_;
};

/// Adds value `index` to a stream that begins as zeros.
void put(std::vector<uint32_t>& words, int64_t first, int64_t stride, int32_t bits, int64_t index, uint32_t value) {
    const int64_t bit = index * bits;
    const auto shift = static_cast<int>(bit % 32);
    words[static_cast<size_t>(first + bit / 32 * stride)] |= value << shift;
    if (shift + bits > 32) words[static_cast<size_t>(first + (bit / 32 + 1) * stride)] |= value >> (32 - shift);
}

std::optional<std::string> check_shapes(const GptqTensors& t, const GptqConfig& c, int64_t rows, int64_t cols) {
    const auto shape = [](const HostTensor& x) { return std::to_string(x.rows) + " x " + std::to_string(x.cols); };
    if (t.qweight.type != DType::i32 || t.qzeros.type != DType::i32) return "qweight and qzeros: int32 expected";
    if (t.scales.type != DType::f16) return std::string("scales: ") + dtype_info(t.scales.type).name + " found, f16 expected";
    if (cols % kBlock != 0 || cols == 0 || t.qweight.rows * 32 % c.bits != 0) {
        return "qweight: " + shape(t.qweight) + " found, a whole number of 32 inputs expected";
    }
    if (rows * c.bits % 32 != 0) return "qweight: " + std::to_string(rows) + " outputs do not fill whole words of zero points";
    const int64_t groups = num_groups(c, cols);
    if (t.scales.rows != groups || t.scales.cols != rows) {
        return "scales: " + shape(t.scales) + " found, " + std::to_string(groups) + " x " + std::to_string(rows) + " expected";
    }
    if (t.qzeros.rows != groups || t.qzeros.cols != rows * c.bits / 32) {
        const std::string expected = std::to_string(groups) + " x " + std::to_string(rows * c.bits / 32);
        return "qzeros: " + shape(t.qzeros) + " found, " + expected + " expected";
    }
    if (t.g_idx.data == nullptr) return std::nullopt;
    if (t.g_idx.type != DType::i32 || t.g_idx.rows * t.g_idx.cols != cols) return "g_idx: one int32 an input expected";
    for (int64_t i = 0; i < cols; ++i) {
        int32_t group = 0;
        std::memcpy(&group, static_cast<const uint8_t*>(t.g_idx.data) + i * 4, 4);
        if (group != i / group_length(c, cols)) return "g_idx: inputs out of order (desc_act) are not available in this version";
    }
    return std::nullopt;
}

/// Files hold the zero point less one; only the middle of the range is a plain block type.
bool is_symmetric(const GptqTensors& t, const GptqConfig& c) {
    const uint32_t middle = (1u << (c.bits - 1)) - 1;
    for (int64_t g = 0; g < t.qzeros.rows; ++g) {
        const BitStream zeros(t.qzeros.data, g * t.qzeros.cols, 1, c.bits);
        for (int64_t r = 0; r < t.scales.cols; ++r) {
            if (zeros[r] != middle) return false;
        }
    }
    return true;
}

void write_block(DType type, const uint32_t* quants, int32_t bits, const uint8_t* scale, uint8_t* out) {
    std::memcpy(out, scale, 2);
    if (type == DType::q8_0) {
        for (int64_t i = 0; i < kBlock; ++i) out[2 + i] = static_cast<uint8_t>(static_cast<int>(quants[i]) - 128);
        return;
    }
    const uint32_t up = 8u - (1u << (bits - 1));   // from this range's middle to that of four bits
    for (int64_t i = 0; i < 16; ++i) out[2 + i] = static_cast<uint8_t>((quants[i] + up) | (quants[i + 16] + up) << 4);
}

}  // namespace

Result<OwnedTensor> read_gptq(const GptqTensors& t, const GptqConfig& c) {
    OwnedTensor out;
    out.rows = t.qweight.cols;
    out.cols = t.qweight.rows * 32 / c.bits;
    out.type = c.bits == 8 ? DType::q8_0 : DType::q4_0;
    if (auto wrong = check_shapes(t, c, out.rows, out.cols)) return Error{*wrong};
    if (!is_symmetric(t, c)) return Error{"qzeros: zero points off the middle are not available in this version"};
    const size_t block_bytes = dtype_info(out.type).block_bytes;
    out.bytes.resize(dtype_bytes(out.type, static_cast<size_t>(out.cols)) * static_cast<size_t>(out.rows));
    uint8_t* at = out.bytes.data();
    for (int64_t r = 0; r < out.rows; ++r) {
        const BitStream quants(t.qweight.data, r, out.rows, c.bits);
        for (int64_t begin = 0; begin < out.cols; begin += kBlock, at += block_bytes) {
            uint32_t block[kBlock];
            for (int64_t i = 0; i < kBlock; ++i) block[i] = quants[begin + i];
            const int64_t group = begin / group_length(c, out.cols);
            write_block(out.type, block, c.bits, static_cast<const uint8_t*>(t.scales.data) + (group * out.rows + r) * 2, at);
        }
    }
    return out;
}

GptqMatrix write_gptq(const HostTensor& matrix, const GptqConfig& c) {
    GptqMatrix m;
    m.rows = matrix.rows;
    m.cols = matrix.cols;
    m.groups = num_groups(c, m.cols);
    const int64_t length = group_length(c, m.cols);
    const int levels = 1 << (c.bits - 1);
    m.qweight.resize(static_cast<size_t>(m.cols * c.bits / 32 * m.rows));
    m.qzeros.resize(static_cast<size_t>(m.groups * (m.rows * c.bits / 32)));
    m.scales.resize(static_cast<size_t>(m.groups * m.rows));
    for (int64_t i = 0; i < m.cols; ++i) m.g_idx.push_back(static_cast<int32_t>(i / length));
    double errors = 0, squares = 0;
    std::vector<float> row(static_cast<size_t>(m.cols));
    for (int64_t r = 0; r < m.rows; ++r) {
        cpu::row_to_float(matrix, r, row.data());
        for (int64_t g = 0; g < m.groups; ++g) {
            const int64_t begin = g * length, end = std::min(m.cols, begin + length);
            const float fitted = fit_symmetric_scale(row.data() + begin, static_cast<int>(end - begin), levels);
            const uint16_t bits = cpu::f32_to_f16(fitted);
            const float scale = cpu::f16_to_f32(bits);
            m.scales[static_cast<size_t>(g * m.rows + r)] = bits;
            put(m.qzeros, g * (m.rows * c.bits / 32), 1, c.bits, r, static_cast<uint32_t>(levels - 1));
            for (int64_t i = begin; i < end; ++i) {
                const float x = row[static_cast<size_t>(i)];
                const float wanted = scale > 0.0f ? std::round(x / scale) : 0.0f;
                const int q = static_cast<int>(std::clamp(wanted, static_cast<float>(-levels), static_cast<float>(levels - 1)));
                put(m.qweight, r, m.rows, c.bits, i, static_cast<uint32_t>(q + levels));
                const double e = static_cast<double>(scale) * q - static_cast<double>(x);
                errors += e * e;
                squares += static_cast<double>(x) * static_cast<double>(x);
                m.largest_error = std::max(m.largest_error, std::abs(e));
            }
        }
    }
    m.relative_error = squares > 0 ? std::sqrt(errors / squares) : 0;
    return m;
}

}  // namespace takt
