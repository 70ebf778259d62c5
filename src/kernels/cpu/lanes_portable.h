// Lanes: 16 float32 in an array, and Ints: 16 int32, in plain C++. Included by the portable kernel file only; same names and
// same bits as the AVX2 and AVX-512 versions. The order of the loops is the order of the lanes.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernel_table.h"

namespace takt::cpu {
namespace {

#define TAKT_LANES inline

constexpr int kStripsPerPass = 1;
constexpr int kMaxTileRows = 2;

// Attention: queries at once, vectors of 16 positions and of 16 dimensions at once; the accumulators are their products.
constexpr int kQueriesPerPass = 1;
constexpr int kDirectQueries = kQueriesPerPass;   // that read K and V as they lie; more share a float32 copy of a tile
constexpr int kScoreVectors = 1;
constexpr int kValueLanes = 1;

struct Lanes {
    float v[16];
};
struct Ints {
    int32_t v[16];
};

template <class F>
TAKT_LANES Lanes map(F f) {
    Lanes r;
    for (int i = 0; i < 16; i++) r.v[i] = f(i);
    return r;
}
template <class F>
TAKT_LANES Ints map_int(F f) {
    Ints r;
    for (int i = 0; i < 16; i++) r.v[i] = f(i);
    return r;
}

TAKT_LANES Lanes zero() { return map([](int) { return 0.0f; }); }
TAKT_LANES Lanes broadcast(float x) { return map([&](int) { return x; }); }
TAKT_LANES Lanes load(const float* p) { return map([&](int i) { return p[i]; }); }
TAKT_LANES void store(float* p, Lanes a) { for (int i = 0; i < 16; i++) p[i] = a.v[i]; }
TAKT_LANES Lanes load_first(const float* p, int n) { return map([&](int i) { return i < n ? p[i] : 0.0f; }); }
TAKT_LANES void store_first(float* p, Lanes a, int n) { for (int i = 0; i < n; i++) p[i] = a.v[i]; }

TAKT_LANES Lanes operator+(Lanes a, Lanes b) { return map([&](int i) { return a.v[i] + b.v[i]; }); }
TAKT_LANES Lanes operator-(Lanes a, Lanes b) { return map([&](int i) { return a.v[i] - b.v[i]; }); }
TAKT_LANES Lanes operator*(Lanes a, Lanes b) { return map([&](int i) { return a.v[i] * b.v[i]; }); }
TAKT_LANES Lanes operator/(Lanes a, Lanes b) { return map([&](int i) { return a.v[i] / b.v[i]; }); }
TAKT_LANES Lanes fma(Lanes a, Lanes b, Lanes c) { return map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
// As the x86 instructions: the second operand where either is not a number.
TAKT_LANES Lanes max(Lanes a, Lanes b) { return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
TAKT_LANES Lanes min(Lanes a, Lanes b) { return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
TAKT_LANES Lanes absolute(Lanes a) { return map([&](int i) { return std::fabs(a.v[i]); }); }
TAKT_LANES Lanes round_nearest(Lanes a) { return map([&](int i) { return std::nearbyint(a.v[i]); }); }
/// a * 2^n for integral n in [-126, 127]; 0 where x < least.
TAKT_LANES Lanes scale_or_zero(Lanes a, Lanes n, Lanes x, Lanes least) {
    return map([&](int i) {
        const float scaled = a.v[i] * std::bit_cast<float>((static_cast<int32_t>(n.v[i]) + 127) << 23);
        return least.v[i] > x.v[i] ? 0.0f : scaled;
    });
}
/// x where begin <= lane < end, else `other`.
TAKT_LANES Lanes select_range(Lanes x, Lanes other, int begin, int end) {
    return map([&](int i) { return i >= begin && i < end ? x.v[i] : other.v[i]; });
}
/// Bit i: a[i] > b[i].
TAKT_LANES uint32_t mask_greater(Lanes a, Lanes b) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++) bits |= (a.v[i] > b.v[i] ? 1u : 0u) << i;
    return bits;
}
/// Bit i: a[i] is infinite or not a number.
TAKT_LANES uint32_t mask_not_finite(Lanes a) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++) bits |= (std::isfinite(a.v[i]) ? 0u : 1u) << i;
    return bits;
}

TAKT_LANES float reduce_add(Lanes a) {
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a.v[i] = a.v[i] + a.v[i + half];
    }
    return a.v[0];
}
TAKT_LANES float reduce_max(Lanes a) {
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    }
    return a.v[0];
}

