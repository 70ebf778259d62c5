// Reading of packed matrices; see packed_weights.h.
#include "model/packed_weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/cpu/convert.h"

namespace takt {
namespace {

using Layout = PackedFormat::Layout;

constexpr int64_t kBlock = 32;

/// AWQ: output 8 k + i of a word of eight stands in its nibble kAwqNibble[i].
constexpr std::array<int32_t, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

uint32_t word_at(const HostTensor& t, int64_t index) {
    uint32_t value = 0;
    std::memcpy(&value, static_cast<const uint8_t*>(t.data) + static_cast<size_t>(index) * 4, 4);
    return value;
}

/// Value `index` of a stream of `bits`-bit values over words from `first`, `stride` words apart.
uint32_t stream_at(const HostTensor& t, int64_t first, int64_t stride, int32_t bits, int64_t index) {
    const int64_t bit = index * bits;
    const auto shift = static_cast<int>(bit % 32);
    uint64_t value = word_at(t, first + bit / 32 * stride) >> shift;
    if (shift + bits > 32) value |= static_cast<uint64_t>(word_at(t, first + (bit / 32 + 1) * stride)) << (32 - shift);
    return static_cast<uint32_t>(value & ((uint64_t{1} << bits) - 1));
}

/// Output `row` of line `line` of AWQ's words.
uint32_t awq_at(const HostTensor& t, int64_t line, int64_t row) {
    return word_at(t, line * t.cols + row / 8) >> (4 * kAwqNibble[static_cast<size_t>(row % 8)]) & 15;
}

float scale_at(const HostTensor& t, int64_t index) {
    const auto* bytes = static_cast<const uint8_t*>(t.data);
    if (t.type == DType::f32) {
        float value = 0;
        std::memcpy(&value, bytes + index * 4, 4);
        return value;
    }
    uint16_t half = 0;
    std::memcpy(&half, bytes + index * 2, 2);
    return t.type == DType::f16 ? cpu::f16_to_f32(half) : cpu::bf16_to_f32(half);
}

/// One matrix: its geometry, and its rows.
class PackedMatrix {
public:
    PackedMatrix(const PackedTensors& tensors, const PackedFormat& format) : t_(tensors), f_(format) {
        const HostTensor& q = t_.quants;
        switch (f_.layout) {
        case Layout::gptq:
            rows = q.cols;
            cols = q.rows * 32 / f_.bits;
            break;
        case Layout::awq:
            rows = q.cols * 8;
            cols = q.rows;
            break;
        case Layout::compressed_tensors:
            rows = q.rows;
            cols = q.type == DType::i8 ? q.cols : q.cols * 32 / f_.bits;
            break;
        }
        length_ = f_.group_size < 0 ? std::max<int64_t>(cols, 1) : f_.group_size;
        groups = (cols + length_ - 1) / length_;
    }

    [[nodiscard]] std::optional<std::string> check() const {
        const PackedNames names = packed_names(f_);
        const bool whole_bytes = f_.layout == Layout::compressed_tensors && f_.bits == 8 && t_.quants.type == DType::i8;
        if (t_.quants.type != DType::i32 && !whole_bytes) return std::string(names.quants) + ": int32 expected";
        if (cols == 0 || cols % kBlock != 0 || (f_.layout == Layout::gptq && t_.quants.rows * 32 % f_.bits != 0)) {
            return std::string(names.quants) + ": " + shape(t_.quants) + " found, a whole number of 32 inputs expected";
        }
        if (auto wrong = check_zeros(names)) return wrong;
        const bool is_float = t_.scales.type == DType::f16 || t_.scales.type == DType::bf16 || t_.scales.type == DType::f32;
        if (t_.scales.data == nullptr || !is_float) return std::string(names.scales) + ": f16, bf16 or f32 expected";
        if (auto wrong = check_shape(names.scales, t_.scales, groups, rows)) return wrong;
        return check_order(names);
    }

    [[nodiscard]] bool is_ordered() const {
        if (t_.g_idx.data == nullptr) return true;
        for (int64_t i = 0; i < cols; ++i) {
            if (group_of(i) != i / length_) return false;
        }
        return true;
    }

    [[nodiscard]] bool is_centred() const {
        if (t_.zeros.data == nullptr) return true;
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t g = 0; g < groups; ++g) {
                if (zero(r, g) != middle()) return false;
            }
        }
        return true;
    }

    [[nodiscard]] int64_t group_of(int64_t input) const {
        return t_.g_idx.data == nullptr ? input / length_ : static_cast<int64_t>(word_at(t_.g_idx, input));
    }

    [[nodiscard]] float scale(int64_t row, int64_t group) const {
        return scale_at(t_.scales, is_row_major() ? row * groups + group : group * rows + row);
    }

    [[nodiscard]] int32_t zero(int64_t row, int64_t group) const {
        if (t_.zeros.data == nullptr) return middle();
        uint32_t stored = 0;
        switch (f_.layout) {
        case Layout::gptq: stored = stream_at(t_.zeros, group * t_.zeros.cols, 1, f_.bits, row); break;
        case Layout::awq: stored = awq_at(t_.zeros, group, row); break;
        case Layout::compressed_tensors: stored = stream_at(t_.zeros, group, groups, f_.bits, row); break;
        }
        return static_cast<int32_t>(stored) + f_.zero_point_bias;
    }

