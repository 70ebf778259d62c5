// Lanes: 16 float32 in two ymm registers, and Ints: 16 int32. Included by the AVX2 kernel file only; same names and same bits
// as the AVX-512 and portable versions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace takt::cpu {
namespace {

#define TAKT_LANES inline __attribute__((always_inline))

constexpr int kStripsPerPass = 1;
constexpr int kMaxTileRows = 6;   // 12 integer accumulators; the float ones lie in memory, met once a block

// Attention: queries at once, vectors of 16 positions and of 16 dimensions at once; the accumulators are their products.
constexpr int kQueriesPerPass = 3;
constexpr int kDirectQueries = kQueriesPerPass;   // that read K and V as they lie; more share a float32 copy of a tile
constexpr int kScoreVectors = 2;
constexpr int kValueLanes = 2;

struct Lanes {
    __m256 a, b;
};
struct Ints {
    __m256i a, b;
};

TAKT_LANES Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TAKT_LANES Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TAKT_LANES Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TAKT_LANES void store(float* p, Lanes x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
TAKT_LANES Lanes load_first(const float* p, int n) {
    alignas(32) float t[16] = {};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return load(t);
}
TAKT_LANES void store_first(float* p, Lanes x, int n) {
    alignas(32) float t[16];
    store(t, x);
    for (int i = 0; i < n; i++) p[i] = t[i];
}

TAKT_LANES Lanes operator+(Lanes x, Lanes y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
TAKT_LANES Lanes operator-(Lanes x, Lanes y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
TAKT_LANES Lanes operator*(Lanes x, Lanes y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
TAKT_LANES Lanes operator/(Lanes x, Lanes y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
TAKT_LANES Lanes fma(Lanes x, Lanes y, Lanes z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
TAKT_LANES Lanes max(Lanes x, Lanes y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
TAKT_LANES Lanes min(Lanes x, Lanes y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
TAKT_LANES Lanes absolute(Lanes x) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
TAKT_LANES Lanes round_nearest(Lanes x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
TAKT_LANES __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
/// a * 2^n for integral n in [-126, 127]; 0 where x < least.
TAKT_LANES Lanes scale_or_zero(Lanes a, Lanes n, Lanes x, Lanes least) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(least.a, x.a, _CMP_GT_OQ), _mm256_mul_ps(a.a, power_of_two(n.a))),
            _mm256_andnot_ps(_mm256_cmp_ps(least.b, x.b, _CMP_GT_OQ), _mm256_mul_ps(a.b, power_of_two(n.b)))};
}
TAKT_LANES __m256 range_mask(int first, int begin, int end) {
    const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
}
/// x where begin <= lane < end, else `other`.
TAKT_LANES Lanes select_range(Lanes x, Lanes other, int begin, int end) {
    return {_mm256_blendv_ps(other.a, x.a, range_mask(0, begin, end)),
            _mm256_blendv_ps(other.b, x.b, range_mask(8, begin, end))};
}
TAKT_LANES uint32_t bits_of(__m256 low, __m256 high) {
    return static_cast<uint32_t>(_mm256_movemask_ps(low)) | static_cast<uint32_t>(_mm256_movemask_ps(high)) << 8;
}
/// Bit i: x[i] > y[i].
TAKT_LANES uint32_t mask_greater(Lanes x, Lanes y) {
    return bits_of(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ));
}
/// Bit i: x[i] is infinite or not a number.
TAKT_LANES uint32_t mask_not_finite(Lanes x) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff), limit = _mm256_set1_epi32(0x7f7fffff);
    const __m256i a = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(x.a), magnitude), limit);
    const __m256i b = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(x.b), magnitude), limit);
    return bits_of(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
}

TAKT_LANES float reduce_add(Lanes v) {
    const __m256 y = _mm256_add_ps(v.a, v.b);
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
TAKT_LANES float reduce_max(Lanes v) {
    const __m256 y = _mm256_max_ps(v.a, v.b);
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

TAKT_LANES __m128i load_half(const void* p, int index) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p) + index);
}
TAKT_LANES Lanes load_f16(const void* p) { return {_mm256_cvtph_ps(load_half(p, 0)), _mm256_cvtph_ps(load_half(p, 1))}; }
TAKT_LANES void store_f16(void* p, Lanes x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, mode));
    _mm_storeu_si128(static_cast<__m128i*>(p) + 1, _mm256_cvtps_ph(x.b, mode));
}
TAKT_LANES Lanes load_bf16(const void* p) {
    const __m256i a = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p, 0)), 16);
    const __m256i b = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p, 1)), 16);
    return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
