// What one block of packed weights adds to a product, for every quantised type: exact int32 sums over the columns of one scale, then
// one FMA a scale (and one a minimum) under the scales of the weights alone. Lane = output row.
#pragma once

#include "kernels/cpu/kernel_math.h"

namespace takt::cpu {
namespace {

/// K types of 16-bit products whose float16 scale, the same for a whole span, is left to the end of the span. Their integer scales of a
/// block's halves multiply its exact sums, which kScaledLimits keep within an int32: one conversion and one addition for two of each.
template <DType kType, bool kHigh>
inline constexpr bool kLateScale = kHigh && kFormat<kType>.header_bytes > 0 && !kFormat<kType>.has_min;

/// Of a type with signed integer scales: that of half `h` of a block.
TAKT_LANES Ints integer_scale(const uint8_t* block, int strip, int h) { return load_i8_ints(block + h * 32 + strip * kStripRows); }

/// Scale and (added) minimum of one strip for half `h` of a block.
template <DType kType, bool kHigh>
TAKT_LANES void block_scales(const uint8_t* header, const uint8_t* block, int strip, int h, Lanes& scale, Lanes& minimum) {
    const uint8_t* halves = kFormat<kType>.header_bytes > 0 ? header : block;
    minimum = zero();
    static_assert(!kLateScale<kType, kHigh>);
    scale = load_f16(halves + strip * 32);
    if constexpr (kFormat<kType>.has_min) minimum = load_f16(halves + 64 + strip * 32);
    if constexpr (kType == DType::q4_k || kType == DType::q5_k) {
        scale = scale * load_u8(block + strip * 16);
        minimum = zero() - minimum * load_u8(block + 32 + strip * 16);
    } else if constexpr (kType == DType::q3_k || kType == DType::q6_k) {
        scale = scale * to_float(integer_scale(block, strip, h));
    } else if constexpr (kType == DType::q2_k) {
        Lanes low, high;
        load_nibbles(block + h * 32 + strip * 16, low, high);
        scale = scale * low;
        minimum = zero() - minimum * high;
    }
}

/// How a product multiplies.
enum class Dots {
    low,      // the low plane of two: integers of 8 bits
    both,     // 16 bits
    paired,   // 16 bits, columns in pairs
};

/// Where the sums of half `h` (or the whole) of a block begin: at what offsets of the stored weights add too much.
template <DType kType, int h, int kRows>
TAKT_LANES void begin_sums(const QuantBlock* const* x, BlockSums<kRows>& sums) {
    constexpr bool is_half = kFormat<kType>.sub_columns == 16;
    constexpr int offset = kFormat<kType>.bytes && kSignedBytes ? 0 : kFormat<kType>.offset;   // else subtracted when loaded
    repeat<kRows>([&](auto r) TAKT_INLINE {
        static_assert((offset & (offset - 1)) == 0);
        if constexpr (is_half && offset > 0) {
            start_sum<r>(sums, shift_and<-__builtin_ctz(offset)>(broadcast_word(&x[r]->minus_half_sums[h]), ~0u));   // times offset
        } else {
            begin_sum<r>(sums, offset == 0 ? 0 : -offset * x[r]->sum);
        }
    });
}

/// Exact sums of half `h` under the weights' scale and minimum.
template <DType kType, int h, bool kHigh, int kRows>
TAKT_LANES void add_sums(const BlockSums<kRows>& sums, Lanes scale, Lanes minimum, const QuantBlock* const* x, Lanes* part) {
    Lanes values[kRows];
    repeat<kRows>([&](auto r) TAKT_INLINE { values[r] = to_float(end_sum<kHigh, r>(sums)); });
    repeat<kRows>([&](auto r) TAKT_INLINE {
        part[r] = fma(scale, values[r], part[r]);
        if constexpr (kFormat<kType>.has_min) {
            const float total = kFormat<kType>.sub_columns == 32 ? x[r]->float_sum : -static_cast<float>(x[r]->minus_half_sums[h]);
            part[r] = fma(minimum, broadcast(total), part[r]);
        }
    });
}

/// The exact sums of half `h` (or the whole) of a block of one strip. `pairs`: the block's pair sums.
template <DType kType, int kRows, int h, Dots kDots>
TAKT_LANES void dot_half(const uint8_t* block, const int16_t* pairs, int strip, const QuantBlock* const* x, BlockSums<kRows>& sums) {
    constexpr bool kHigh = kDots != Dots::low;
    constexpr bool is_half = kFormat<kType>.sub_columns == 16;
    begin_sums<kType, h>(x, sums);
    if constexpr (kDots == Dots::paired) {
        dot_paired<kType>(block, pairs, strip, x, sums);
    } else if constexpr (kFormat<kType>.bytes) {
        dot_bytes<kHigh>(block + kFormat<kType>.bytes_at(strip), x, sums);
    } else {
        dot_planes<kType, is_half ? h * 4 : 0, is_half ? 4 : 8, kHigh>(block, strip, x, sums);
    }
}

template <DType kType, int kRows, int h, Dots kDots>
TAKT_LANES void add_half(const uint8_t* header, const uint8_t* block, const int16_t* pairs, int strip, const QuantBlock* const* x,
                         Lanes* part) {
    BlockSums<kRows> sums;
    dot_half<kType, kRows, h, kDots>(block, pairs, strip, x, sums);
    Lanes scale, minimum;
    block_scales<kType, kDots != Dots::low>(header, block, strip, h, scale, minimum);
    add_sums<kType, h, kDots != Dots::low>(sums, scale, minimum, x, part);
}

/// Half `h` of a block of kLateScale, under its integer scale.
template <DType kType, int kRows, int h, Dots kDots>
TAKT_LANES void scaled_half(const uint8_t* block, int strip, const QuantBlock* const* x, Ints* out) {
    BlockSums<kRows> sums;
    dot_half<kType, kRows, h, kDots>(block, nullptr, strip, x, sums);
    const Ints scale = integer_scale(block, strip, h);
    repeat<kRows>([&](auto r) TAKT_INLINE { out[r] = end_sum<true, r>(sums) * scale; });
}

/// Adds one block for one strip, in units of the activations' scale.
template <DType kType, int kRows, Dots kDots>
TAKT_LANES void add_block(const uint8_t* header, const uint8_t* block, const int16_t* pairs, int strip, const QuantBlock* const* x,
                          Lanes* part) {
    if constexpr (kLateScale<kType, kDots != Dots::low>) {
        Ints first[kRows], second[kRows];
        scaled_half<kType, kRows, 0, kDots>(block, strip, x, first);
        scaled_half<kType, kRows, 1, kDots>(kRows == 1 ? after(block, first[0]) : block, strip, x, second);
        repeat<kRows>([&](auto r) TAKT_INLINE { part[r] = part[r] + to_float(first[r] + second[r]); });
    } else {
        add_half<kType, kRows, 0, kDots>(header, block, pairs, strip, x, part);
        if constexpr (kFormat<kType>.sub_columns == 16) add_half<kType, kRows, 1, kDots>(header, block, pairs, strip, x, part);
    }
}

/// Ends a span (8 bits: a block) of one strip: its products meet the activations' scale.
template <DType kType, int kRows, bool kHigh>
TAKT_LANES void end_span(const uint8_t* header, int strip, const float* scales, const Lanes* part, Lanes* acc) {
    Lanes d = zero();
    if constexpr (kLateScale<kType, kHigh>) d = load_f16(header + strip * 32);
    repeat<kRows>([&](auto r) TAKT_INLINE {
        const Lanes scale = broadcast(scales[r]);
        acc[r] = fma(part[r], kLateScale<kType, kHigh> ? d * scale : scale, acc[r]);
    });
}

/// Asks for `kBytes` of the next group. While a group goes through several tiles from the caches the hardware sees no stream and
/// fetches nothing: the next group would come from memory at the first tile's pace.
template <int kBytes>
TAKT_LANES void fetch_bytes(bool wanted, const void* begin) {
    if (!wanted) return;
    const auto* bytes = static_cast<const uint8_t*>(begin);
    repeat<(kBytes + 63) / 64>([&](auto line) TAKT_INLINE { prefetch(bytes + line * 64); });
}

/// Lines of the weights to come, asked for a few with each step of the work meanwhile.
class LinesAhead {
public:
    LinesAhead(const uint8_t* begin, int64_t lines, int64_t steps)
        : at_(begin), end_(begin + lines * 64), a_step_((lines + steps - 1) / steps) {}
    TAKT_LANES void step() {
        for (int64_t i = 0; i < a_step_ && at_ < end_; ++i, at_ += 64) prefetch(at_);
    }

private:
    const uint8_t *at_, *end_;
    int64_t a_step_;
};

}  // namespace
}  // namespace takt::cpu
