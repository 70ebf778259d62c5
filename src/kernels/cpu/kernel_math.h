// Elementwise inner loops over Lanes: norm, quantisation, exponentials, gates. Included by the per-ISA files after their lanes
// header; everything is in an unnamed namespace so that no ISA's code meets another's at link time.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_format.h"

// For arrays of registers: a loop over them must be written as repeat<n>, since g++ unrolls loops only after it has decided which
// arrays stay in memory.
#define TAKT_INLINE __attribute__((always_inline))

namespace takt::cpu {
namespace {

template <class F, int... i>
TAKT_LANES void repeat_each(F& body, std::integer_sequence<int, i...>) {
    (body(std::integral_constant<int, i>{}), ...);
}
/// body(0), ... body(n - 1), each with its index as a constant: array elements named by it live in registers.
template <int n, class F>
TAKT_LANES void repeat(F body) {
    repeat_each(body, std::make_integer_sequence<int, n>{});
}

constexpr float kLeastExponent = -87.0f;

/// exp(x), relative error about 2e-7; 0 below kLeastExponent. `clamped`: x, at least that and at most 88.
TAKT_LANES Lanes exp_clamped(Lanes x, Lanes clamped) {
    const Lanes n = round_nearest(clamped * broadcast(1.44269504088896341f));
    Lanes r = fma(n, broadcast(-0.693359375f), clamped);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Lanes p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r + broadcast(1.0f));
    return scale_or_zero(p, n, x, broadcast(kLeastExponent));
}

/// Of any x: above 88 exp(88), so that a masked score vanishes and nothing else overflows.
TAKT_LANES Lanes exp_lanes(Lanes x) { return exp_clamped(x, min(max(x, broadcast(kLeastExponent)), broadcast(88.0f))); }
/// Of x up to 0.
TAKT_LANES Lanes exp_negative(Lanes x) { return exp_clamped(x, max(x, broadcast(kLeastExponent))); }

/// `count` of 16 floats. Paths without masks move the parts of a vector one by one: whole ones must not pay for that.
TAKT_LANES Lanes load_part(const float* x, int count) { return count == 16 ? load(x) : load_first(x, count); }
TAKT_LANES void store_part(float* x, Lanes v, int count) {
    if (count == 16) return store(x, v);
    store_first(x, v, count);
}

float exp_one(float x) {
    float buffer[16];
    store(buffer, exp_lanes(broadcast(x)));
    return buffer[0];
}

void rms_norm(const float* x, const float* weight, float epsilon, bool one_plus, int64_t n, float* out) {
    Lanes sum = zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const Lanes v = load(x + i);
        sum = fma(v, v, sum);
    }
    const int rest = static_cast<int>(n - i);
    if (rest > 0) {
        const Lanes v = load_first(x + i, rest);
        sum = fma(v, v, sum);
    }
    const float mean = reduce_add(sum) / static_cast<float>(n);
    const Lanes scale = broadcast(1.0f / std::sqrt(mean + epsilon));
    const Lanes add = broadcast(one_plus ? 1.0f : 0.0f);
    for (i = 0; i + 16 <= n; i += 16) store(out + i, (load(x + i) * scale) * (load(weight + i) + add));
    if (rest > 0) store_first(out + i, (load_first(x + i, rest) * scale) * (load_first(weight + i, rest) + add), rest);
}

/// Columns [0, 16) of a row that has `left` more; zeros beyond them.
TAKT_LANES Lanes load_columns(const float* x, int64_t left) {
    return left >= 16 ? load(x) : left > 0 ? load_first(x, static_cast<int>(left)) : zero();
}

/// What multiplies `count` columns to make integers within `limits`, and the scale of these: 0 where all are zeros, NaN where one
/// is not finite, so that the row's logits will not be, which is detected when it is sampled.
TAKT_LANES float span_scale(const float* x, int64_t count, const IntegerLimits& limits, float& inverse) {
    Lanes most = zero();
    uint32_t broken = 0;
    float mean = 0.0f;   // the greatest of a block
    for (int64_t c = 0; c < count; c += kBlockColumns) {
        const Lanes first = load_columns(x + c, count - c), second = load_columns(x + c + 16, count - c - 16);
        broken |= mask_not_finite(first) | mask_not_finite(second);
        most = max(most, max(absolute(first), absolute(second)));
        if (limits.mean == 0) continue;
        const Lanes part = broadcast(1.0f / kBlockColumns);
        const float block = reduce_add(absolute(first) * part + absolute(second) * part);
        mean = block > mean ? block : mean;
    }
    const float largest = reduce_max(most);
    const bool usable = broken == 0 && largest > 0.0f;
    const bool by_mean = limits.mean > 0 && mean / static_cast<float>(limits.mean) > largest / static_cast<float>(limits.each);
    const float top = by_mean ? mean : largest, limit = static_cast<float>(by_mean ? limits.mean : limits.each);
    inverse = usable ? limit / top : 0.0f;
    if (broken != 0) return std::numeric_limits<float>::quiet_NaN();
    return top / limit;
}

