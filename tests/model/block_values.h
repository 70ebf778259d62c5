// The quantised block formats of GGUF written and read plainly for tests: random blocks of a wanted spread, and their weights in
// float64 from the format's definition. Shares no code with the reader and the kernels under test. Test code only; pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/dtype.h"

namespace takt::test {

inline uint16_t half_bits(double v) {   // normal numbers only; rounds towards zero
    const auto f = static_cast<float>(v);
    uint32_t bits = 0;
    std::memcpy(&bits, &f, 4);
    const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xFF) - 127 + 15;
    const uint32_t sign = bits >> 16 & 0x8000;
    if (exponent <= 0) return static_cast<uint16_t>(sign);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3FF));
}

inline double half_value(const uint8_t* p) {
    const uint32_t bits = static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8;
    const double mantissa = bits & 0x3FF;
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
}

/// Where a block's float16 scale and minimum stand (-1: none), and what they must be times the wanted deviation. All quants and
/// sub-scales are random bits, so the factors follow from their spread; minimums centre the weights.
struct BlockShape {
    size_t scale_at = 0;
    int minimum_at = -1;
    double scale = 0;
    double minimum = 0;   // times the scale
};

inline BlockShape block_shape(DType type) {
    switch (type) {
        case DType::q4_0: return {0, -1, 1 / 4.6, 0};
        case DType::q4_1: return {0, 2, 1 / 4.6, -7.5};
        case DType::q5_0: return {0, -1, 1 / 9.2, 0};
        case DType::q5_1: return {0, 2, 1 / 9.2, -15.5};
        case DType::q8_0: return {0, -1, 1 / 73.9, 0};
        case DType::q2_k: return {80, 82, 1 / 12.0, 1.5};
        case DType::q3_k: return {108, -1, 1 / 42.0, 0};
        case DType::q4_k: return {0, 2, 1 / 260.0, 7.5};
        case DType::q5_k: return {0, 2, 1 / 520.0, 15.5};
        case DType::q6_k: return {208, -1, 1 / 1360.0, 0};
        default: return {};
    }
}

/// Bytes of `count` weights (whole blocks) of a standard deviation of about `deviation`.
inline std::vector<uint8_t> random_weights(DType type, size_t count, double deviation, std::mt19937_64& random, double mean = 0) {
    std::vector<uint8_t> bytes(dtype_bytes(type, count));
    if (dtype_info(type).block_elements == 1) {
        for (size_t i = 0; i < count; ++i) {
            const double unit = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
            const auto f = static_cast<float>(mean + unit * std::sqrt(3.0) * deviation);
            uint32_t bits = 0;
            std::memcpy(&bits, &f, 4);
            const auto half = type == DType::f16 ? half_bits(static_cast<double>(f)) : static_cast<uint16_t>(bits >> 16);
            if (type == DType::f32) std::memcpy(bytes.data() + 4 * i, &f, 4);
            if (type != DType::f32) std::memcpy(bytes.data() + 2 * i, &half, 2);
        }
        return bytes;
    }
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    const BlockShape shape = block_shape(type);
    for (size_t at = 0; at < bytes.size(); at += dtype_info(type).block_bytes) {
        const double scale = deviation * shape.scale * (0.5 + static_cast<double>(random() >> 11) * 0x1p-53);
        const uint16_t d = half_bits(scale), m = half_bits(scale * shape.minimum);
        std::memcpy(bytes.data() + at + shape.scale_at, &d, 2);
        if (shape.minimum_at >= 0) std::memcpy(bytes.data() + at + static_cast<size_t>(shape.minimum_at), &m, 2);
    }
    return bytes;
}

/// The six-bit scale and minimum of sub-block j of a Q4_K or Q5_K block.
inline void packed_scale(const uint8_t* s, int j, int& scale, int& minimum) {
    scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    minimum = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6) << 4;
}

/// Weight i (0 to 255) of a K-type block.
inline double k_block_value(DType type, const uint8_t* b, int i) {
    const int half = i / 128, in_half = i % 128, pair = in_half / 32, column = in_half % 32;
    if (type == DType::q2_k) {
        const uint8_t scale = b[i / 16];
        const int q = b[16 + half * 32 + column] >> (2 * pair) & 3;
        return half_value(b + 80) * (scale & 15) * q - half_value(b + 82) * (scale >> 4);
    }
    if (type == DType::q3_k) {
        const int low = b[32 + half * 32 + column] >> (2 * pair) & 3;
        const int high = b[column] >> (half * 4 + pair) & 1;
        const int j = i / 16;
        const int scale = (j < 8 ? b[96 + j] & 15 : b[96 + j - 8] >> 4) | (b[104 + j % 4] >> (2 * (j / 4)) & 3) << 4;
        return half_value(b + 108) * (scale - 32) * (low + 4 * high - 4);
    }
    if (type == DType::q6_k) {
        const int low = b[half * 64 + pair % 2 * 32 + column] >> (pair / 2 * 4) & 15;
        const int high = b[128 + half * 32 + column] >> (2 * pair) & 3;
        return half_value(b + 208) * static_cast<int8_t>(b[192 + i / 16]) * ((low | high << 4) - 32);
    }
    const int j = i / 32;
    int scale = 0, minimum = 0;
    packed_scale(b + 4, j, scale, minimum);
    const uint8_t* quants = b + (type == DType::q4_k ? 16 : 48);
    int q = quants[j / 2 * 32 + column] >> (j % 2 * 4) & 15;
    if (type == DType::q5_k) q |= (b[16 + column] >> j & 1) << 4;
    return half_value(b) * scale * q - half_value(b + 2) * minimum;
}

/// Weight i (0 to 31) of a block of 32.
inline double block_value(DType type, const uint8_t* b, int i) {
    if (type == DType::q8_0) return half_value(b) * static_cast<int8_t>(b[2 + i]);
    const bool has_minimum = type == DType::q4_1 || type == DType::q5_1;
    const bool has_high = type == DType::q5_0 || type == DType::q5_1;
    const uint8_t* high = b + (has_minimum ? 4 : 2);
    const uint8_t* quants = high + (has_high ? 4 : 0);
    int q = quants[i % 16] >> (i / 16 * 4) & 15;
    if (has_high) q |= (high[i / 8] >> (i % 8) & 1) << 4;
    if (has_minimum) return half_value(b) * q + half_value(b + 2);
    return half_value(b) * (q - (has_high ? 16 : 8));
}

inline std::vector<double> weight_values(DType type, const std::vector<uint8_t>& bytes) {
    const DTypeInfo info = dtype_info(type);
    std::vector<double> out;
    for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
        const uint8_t* b = bytes.data() + at;
        if (type == DType::f16) {
            out.push_back(half_value(b));
        } else if (info.block_elements == 1) {
            uint8_t bits[4] = {};
            float value = 0;
            std::memcpy(bits + 4 - info.block_bytes, b, info.block_bytes);   // bf16: the upper half of a float
            std::memcpy(&value, bits, 4);
            out.push_back(static_cast<double>(value));
        } else {
            for (int i = 0; i < static_cast<int>(info.block_elements); ++i) {
                out.push_back(info.block_elements == 32 ? block_value(type, b, i) : k_block_value(type, b, i));
            }
        }
    }
    return out;
}

}  // namespace takt::test
