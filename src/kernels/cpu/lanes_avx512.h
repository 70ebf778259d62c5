// Lanes: 16 float32 in one zmm register, and Ints: 16 int32. Included by the AVX-512 kernel file only; the AVX2 and portable
// versions have the same names and give the same bits (one lane count, one reduction tree).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace takt::cpu {
namespace {

#define TAKT_LANES inline __attribute__((always_inline))

constexpr int kStripsPerPass = 2;   // strips of 16 output rows that a product keeps in registers at once
constexpr int kMaxTileRows = 6;     // 12 integer and 12 float accumulators, 2 weights, constants
constexpr bool kSignedBytes = false;
constexpr bool kPairsColumns = true;   // products in pairs of columns, see kernel_dots_paired.h

// Attention: queries at once, vectors of 16 positions and of 16 dimensions at once; the accumulators are their products.
constexpr int kQueriesPerPass = 4;
constexpr int kDirectQueries = 24;   // that read K and V as they lie; more share a float32 copy of a tile
constexpr int kScoreVectors = 4;
constexpr int kValueLanes = 4;

struct Lanes {
    __m512 v;
};
struct Ints {
    __m512i v;
};

TAKT_LANES Lanes zero() { return {_mm512_setzero_ps()}; }
TAKT_LANES Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
TAKT_LANES Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
TAKT_LANES void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
TAKT_LANES __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
TAKT_LANES Lanes load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
TAKT_LANES void store_first(float* p, Lanes a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

TAKT_LANES Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
TAKT_LANES Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
TAKT_LANES Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
TAKT_LANES Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
TAKT_LANES Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TAKT_LANES Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
TAKT_LANES Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
TAKT_LANES Lanes absolute(Lanes a) { return {_mm512_abs_ps(a.v)}; }
TAKT_LANES Lanes round_nearest(Lanes a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
/// a * 2^n for integral n in [-126, 127]; 0 where x < least.
TAKT_LANES Lanes scale_or_zero(Lanes a, Lanes n, Lanes x, Lanes least) {
    return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(least.v, x.v, _CMP_NGT_UQ), a.v, n.v)};
}
/// x where begin <= lane < end, else `other`.
TAKT_LANES Lanes select_range(Lanes x, Lanes other, int begin, int end) {
    const uint32_t mask = ((1u << end) - 1u) & ~((1u << begin) - 1u);
    return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), other.v, x.v)};
}
/// Bit i: a[i] > b[i].
TAKT_LANES uint32_t mask_greater(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
/// Bit i: a[i] is infinite or not a number.
TAKT_LANES uint32_t mask_not_finite(Lanes a) {
    const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff));
    return _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
}

TAKT_LANES float reduce_add(Lanes a) {
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
TAKT_LANES float reduce_max(Lanes a) {
    const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

TAKT_LANES Lanes load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
TAKT_LANES void store_f16(void* p, Lanes a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TAKT_LANES Lanes load_bf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
TAKT_LANES Ints load_i8_ints(const void* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
TAKT_LANES Lanes load_i8(const void* p) { return {_mm512_cvtepi32_ps(load_i8_ints(p).v)}; }
TAKT_LANES Lanes load_u8(const void* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
/// Low and high four bits of 16 bytes.
TAKT_LANES void load_nibbles(const void* p, Lanes& low, Lanes& high) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    low = {_mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(15)))};
    high = {_mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4))};
}