TAKT_LANES Ints load_i8_ints(const void* p) {
    const __m128i x = load_half(p, 0);
    return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
TAKT_LANES Lanes load_i8(const void* p) {
    const Ints x = load_i8_ints(p);
    return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
TAKT_LANES Lanes load_u8(const void* p) {
    const __m128i x = load_half(p, 0);
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
/// Low and high four bits of 16 bytes.
TAKT_LANES void load_nibbles(const void* p, Lanes& low, Lanes& high) {
    const __m128i x = load_half(p, 0);
    const __m256i a = _mm256_cvtepu8_epi32(x), b = _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)), m = _mm256_set1_epi32(15);
    low = {_mm256_cvtepi32_ps(_mm256_and_si256(a, m)), _mm256_cvtepi32_ps(_mm256_and_si256(b, m))};
    high = {_mm256_cvtepi32_ps(_mm256_srli_epi32(a, 4)), _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4))};
}

TAKT_LANES Ints load_ints(const void* p) {
    const auto* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
TAKT_LANES void store_ints(void* p, Ints x) {
    auto* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.a);
    _mm256_storeu_si256(q + 1, x.b);
}
TAKT_LANES Ints broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
TAKT_LANES Lanes to_float(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
TAKT_LANES Ints to_int(Lanes x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
TAKT_LANES Ints operator+(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
TAKT_LANES Ints operator*(Ints x, Ints y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
/// Of the two int16 of each lane.
TAKT_LANES Ints subtract_words(Ints x, Ints y) { return {_mm256_sub_epi16(x.a, y.a), _mm256_sub_epi16(x.b, y.b)}; }
TAKT_LANES Ints multiply_words(Ints x, Ints y) { return {_mm256_mullo_epi16(x.a, y.a), _mm256_mullo_epi16(x.b, y.b)}; }
/// The low word of each lane in both.
TAKT_LANES Ints double_words(Ints x) {
    return {_mm256_blend_epi16(_mm256_slli_epi32(x.a, 16), x.a, 0x55), _mm256_blend_epi16(_mm256_slli_epi32(x.b, 16), x.b, 0x55)};
}
TAKT_LANES int32_t reduce_add(Ints x) {
    const __m256i y = _mm256_add_epi32(x.a, x.b);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
/// The values must fit: the packing instruction saturates.
TAKT_LANES __m256i pack_words(Ints x) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8); }
/// Integers in [-128, 127] as bytes.
TAKT_LANES void store_i8(void* p, Ints x) {
    const __m256i words = pack_words(x);
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
TAKT_LANES void store_i16(void* p, Ints x) { _mm256_storeu_si256(static_cast<__m256i*>(p), pack_words(x)); }
/// Swaps the middle two of every four lanes.
TAKT_LANES Ints swap_middle(Ints x) { return {_mm256_shuffle_epi32(x.a, 0xd8), _mm256_shuffle_epi32(x.b, 0xd8)}; }
/// The integers of a QuantBlock as this path multiplies them, and their sums.
TAKT_LANES void store_quants(QuantBlock& block, Ints first, Ints second) {
    store_i16(block.values, swap_middle(first));
    store_i16(block.values + 16, swap_middle(second));
    block.set_sums(reduce_add(first), reduce_add(second));
}

template <int n>
TAKT_LANES __m256i shift(__m256i x) {
    if constexpr (n > 0) return _mm256_srli_epi32(x, n);
    if constexpr (n < 0) return _mm256_slli_epi32(x, -n);
    return x;
}
/// Shifts right by n, left by -n where n is negative, and keeps the bits of `mask`.
template <int n>
TAKT_LANES Ints shift_and(Ints x, uint32_t mask) {
    const __m256i m = _mm256_set1_epi32(static_cast<int32_t>(mask));
    return {_mm256_and_si256(shift<n>(x.a), m), _mm256_and_si256(shift<n>(x.b), m)};
}
/// base | shift_and(x)
template <int n>
TAKT_LANES Ints shift_and_or(Ints base, Ints x, uint32_t mask) {
    const Ints s = shift_and<n>(x, mask);
    return {_mm256_or_si256(base.a, s.a), _mm256_or_si256(base.b, s.b)};
}
/// Four bytes in every lane.
TAKT_LANES Ints broadcast_word(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return broadcast_int(word);
}
/// acc + the products of the two int16 of each lane; sums wrap around. The empty asm keeps the compiler from reordering the sums, which
/// makes it run out of registers.
TAKT_LANES __m256i dot_pairs(__m256i acc, __m256i w, __m256i x) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w, x));
    asm("" : "+x"(acc));
    return acc;
}
TAKT_LANES Ints dot_pairs(Ints acc, Ints w, Ints x) { return {dot_pairs(acc.a, w.a, x.a), dot_pairs(acc.b, w.b, x.b)}; }
TAKT_LANES const uint8_t* after(const uint8_t* p, Ints) { return p; }
/// Into the L2 cache: misses of the L1 cache are few at a time, and the loads need them.
TAKT_LANES void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace
}  // namespace takt::cpu
