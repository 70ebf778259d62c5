// See block_encoder.h. The layouts are those of GGUF; what is chosen here are the scales and the quants.
#include "model/block_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/convert.h"

namespace takt {
namespace {

constexpr int kSuper = 256;
constexpr int kCandidates = 15;   // scales tried a block: the plain one and seven steps to each side

struct Scaled {
    float scale = 0;
    float minimum = 0;   // added
};

float store_half(float v, uint8_t* out) {
    const uint16_t bits = cpu::f32_to_f16(v);
    std::memcpy(out, &bits, 2);
    return cpu::f16_to_f32(bits);
}

int nearest(float v, int low, int high) {
    // Half up in magnitude, and no call of the library: all of the encoder's time is spent here. In this order of arguments std::max
    // makes `low` of what is no number (an infinite weight over an infinite scale).
    const float bounded = std::min(std::max(static_cast<float>(low), v), static_cast<float>(high));
    return static_cast<int>(bounded + std::copysign(0.5f, bounded));
}

float quotient(float v, float scale) { return scale != 0.0f ? v / scale : 0.0f; }

/// The scale of quants in [-levels, levels - 1] with the least squared error among the candidates. The weight farthest from zero
/// lies on the side that has one level more, unless the scale must be positive.
float fit_symmetric(const float* x, int n, int levels, bool is_positive = false) {
    float farthest = *std::max_element(x, x + n, [](float a, float b) { return std::abs(a) < std::abs(b); });
    if (is_positive) farthest = -std::abs(farthest);
    if (farthest == 0.0f) return 0.0f;
    float best = farthest / static_cast<float>(-levels);
    double best_gain = -1;
    for (int k = 0; k < kCandidates; ++k) {
        const float reach = static_cast<float>(levels) + 0.1f * static_cast<float>(k - kCandidates / 2);
        const float trial = farthest / -reach;
        double products = 0, squares = 0;
        for (int i = 0; i < n; ++i) {
            const double q = nearest(x[i] / trial, -levels, levels - 1);
            products += q * static_cast<double>(x[i]);
            squares += q * q;
        }
        // With the best scale for these quants the error is what is left of the sum of squares.
        const double gain = squares > 0 ? products * products / squares : 0;
        if (gain > best_gain) {
            best_gain = gain;
            best = squares > 0 ? static_cast<float>(products / squares) : trial;
        }
    }
    return best;
}

double squared_error(const float* x, int n, int top, Scaled s) {
    double total = 0;
    for (int i = 0; i < n; ++i) {
        const int q = nearest(quotient(x[i] - s.minimum, s.scale), 0, top);
        const double e = static_cast<double>(x[i]) - (static_cast<double>(s.scale) * q + static_cast<double>(s.minimum));
        total += e * e;
    }
    return total;
}

/// The least squares line through (quant, weight) for the quants that `s` gives.
Scaled refit(const float* x, int n, int top, Scaled s) {
    double q1 = 0, q2 = 0, x1 = 0, xq = 0;
    for (int i = 0; i < n; ++i) {
        const double q = nearest(quotient(x[i] - s.minimum, s.scale), 0, top);
        q1 += q;
        q2 += q * q;
        x1 += static_cast<double>(x[i]);
        xq += q * static_cast<double>(x[i]);
    }
    const double determinant = n * q2 - q1 * q1;
    if (determinant <= 0) return s;
    return {static_cast<float>((n * xq - q1 * x1) / determinant), static_cast<float>((q2 * x1 - q1 * xq) / determinant)};
}

/// Scale and minimum of quants in [0, top]. `is_signed` false: the format can only lower the minimum.
Scaled fit_range(const float* x, int n, int top, bool is_signed) {
    const auto [low, high] = std::minmax_element(x, x + n);
    const float minimum = is_signed ? *low : std::min(*low, 0.0f);
    const float reach = (is_signed ? *high : std::max(*high, 0.0f)) - minimum;
    if (reach <= 0.0f) return {0.0f, minimum};
    Scaled best{reach / static_cast<float>(top), minimum};
    double least = squared_error(x, n, top, best);
    for (int k = 0; k < kCandidates; ++k) {
        Scaled trial{reach / (static_cast<float>(top) + 0.1f * static_cast<float>(k - kCandidates / 2)), minimum};
        trial = refit(x, n, top, trial);
        if (!is_signed && trial.minimum > 0.0f) trial.minimum = 0.0f;
        if (!(trial.scale > 0.0f)) continue;
        const double error = squared_error(x, n, top, trial);
        if (error < least) {
            least = error;
            best = trial;
        }
    }
    return best;
}

void encode_q8_0(const float* x, uint8_t* out) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
    const float d = store_half(largest / 127.0f, out);
    for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<uint8_t>(nearest(quotient(x[i], d), -127, 127));
}

void encode_q4_0(const float* x, uint8_t* out) {
    const float d = store_half(fit_symmetric(x, 32, 8), out);
    for (int i = 0; i < 16; ++i) {
        const int low = nearest(quotient(x[i], d), -8, 7) + 8;
        const int high = nearest(quotient(x[i + 16], d), -8, 7) + 8;
        out[2 + i] = static_cast<uint8_t>(low | high << 4);
    }
}

void encode_q4_1(const float* x, uint8_t* out) {
    const Scaled s = fit_range(x, 32, 15, true);
    const float d = store_half(s.scale, out);
    const float m = store_half(s.minimum, out + 2);
    for (int i = 0; i < 16; ++i) {
        const int low = nearest(quotient(x[i] - m, d), 0, 15);
        const int high = nearest(quotient(x[i + 16] - m, d), 0, 15);
        out[4 + i] = static_cast<uint8_t>(low | high << 4);
    }
}

void encode_q4_k(const float* x, uint8_t* out) {
    Scaled s[8];
    float largest_scale = 0, largest_minimum = 0;
    for (int j = 0; j < 8; ++j) {
        s[j] = fit_range(x + j * 32, 32, 15, false);
        largest_scale = std::max(largest_scale, s[j].scale);
        largest_minimum = std::max(largest_minimum, -s[j].minimum);
    }
    std::memset(out, 0, dtype_info(DType::q4_k).block_bytes);
    const float d = store_half(largest_scale / 63.0f, out);
    const float m = store_half(largest_minimum / 63.0f, out + 2);
    uint8_t* scales = out + 4;
    uint8_t* quants = out + 16;
    for (int j = 0; j < 8; ++j) {
        const int scale = nearest(quotient(s[j].scale, d), 0, 63);
        const int minimum = nearest(quotient(-s[j].minimum, m), 0, 63);
        if (j < 4) {
            scales[j] = static_cast<uint8_t>(scales[j] | scale);
            scales[j + 4] = static_cast<uint8_t>(scales[j + 4] | minimum);
        } else {
            scales[j + 4] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
            scales[j - 4] = static_cast<uint8_t>(scales[j - 4] | (scale >> 4) << 6);
            scales[j] = static_cast<uint8_t>(scales[j] | (minimum >> 4) << 6);
        }
        for (int i = 0; i < 32; ++i) {
            const float shifted = x[j * 32 + i] + m * static_cast<float>(minimum);
            const int q = nearest(quotient(shifted, d * static_cast<float>(scale)), 0, 15);
            uint8_t& byte = quants[j / 2 * 32 + i];
            byte = static_cast<uint8_t>(byte | q << (j % 2 * 4));
        }
    }
}

void encode_q6_k(const float* x, uint8_t* out) {
    float s[16];
    float largest = 0;
    for (int j = 0; j < 16; ++j) {
        s[j] = fit_symmetric(x + j * 16, 16, 32);
        largest = std::max(largest, std::abs(s[j]));
    }
    std::memset(out, 0, dtype_info(DType::q6_k).block_bytes);
    const float d = store_half(largest / 127.0f, out + 208);
    for (int j = 0; j < 16; ++j) {
        const int scale = nearest(quotient(s[j], d), -127, 127);
        out[192 + j] = static_cast<uint8_t>(scale);
        for (int i = j * 16; i < j * 16 + 16; ++i) {
            const int q = nearest(quotient(x[i], d * static_cast<float>(scale)), -32, 31) + 32;
            const int half = i / 128, part = i % 128 / 32, column = i % 32;
            uint8_t& low = out[half * 64 + part % 2 * 32 + column];
            uint8_t& high = out[128 + half * 32 + column];
            low = static_cast<uint8_t>(low | (q & 15) << (part / 2 * 4));
            high = static_cast<uint8_t>(high | (q >> 4) << (2 * part));
        }
    }
}

using Encoder = void (*)(const float*, uint8_t*);

Encoder encoder_of(DType type) {
    switch (type) {
        case DType::q8_0: return encode_q8_0;
        case DType::q4_0: return encode_q4_0;
        case DType::q4_1: return encode_q4_1;
        case DType::q4_k: return encode_q4_k;
        case DType::q6_k: return encode_q6_k;
        default: return nullptr;
    }
}

}  // namespace

float fit_symmetric_scale(const float* weights, int count, int levels) { return fit_symmetric(weights, count, levels, true); }

void encode_blocks(DType type, const float* weights, int64_t count, uint8_t* out) {
    static_assert(dtype_info(DType::q4_k).block_elements == kSuper && dtype_info(DType::q6_k).block_elements == kSuper);
    const Encoder encode = encoder_of(type);
    const DTypeInfo info = dtype_info(type);
    for (int64_t at = 0; at < count; at += info.block_elements, out += info.block_bytes) encode(weights + at, out);
}

}  // namespace takt