TAKT_LANES Ints load_ints(const void* p) { return {_mm512_loadu_si512(p)}; }
TAKT_LANES Ints load_i16(const void* p) { return {_mm512_cvtepi16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
TAKT_LANES void store_i16(void* p, Ints a) { _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v)); }
/// Weights of 8 bits.
TAKT_LANES Ints load_bytes(const void* p) { return load_ints(p); }
TAKT_LANES Ints broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
TAKT_LANES Lanes to_float(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
TAKT_LANES Ints to_int(Lanes a) { return {_mm512_cvtps_epi32(a.v)}; }
TAKT_LANES Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
TAKT_LANES Ints operator*(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
TAKT_LANES Ints operator-(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
/// Integers in [-128, 127] as bytes.
TAKT_LANES void store_i8(void* p, Ints a) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v)); }
/// Splits 32 columns, 256 * high + low, both in [-128, 127], into the planes of a block; the high plane once more, paired: 120 and -8 added
/// in turns of four; what the paired bytes give multiplied with one another, -256 times; and the sums.
TAKT_LANES void store_quants(QuantBlock& block, Ints first, Ints second) {
    // Packed in turns: four columns of the first half, four of the second; a block's planes are in order again after one permutation.
    const __m512i words = _mm512_packs_epi32(first.v, second.v);
    const __m512i high = _mm512_srli_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(128)), 8);
    const __m512i bytes = _mm512_packus_epi16(_mm512_and_si512(words, _mm512_set1_epi16(255)), high);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i planes = _mm512_permutexvar_epi32(order, bytes);
    const __m256i turns = _mm256_set1_epi64x(static_cast<long long>(0xf8f8f8f878787878u));
    const __m256i paired = _mm256_add_epi8(_mm512_extracti64x4_epi64(planes, 1), turns);
    _mm512_storeu_si512(block.values, planes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block.paired), paired);
    // Sums of both halves, in pairs of lanes, and of the products: the even lanes, odd ones are zero.
    const __m512i twos = _mm512_madd_epi16(words, _mm512_set1_epi16(1));
    const __m256i fours = _mm256_add_epi32(_mm512_castsi512_si256(twos), _mm512_extracti64x4_epi64(twos, 1));
    const __m256i products = _mm256_dpbusd_epi32(_mm256_setzero_si256(), paired, _mm256_srli_epi64(paired, 32));
    const __m128i halves = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    const __m128i joined = _mm_add_epi32(_mm256_castsi256_si128(products), _mm256_extracti128_si256(products, 1));
    const __m128i all = _mm_hadd_epi32(halves, joined);    // first, second, two of the products
    const __m128i total = _mm_hadd_epi32(all, all);        // first + second, products
    const __m128i fields = _mm_blend_epi32(_mm_shuffle_epi32(total, 0x40), _mm_shuffle_epi32(all, 0x10), 6);
    static_assert(offsetof(QuantBlock, pair_start) == offsetof(QuantBlock, sum) + 12);   // the half sums lie between
    _mm_storeu_si128(reinterpret_cast<__m128i*>(&block.sum), _mm_mullo_epi32(fields, _mm_setr_epi32(1, -1, -1, -256)));
    block.float_sum = _mm_cvtss_f32(_mm_cvtepi32_ps(total));
}

/// Shifts right by n, left by -n where n is negative, and keeps the bits of `mask`.
template <int n>
TAKT_LANES Ints shift_and(Ints a, uint32_t mask) {
    const __m512i m = _mm512_set1_epi32(static_cast<int32_t>(mask));
    if constexpr (n > 0) return {_mm512_and_si512(_mm512_srli_epi32(a.v, n), m)};
    if constexpr (n < 0) return {_mm512_and_si512(_mm512_slli_epi32(a.v, -n), m)};
    return {_mm512_and_si512(a.v, m)};
}
/// base | shift_and(a)
template <int n>
TAKT_LANES Ints shift_and_or(Ints base, Ints a, uint32_t mask) {
    const __m512i m = _mm512_set1_epi32(static_cast<int32_t>(mask));
    __m512i s = a.v;
    if constexpr (n > 0) s = _mm512_srli_epi32(s, n);
    if constexpr (n < 0) s = _mm512_slli_epi32(s, -n);
    return {_mm512_ternarylogic_epi32(base.v, s, m, 0xf8)};   // base | (s & m)
}
/// Four bytes in every lane.
TAKT_LANES Ints broadcast_word(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return {_mm512_set1_epi32(word)};
}
/// acc + the products of the four uint8 (w) and int8 (at x, the same for all) of each lane. Written out, since compilers keep the
/// broadcasts of one strip for the next and spill them: more loads than before, and stores.
TAKT_LANES Ints dot_quads(Ints acc, Ints w, const void* x) {
    using Word = int32_t __attribute__((may_alias));
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(w.v), "m"(*static_cast<const Word*>(x)));
    return acc;
}
/// The same of a register of int8.
TAKT_LANES Ints dot_quads(Ints acc, Ints w, Ints x) { return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)}; }
/// w + the four bytes at x in every lane, byte by byte; no byte may exceed 255. Written out for the reason above.
TAKT_LANES Ints add_unsigned_bytes(Ints w, const void* x) {
    using Word = int32_t __attribute__((may_alias));
    Ints sum;
    asm("vpaddd %2%{1to16%}, %1, %0" : "=v"(sum.v) : "v"(w.v), "m"(*static_cast<const Word*>(x)));
    return sum;
}
/// The same of bytes with a sign.
TAKT_LANES Ints add_bytes(Ints w, const void* x) {
    using Word = int32_t __attribute__((may_alias));
    Ints sum;
    asm("vpbroadcastd %2, %0\n\tvpaddb %1, %0, %0" : "=&v"(sum.v) : "v"(w.v), "m"(*static_cast<const Word*>(x)));
    return sum;
}
TAKT_LANES Ints shift_left_8(Ints a) { return {_mm512_slli_epi32(a.v, 8)}; }