TAKT_LANES Lanes load_f16(const void* p) {
    const auto* q = static_cast<const uint16_t*>(p);
    return map([&](int i) { return f16_to_f32(q[i]); });
}
TAKT_LANES void store_f16(void* p, Lanes a) {
    for (int i = 0; i < 16; i++) static_cast<uint16_t*>(p)[i] = f32_to_f16(a.v[i]);
}
TAKT_LANES Lanes load_bf16(const void* p) {
    const auto* q = static_cast<const uint16_t*>(p);
    return map([&](int i) { return bf16_to_f32(q[i]); });
}
TAKT_LANES Ints load_i8_ints(const void* p) {
    const auto* q = static_cast<const int8_t*>(p);
    return map_int([&](int i) { return int32_t{q[i]}; });
}
TAKT_LANES Lanes load_i8(const void* p) {
    const auto* q = static_cast<const int8_t*>(p);
    return map([&](int i) { return static_cast<float>(q[i]); });
}
TAKT_LANES Lanes load_u8(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    return map([&](int i) { return static_cast<float>(q[i]); });
}
/// Low and high four bits of 16 bytes.
TAKT_LANES void load_nibbles(const void* p, Lanes& low, Lanes& high) {
    const auto* q = static_cast<const uint8_t*>(p);
    low = map([&](int i) { return static_cast<float>(q[i] & 15); });
    high = map([&](int i) { return static_cast<float>(q[i] >> 4); });
}

TAKT_LANES Ints load_ints(const void* p) {
    Ints r;
    __builtin_memcpy(&r, p, sizeof r);
    return r;
}
TAKT_LANES Ints broadcast_int(int32_t x) { return map_int([&](int) { return x; }); }
TAKT_LANES Lanes to_float(Ints a) { return map([&](int i) { return static_cast<float>(a.v[i]); }); }
/// The values must fit an int32.
TAKT_LANES Ints to_int(Lanes a) { return map_int([&](int i) { return static_cast<int32_t>(std::nearbyint(a.v[i])); }); }
TAKT_LANES Ints operator+(Ints a, Ints b) { return map_int([&](int i) { return a.v[i] + b.v[i]; }); }
TAKT_LANES Ints operator*(Ints a, Ints b) { return map_int([&](int i) { return a.v[i] * b.v[i]; }); }
TAKT_LANES int32_t reduce_add(Ints a) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += a.v[i];
    return sum;
}
/// Integers in [-128, 127] as bytes.
TAKT_LANES void store_i8(void* p, Ints a) {
    auto* out = static_cast<int8_t*>(p);
    for (int i = 0; i < 16; i++) out[i] = static_cast<int8_t>(a.v[i]);
}
TAKT_LANES void store_i16(void* p, Ints a) {
    for (int i = 0; i < 16; i++) static_cast<int16_t*>(p)[i] = static_cast<int16_t>(a.v[i]);
}
/// Swaps the middle two of every four lanes.
TAKT_LANES Ints swap_middle(Ints a) {
    constexpr int order[4] = {0, 2, 1, 3};
    return map_int([&](int i) { return a.v[(i & ~3) + order[i & 3]]; });
}
/// The integers of a QuantBlock as this path multiplies them, and their sums.
TAKT_LANES void store_quants(QuantBlock& block, Ints first, Ints second) {
    store_i16(block.values, swap_middle(first));
    store_i16(block.values + 16, swap_middle(second));
    block.set_sums(reduce_add(first), reduce_add(second));
}
/// Shifts right by n, left by -n where n is negative, and keeps the bits of `mask`.
template <int n>
TAKT_LANES Ints shift_and(Ints a, uint32_t mask) {
    return map_int([&](int i) {
        const auto x = static_cast<uint32_t>(a.v[i]);
        return static_cast<int32_t>((n >= 0 ? x >> (n & 31) : x << (-n & 31)) & mask);
    });
}
/// base | shift_and(a)
template <int n>
TAKT_LANES Ints shift_and_or(Ints base, Ints a, uint32_t mask) {
    const Ints s = shift_and<n>(a, mask);
    return map_int([&](int i) { return base.v[i] | s.v[i]; });
}
/// Four bytes in every lane.
TAKT_LANES Ints broadcast_word(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return broadcast_int(word);
}
/// acc + the products of the two int16 of each lane.
TAKT_LANES Ints dot_pairs(Ints acc, Ints w, Ints x) {
    return map_int([&](int i) {
        const auto a = static_cast<uint32_t>(w.v[i]), b = static_cast<uint32_t>(x.v[i]);
        const int32_t low = static_cast<int16_t>(a) * static_cast<int16_t>(b);
        const int32_t high = static_cast<int16_t>(a >> 16) * static_cast<int16_t>(b >> 16);
        return acc.v[i] + low + high;
    });
}
TAKT_LANES const uint8_t* after(const uint8_t* p, Ints) { return p; }
TAKT_LANES void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace takt::cpu
