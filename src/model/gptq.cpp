// Packing of GPTQ matrices; see gptq.h.
#include "model/gptq.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/pack.h"
#include "model/block_encoder.h"

namespace takt {
namespace {

int64_t group_length(const GptqConfig& c, int64_t cols) { return c.group_size < 0 ? cols : c.group_size; }
int64_t num_groups(const GptqConfig& c, int64_t cols) { return (cols + group_length(c, cols) - 1) / group_length(c, cols); }

/// Adds value `index` to a stream that begins as zeros.
void put(std::vector<uint32_t>& words, int64_t first, int64_t stride, int32_t bits, int64_t index, uint32_t value) {
    const int64_t bit = index * bits;
    const auto shift = static_cast<int>(bit % 32);
    words[static_cast<size_t>(first + bit / 32 * stride)] |= value << shift;
    if (shift + bits > 32) words[static_cast<size_t>(first + (bit / 32 + 1) * stride)] |= value >> (32 - shift);
}

}  // namespace

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