// Words: two int16 in each lane.

TAKT_LANES void store_ints(void* p, Ints a) { _mm512_storeu_si512(p, a.v); }
TAKT_LANES Ints shift_words_right_8(Ints a) { return {_mm512_srli_epi16(a.v, 8)}; }
TAKT_LANES Ints subtract_words(Ints a, Ints b) { return {_mm512_sub_epi16(a.v, b.v)}; }
TAKT_LANES Ints multiply_words(Ints a, Ints b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
/// The low word of each lane in both.
TAKT_LANES Ints double_words(Ints a) { return {_mm512_mask_mov_epi16(_mm512_slli_epi32(a.v, 16), 0x55555555u, a.v)}; }
/// Written out as dot_quads is, and broadcast_fresh_word so that none is kept for later.
TAKT_LANES Ints add_words(Ints a, Ints b) {
    Ints sum;
    asm("vpaddw %1, %2, %0" : "=v"(sum.v) : "v"(a.v), "v"(b.v));
    return sum;
}
TAKT_LANES Ints broadcast_fresh_word(const void* p) {
    using Word = int32_t __attribute__((may_alias));
    Ints word;
    asm("vpbroadcastd %1, %0" : "=v"(word.v) : "m"(*static_cast<const Word*>(p)));
    return word;
}
/// acc + the products of the two int16 of each lane; sums wrap around.
TAKT_LANES Ints dot_words(Ints acc, Ints a, Ints b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(a.v), "v"(b.v));
    return acc;
}
/// The same of the two int16 at x with each lane.
TAKT_LANES Ints dot_words(Ints acc, Ints a, const void* x) {
    using Word = int32_t __attribute__((may_alias));
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(a.v), "m"(*static_cast<const Word*>(x)));
    return acc;
}
/// 32 integers from their low[32] and high[32] bytes, each four as 0 2 1 3.
TAKT_LANES Ints join_planes(const void* planes) {
    const auto* halves = static_cast<const __m256i*>(planes);
    const __m512i low = _mm512_cvtepi8_epi16(_mm256_loadu_si256(halves)), high = _mm512_cvtepi8_epi16(_mm256_loadu_si256(halves + 1));
    const __m512i x = _mm512_add_epi16(low, _mm512_slli_epi16(high, 8));
    return {_mm512_shufflehi_epi16(_mm512_shufflelo_epi16(x, _MM_SHUFFLE(3, 1, 2, 0)), _MM_SHUFFLE(3, 1, 2, 0))};
}
/// The products of the marked lanes with their right neighbours, added up; the sum wraps around.
TAKT_LANES int32_t sum_of_pairs(Ints a, __mmask16 lanes) {
    const __m512i products = _mm512_maskz_mov_epi32(lanes, _mm512_madd_epi16(a.v, _mm512_shuffle_epi32(a.v, _MM_PERM_CDAB)));
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(products), _mm512_extracti64x4_epi64(products, 1));
    const __m128i quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, _MM_SHUFFLE(1, 0, 3, 2))));
}

/// `p`, but to the compiler not before `a` is there: it would load what lies behind first, and a row alone reads from memory, whose streams
/// ascend.
TAKT_LANES const uint8_t* after(const uint8_t* p, Ints a) {
    asm("" : "+r"(p) : "v"(a.v));
    return p;
}
/// Into the L2 cache: misses of the L1 cache are few at a time, and the loads need them.
TAKT_LANES void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace
}  // namespace takt::cpu
