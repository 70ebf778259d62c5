// Lanes: 16 float32 in four q registers, and Ints: 16 int32. Included by the NEON kernel file only, which needs the dot product
// instructions (ARMv8.2): same names and same bits as the AVX-512, AVX2 and portable versions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace takt::cpu {
namespace {

#define TAKT_LANES inline __attribute__((always_inline))

constexpr int kStripsPerPass = 1;
constexpr int kMaxTileRows = 2;   // 16 of 32 registers are integer accumulators, 4 the weights
constexpr bool kPairsColumns = false;
constexpr bool kSignedBytes = true;   // the dot instruction knows no unsigned ones

// Attention: queries at once, vectors of 16 positions and of 16 dimensions at once; the accumulators are their products.
constexpr int kQueriesPerPass = 2;
constexpr int kDirectQueries = kQueriesPerPass;   // that read K and V as they lie; more share a float32 copy of a tile
constexpr int kScoreVectors = 2;
constexpr int kValueLanes = 2;

struct Lanes {
    float32x4_t v[4];
};
struct Ints {
    int32x4_t v[4];
};

template <class F>
TAKT_LANES Lanes map(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}
template <class F>
TAKT_LANES Ints map_int(F f) {
    return {{f(0), f(1), f(2), f(3)}};
}

TAKT_LANES Lanes broadcast(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {{v, v, v, v}};
}
TAKT_LANES Lanes zero() { return broadcast(0.0f); }
TAKT_LANES Lanes load(const float* p) { return map([&](int i) { return vld1q_f32(p + 4 * i); }); }
TAKT_LANES void store(float* p, Lanes a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
}
TAKT_LANES Lanes load_first(const float* p, int n) {
    float t[16] = {};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return load(t);
}
TAKT_LANES void store_first(float* p, Lanes a, int n) {
    float t[16];
    store(t, a);
    for (int i = 0; i < n; i++) p[i] = t[i];
}

TAKT_LANES Lanes operator+(Lanes a, Lanes b) { return map([&](int i) { return vaddq_f32(a.v[i], b.v[i]); }); }
TAKT_LANES Lanes operator-(Lanes a, Lanes b) { return map([&](int i) { return vsubq_f32(a.v[i], b.v[i]); }); }
TAKT_LANES Lanes operator*(Lanes a, Lanes b) { return map([&](int i) { return vmulq_f32(a.v[i], b.v[i]); }); }
TAKT_LANES Lanes operator/(Lanes a, Lanes b) { return map([&](int i) { return vdivq_f32(a.v[i], b.v[i]); }); }
TAKT_LANES Lanes fma(Lanes a, Lanes b, Lanes c) { return map([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); }); }
// As the x86 instructions, not vmaxq: the second operand where either is not a number.
TAKT_LANES float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
TAKT_LANES Lanes max(Lanes a, Lanes b) { return map([&](int i) { return larger(a.v[i], b.v[i]); }); }
TAKT_LANES Lanes min(Lanes a, Lanes b) {
    return map([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
TAKT_LANES Lanes absolute(Lanes a) { return map([&](int i) { return vabsq_f32(a.v[i]); }); }
TAKT_LANES Lanes round_nearest(Lanes a) { return map([&](int i) { return vrndnq_f32(a.v[i]); }); }
/// a * 2^n for integral n in [-126, 127]; 0 where x < least.
TAKT_LANES Lanes scale_or_zero(Lanes a, Lanes n, Lanes x, Lanes least) {
    return map([&](int i) {
        const int32x4_t bits = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23);
        const float32x4_t scaled = vmulq_f32(a.v[i], vreinterpretq_f32_s32(bits));
        return vbslq_f32(vcgtq_f32(least.v[i], x.v[i]), vdupq_n_f32(0.0f), scaled);
    });
}
TAKT_LANES int32x4_t lane_numbers(int vector) {
    const int32_t first[4] = {0, 1, 2, 3};
    return vaddq_s32(vld1q_s32(first), vdupq_n_s32(4 * vector));
}
/// x where begin <= lane < end, else `other`.
TAKT_LANES Lanes select_range(Lanes x, Lanes other, int begin, int end) {
    return map([&](int i) {
        const int32x4_t lane = lane_numbers(i);
        const uint32x4_t inside = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
        return vbslq_f32(inside, x.v[i], other.v[i]);
    });
}
/// Bit 4 * vector + i: lane i is set.
TAKT_LANES uint32_t bits_of(uint32x4_t lanes, int vector) {
    const uint32_t weights[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(lanes, vld1q_u32(weights))) << (4 * vector);
}
/// Bit i: a[i] > b[i].
TAKT_LANES uint32_t mask_greater(Lanes a, Lanes b) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= bits_of(vcgtq_f32(a.v[i], b.v[i]), i);
    return bits;
}
/// Bit i: a[i] is infinite or not a number.
TAKT_LANES uint32_t mask_not_finite(Lanes a) {
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++) {
        const uint32x4_t magnitude = vandq_u32(vreinterpretq_u32_f32(a.v[i]), vdupq_n_u32(0x7fffffffu));
        bits |= bits_of(vcgeq_u32(magnitude, vdupq_n_u32(0x7f800000u)), i);
    }
    return bits;
}