    [[nodiscard]] int32_t quant(int64_t row, int64_t input) const {
        switch (f_.layout) {
        case Layout::gptq: return static_cast<int32_t>(stream_at(t_.quants, row, rows, f_.bits, input));
        case Layout::awq: return static_cast<int32_t>(awq_at(t_.quants, input, row));
        case Layout::compressed_tensors: break;
        }
        if (t_.quants.type != DType::i8) return static_cast<int32_t>(stream_at(t_.quants, row * t_.quants.cols, 1, f_.bits, input));
        return static_cast<const int8_t*>(t_.quants.data)[row * cols + input] + middle();
    }

    int64_t rows = 0, cols = 0, groups = 0;

private:
    [[nodiscard]] int32_t middle() const { return 1 << (f_.bits - 1); }
    [[nodiscard]] bool is_row_major() const { return f_.layout == Layout::compressed_tensors; }

    static std::string shape(const HostTensor& t) { return std::to_string(t.rows) + " x " + std::to_string(t.cols); }

    /// `by_group` x `by_row`, the other way about where the layout has rows first.
    [[nodiscard]] std::optional<std::string> check_shape(std::string_view name, const HostTensor& t, int64_t by_group,
                                                         int64_t by_row) const {
        const int64_t lines = is_row_major() ? by_row : by_group, columns = is_row_major() ? by_group : by_row;
        if (t.rows == lines && t.cols == columns) return std::nullopt;
        return std::string(name) + ": " + shape(t) + " found, " + std::to_string(lines) + " x " + std::to_string(columns) + " expected";
    }

    [[nodiscard]] std::optional<std::string> check_zeros(const PackedNames& names) const {
        if (t_.zeros.data == nullptr) {
            if (!f_.has_zero_points) return std::nullopt;
            return std::string(names.zeros) + " is missing";
        }
        if (t_.zeros.type != DType::i32) return std::string(names.zeros) + ": int32 expected";
        if (rows * f_.bits % 32 != 0) {
            return std::string(names.quants) + ": " + std::to_string(rows) + " outputs do not fill whole words of zero points";
        }
        return check_shape(names.zeros, t_.zeros, groups, rows * f_.bits / 32);
    }

    [[nodiscard]] std::optional<std::string> check_order(const PackedNames& names) const {
        if (t_.g_idx.data == nullptr) return std::nullopt;
        if (t_.g_idx.type != DType::i32 || t_.g_idx.rows * t_.g_idx.cols != cols) {
            return std::string(names.g_idx) + ": one int32 an input expected";
        }
        for (int64_t i = 0; i < cols; ++i) {
            if (group_of(i) >= groups) {
                return std::string(names.g_idx) + ": group " + std::to_string(group_of(i)) + " of input " + std::to_string(i) +
                       " found, there are " + std::to_string(groups);
            }
        }
        return std::nullopt;
    }

    const PackedTensors& t_;
    const PackedFormat& f_;
    int64_t length_ = 1;
};

/// 32 inputs of a row as a block of type Q4_0 or Q8_0.
void write_block(DType type, const PackedMatrix& m, int64_t row, int64_t begin, uint8_t* out) {
    const int64_t group = m.group_of(begin);
    const uint16_t scale = cpu::f32_to_f16(m.scale(row, group));
    std::memcpy(out, &scale, 2);
    const int32_t zero = m.zero(row, group);
    int32_t values[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) values[i] = m.quant(row, begin + i) - zero;
    if (type == DType::q8_0) {
        for (int64_t i = 0; i < kBlock; ++i) out[2 + i] = static_cast<uint8_t>(values[i]);
        return;
    }
    for (int64_t i = 0; i < 16; ++i) out[2 + i] = static_cast<uint8_t>((values[i] + 8) | (values[i + 16] + 8) << 4);
}

void write_halves(const PackedMatrix& m, int64_t row, int64_t begin, uint8_t* out) {
    for (int64_t i = 0; i < kBlock; ++i) {
        const int64_t group = m.group_of(begin + i);
        const auto value = static_cast<float>(m.quant(row, begin + i) - m.zero(row, group));
        const uint16_t half = cpu::f32_to_f16(value * m.scale(row, group));
        std::memcpy(out + 2 * i, &half, 2);
    }
}

}  // namespace

PackedNames packed_names(const PackedFormat& format) {
    if (format.layout != Layout::compressed_tensors) return {".qweight", ".qzeros", ".scales", ".g_idx", {}};
    return {".weight_packed", ".weight_zero_point", ".weight_scale", ".weight_g_idx", ".weight_shape"};
}

Result<OwnedTensor> unpack_weights(const PackedTensors& tensors, const PackedFormat& format) {
    const PackedMatrix m(tensors, format);
    if (auto wrong = m.check()) return Error{*wrong};
    OwnedTensor out;
    out.rows = m.rows;
    out.cols = m.cols;
    const bool is_centred = m.is_centred();
    if (!m.is_ordered() || (format.bits == 8 && !is_centred)) {
        out.type = DType::f16;
    } else {
        out.type = format.bits < 8 && is_centred ? DType::q4_0 : DType::q8_0;
    }
    const size_t row_bytes = dtype_bytes(out.type, static_cast<size_t>(out.cols));
    out.bytes.resize(row_bytes * static_cast<size_t>(out.rows));
    const size_t step = row_bytes / static_cast<size_t>(m.cols / kBlock);
    uint8_t* at = out.bytes.data();
    for (int64_t r = 0; r < m.rows; ++r) {
        for (int64_t begin = 0; begin < m.cols; begin += kBlock, at += step) {
            if (out.type == DType::f16) {
                write_halves(m, r, begin, at);
            } else {
                write_block(out.type, m, r, begin, at);
            }
        }
    }
    return out;
}

}  // namespace takt