void quantise(const float* x, int64_t cols, const IntegerLimits& limits, int span, QuantBlock* out) {
    const Lanes bound = broadcast(static_cast<float>(limits.each));
    const Lanes low = broadcast(-static_cast<float>(limits.each));
    float inverse = 0.0f, scale = 0.0f;
    for (int64_t b = 0; b < num_blocks(cols); ++b) {
        const float* p = x + b * kBlockColumns;
        const int64_t left = cols - b * kBlockColumns;
        if (b % span == 0) scale = span_scale(p, left < span * kBlockColumns ? left : span * kBlockColumns, limits, inverse);
        const Lanes first = inverse != 0.0f ? load_columns(p, left) : zero();
        const Lanes second = inverse != 0.0f ? load_columns(p + 16, left - 16) : zero();
        // Conversion rounds to the nearest.
        const Ints a = to_int(max(min(first * broadcast(inverse), bound), low));
        const Ints c = to_int(max(min(second * broadcast(inverse), bound), low));
        QuantBlock& block = out[b];
        store_quants(block, a, c);
        block.scale = scale;
    }
}

void gate(const float* g, const float* up, int n, bool gelu, float* out) {
    const Lanes one = broadcast(1.0f);
    for (int i = 0; i < n; i += 16) {
        const int count = n - i < 16 ? n - i : 16;
        const Lanes x = load_part(g + i, count);
        Lanes y;
        if (gelu) {
            const Lanes inner = broadcast(0.7978845608028654f) * fma(broadcast(0.044715f) * x * x, x, x);
            const Lanes e = exp_lanes(inner + inner);
            y = x * (one - one / (e + one));
        } else {
            y = x / (one + exp_lanes(zero() - x));
        }
        store_part(out + i, y * load_part(up + i, count), count);
    }
}

TAKT_LANES Lanes cap_lanes(Lanes x, float cap) {
    const Lanes one = broadcast(1.0f);
    const Lanes y = x * broadcast(1.0f / cap);
    const Lanes e = exp_lanes(y + y);
    return broadcast(cap) * (one - broadcast(2.0f) / (e + one));
}

void soft_cap(float* x, int64_t n, float cap) {
    for (int64_t i = 0; i < n; i += 16) {
        const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
        store_part(x + i, cap_lanes(load_part(x + i, count), cap), count);
    }
}

void add(const float* x, int n, float* into) {
    for (int i = 0; i < n; i += 16) {
        const int count = n - i < 16 ? n - i : 16;
        store_part(into + i, load_part(into + i, count) + load_part(x + i, count), count);
    }
}

void add_tile(const float* tile, int rows, int n, float* into, size_t stride) {
    for (int r = 0; r < rows; ++r, tile += kGroupRows, into += stride) {
        if (n < kGroupRows) {
            add(tile, n, into);
            continue;
        }
        store(into, load(into) + load(tile));
        store(into + 16, load(into + 16) + load(tile + 16));
    }
}

void store_kv(const float* x, int n, DType type, void* out) {
    auto* bytes = static_cast<uint8_t*>(out);
    for (int i = 0; i < n; i += 16) {
        const Lanes v = load(x + i);
        if (type == DType::f32) {
            store(reinterpret_cast<float*>(bytes) + i, v);
        } else if (type == DType::f16) {
            store_f16(bytes + 2 * i, v);
        } else {
            for (int j = 0; j < 16; ++j) {
                const uint16_t half = f32_to_bf16(x[i + j]);
                std::memcpy(bytes + 2 * (i + j), &half, 2);
            }
        }
    }
}

float quantise_kv(const float* x, int n, int8_t* out) {
    float inverse = 0.0f;
    const float scale = span_scale(x, n, IntegerLimits{127, 0}, inverse);
    const Lanes bound = broadcast(127.0f), low = broadcast(-127.0f);
    for (int i = 0; i < n; i += 16) {
        const Lanes v = inverse != 0.0f ? load(x + i) : zero();
        store_i8(out + i, to_int(max(min(round_nearest(v * broadcast(inverse)), bound), low)));
    }
    return scale;
}

int64_t argmax(const float* x, int64_t n, bool* finite) {
    uint32_t bad = 0;
    Lanes best = broadcast(-std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i < n; i += 16) {
        const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
        const Lanes v = load_part(x + i, count);
        bad |= mask_not_finite(v);
        best = max(best, count == 16 ? v : select_range(v, best, 0, count));
    }
    *finite = bad == 0;
    const float largest = reduce_max(best);
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] == largest) return i;
    }
    return 0;
}

double sum_exp(const float* x, int64_t n, float largest) {
    double total = 0;
    float buffer[16];
    for (int64_t i = 0; i < n; i += 512) {   // short float32 sums, then float64
        Lanes sum = zero();
        for (int64_t j = i; j < n && j < i + 512; j += 16) {
            const int count = n - j < 16 ? static_cast<int>(n - j) : 16;
            const Lanes e = exp_lanes(load_part(x + j, count) - broadcast(largest));
            sum = sum + (count == 16 ? e : select_range(e, zero(), 0, count));
        }
        store(buffer, sum);
        for (float v : buffer) total += static_cast<double>(v);
    }
    return total;
}

}  // namespace
}  // namespace takt::cpu