TAKT_LANES float reduce_add(Lanes a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
TAKT_LANES float reduce_max(Lanes a) {
    const float32x4_t four = larger(larger(a.v[0], a.v[2]), larger(a.v[1], a.v[3]));
    const float32x4_t two = larger(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
}

TAKT_LANES Lanes load_f16(const void* p) {
    const auto* q = static_cast<const uint16_t*>(p);
    return map([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(q + 4 * i))); });
}
TAKT_LANES void store_f16(void* p, Lanes a) {
    auto* q = static_cast<uint16_t*>(p);
    for (int i = 0; i < 4; i++) vst1_u16(q + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
TAKT_LANES Lanes load_bf16(const void* p) {
    const auto* q = static_cast<const uint16_t*>(p);
    return map([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(q + 4 * i)), 16)); });
}
/// 16 bytes, widened.
TAKT_LANES Ints widen(uint8x16_t x) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_u8(vget_high_u8(x));
    return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
TAKT_LANES Lanes to_float(Ints a) { return map([&](int i) { return vcvtq_f32_s32(a.v[i]); }); }
TAKT_LANES Ints load_i8_ints(const void* p) {
    const int8x16_t x = vld1q_s8(static_cast<const int8_t*>(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_s8(vget_high_s8(x));
    return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))}};
}
TAKT_LANES Lanes load_i8(const void* p) { return to_float(load_i8_ints(p)); }
TAKT_LANES Lanes load_u8(const void* p) { return to_float(widen(vld1q_u8(static_cast<const uint8_t*>(p)))); }
/// Low and high four bits of 16 bytes.
TAKT_LANES void load_nibbles(const void* p, Lanes& low, Lanes& high) {
    const uint8x16_t x = vld1q_u8(static_cast<const uint8_t*>(p));
    low = to_float(widen(vandq_u8(x, vdupq_n_u8(15))));
    high = to_float(widen(vshrq_n_u8(x, 4)));
}

TAKT_LANES Ints load_ints(const void* p) {
    const auto* q = static_cast<const uint8_t*>(p);
    return map_int([&](int i) { return vreinterpretq_s32_u8(vld1q_u8(q + 16 * i)); });
}
TAKT_LANES Ints broadcast_int(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return {{v, v, v, v}};
}
TAKT_LANES Ints to_int(Lanes a) { return map_int([&](int i) { return vcvtnq_s32_f32(a.v[i]); }); }
TAKT_LANES Ints operator+(Ints a, Ints b) { return map_int([&](int i) { return vaddq_s32(a.v[i], b.v[i]); }); }
TAKT_LANES Ints operator*(Ints a, Ints b) { return map_int([&](int i) { return vmulq_s32(a.v[i], b.v[i]); }); }
TAKT_LANES int32_t reduce_add(Ints a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
/// The lowest byte of each lane.
TAKT_LANES int8x16_t narrow(Ints a) {
    return vcombine_s8(vmovn_s16(vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]))),
                       vmovn_s16(vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]))));
}
/// Integers in [-128, 127] as bytes.
TAKT_LANES void store_i8(void* p, Ints a) { vst1q_s8(static_cast<int8_t*>(p), narrow(a)); }
/// Splits 256 * high + low, both in [-128, 127]: low to p[0..16), high to p[32..48).
TAKT_LANES void store_planes(int8_t* p, Ints a) {
    vst1q_s8(p, narrow(a));
    vst1q_s8(p + 32, narrow(map_int([&](int i) { return vshrq_n_s32(vaddq_s32(a.v[i], vdupq_n_s32(128)), 8); })));
}
/// The integers of a QuantBlock as this path multiplies them, two planes of bytes, and their sums.
TAKT_LANES void store_quants(QuantBlock& block, Ints first, Ints second) {
    auto* planes = reinterpret_cast<int8_t*>(block.values);
    store_planes(planes, first);
    store_planes(planes + 16, second);
    block.set_sums(reduce_add(first), reduce_add(second));
}

/// Shifts right by n, left by -n where n is negative, and keeps the bits of `mask`.
template <int n>
TAKT_LANES Ints shift_and(Ints a, uint32_t mask) {
    return map_int([&](int i) {
        uint32x4_t x = vreinterpretq_u32_s32(a.v[i]);
        if constexpr (n > 0) x = vshrq_n_u32(x, n);
        if constexpr (n < 0) x = vshlq_n_u32(x, -n);
        return vreinterpretq_s32_u32(vandq_u32(x, vdupq_n_u32(mask)));
    });
}
/// base | shift_and(a)
template <int n>
TAKT_LANES Ints shift_and_or(Ints base, Ints a, uint32_t mask) {
    const Ints s = shift_and<n>(a, mask);
    return map_int([&](int i) { return vorrq_s32(base.v[i], s.v[i]); });
}
/// Four bytes in every lane.
TAKT_LANES Ints broadcast_word(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return broadcast_int(word);
}
/// acc + the products of the four int8 (w) and int8 (at x, the same for all) of each lane.
TAKT_LANES Ints dot_quads(Ints acc, Ints w, const void* x) {
    int32_t word;
    __builtin_memcpy(&word, x, sizeof word);
    const int8x16_t all = vreinterpretq_s8_s32(vdupq_n_s32(word));
    return map_int([&](int i) { return vdotq_s32(acc.v[i], vreinterpretq_s8_s32(w.v[i]), all); });
}
/// Weights of 8 bits, less 128.
TAKT_LANES Ints load_bytes(const void* p) {
    const Ints w = load_ints(p);
    return map_int([&](int i) { return veorq_s32(w.v[i], vreinterpretq_s32_u8(vdupq_n_u8(0x80))); });
}
TAKT_LANES Ints shift_left_8(Ints a) { return map_int([&](int i) { return vshlq_n_s32(a.v[i], 8); }); }

TAKT_LANES const uint8_t* after(const uint8_t* p, Ints) { return p; }
TAKT_LANES void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace
}  // namespace takt::cpu
