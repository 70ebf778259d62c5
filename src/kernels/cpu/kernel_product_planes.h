// Products of the types whose quants lie in more than one plane (Q5, K types), or whose scales change inside a block of 32. Same
// rules as kernel_product.h: exact int32 sums over the columns of one scale, one FMA a scale, lane = output row.
#pragma once

#include "kernels/cpu/kernel_math.h"

namespace takt::cpu {
namespace {

/// Columns 4q + odd and 4q + odd + 2 of a block as two int16 a lane. `block` is the block's begin.
template <DType kType, int q, int odd>
TAKT_LANES Ints plane_pair(const uint8_t* block, int strip) {
    constexpr PackedFormat f = packed_format(kType);
    constexpr int two_shift = 2 * (q % 4) + 8 * odd;
    const uint8_t* twos = block + f.plane_offset_twos() + (strip * 2 + q / 4) * 64;
    Ints w = broadcast_int(0);
    if constexpr (f.nibbles) {
        const uint8_t* nibbles = block + f.plane_offset_nibbles() + (strip * 4 + q / 2) * 64;
        w = shift_and<(q % 2) * 4 + odd * 8>(load_ints(nibbles), 0x000f000fu);
        if constexpr (f.twos) w = shift_and_or<two_shift - 4>(w, load_ints(twos), 0x00300030u);
    } else {
        w = shift_and<two_shift>(load_ints(twos), 0x00030003u);
    }
    if constexpr (f.ones) {
        const uint8_t* ones = block + f.plane_offset_ones() + strip * 64;
        w = shift_and_or<q + 8 * odd - f.ones_shift>(w, load_ints(ones), 0x00010001u << f.ones_shift);
    }
    return w;
}

/// Adds the quads [q, end) of a block to the sums of the rows.
template <DType kType, int kRows, int q, int end>
TAKT_LANES void dot_planes(const uint8_t* block, int strip, const int16_t* const* x, Ints* sum) {
    if constexpr (q < end) {
        const Ints even = plane_pair<kType, q, 0>(block, strip);
        const Ints odd = plane_pair<kType, q, 1>(block, strip);
        TAKT_UNROLL
        for (int r = 0; r < kRows; ++r) {
            sum[r] = dot_pairs(sum[r], even, broadcast_word(x[r] + q * 4));
            sum[r] = dot_pairs(sum[r], odd, broadcast_word(x[r] + q * 4 + 2));
        }
        dot_planes<kType, kRows, q + 1, end>(block, strip, x, sum);
    }
}

/// Scale and (negative or added) minimum of one strip for half `h` of a block.
template <DType kType>
TAKT_LANES void plane_scales(const uint8_t* header, const uint8_t* block, int strip, int h, Lanes& scale, Lanes& minimum) {
    constexpr PackedFormat f = packed_format(kType);
    const uint8_t* halves = f.header_bytes > 0 ? header : block;
    scale = load_f16(halves + strip * 32);
    minimum = zero();
    if constexpr (f.has_min) minimum = load_f16(halves + 64 + strip * 32);
    if constexpr (kType == DType::q4_k || kType == DType::q5_k) {
        scale = scale * load_u8(block + strip * 16);
        minimum = zero() - minimum * load_u8(block + 32 + strip * 16);
    } else if constexpr (kType == DType::q3_k || kType == DType::q6_k) {
        scale = scale * load_i8(block + h * 32 + strip * 16);
    } else if constexpr (kType == DType::q2_k) {
        Lanes low, high;
        load_nibbles(block + h * 32 + strip * 16, low, high);
        scale = scale * low;
        minimum = zero() - minimum * high;
    }
}

/// One half (or the whole) of a block for one strip: sums, then the scales into the accumulators.
template <DType kType, int kRows, int h>
TAKT_LANES void plane_block(const uint8_t* header, const uint8_t* block, int strip, const QuantRows& x, const int64_t* at,
                            const int16_t* const* values, Lanes* acc) {
    constexpr PackedFormat f = packed_format(kType);
    constexpr bool is_half = f.sub_columns == 16;
    constexpr int first = is_half ? h * 4 : 0;
    int32_t sums[kRows];
    Ints sum[kRows];
    TAKT_UNROLL
    for (int r = 0; r < kRows; ++r) {
        sums[r] = !is_half ? x.sums[at[r]] : h == 0 ? x.half_sums[at[r]] : x.sums[at[r]] - x.half_sums[at[r]];
        sum[r] = broadcast_int(-f.offset * sums[r]);
    }
    dot_planes<kType, kRows, first, first + (is_half ? 4 : 8)>(block, strip, values, sum);
    Lanes scale, minimum;
    plane_scales<kType>(header, block, strip, h, scale, minimum);
    TAKT_UNROLL
    for (int r = 0; r < kRows; ++r) {
        acc[r] = fma(scale * broadcast(x.scales[at[r]]), to_float(sum[r]), acc[r]);
        if constexpr (f.has_min) acc[r] = fma(minimum, broadcast(x.scales[at[r]] * static_cast<float>(sums[r])), acc[r]);
    }
}

template <int kRows, DType kType>
void product_planes_tile(const PackedGroup& group, const QuantRows& x, int64_t row, float* out, size_t out_stride) {
    constexpr PackedFormat f = packed_format(kType);
    for (int strip = 0; strip < 2; ++strip) {
        Lanes acc[kRows];
        TAKT_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r] = zero();
        const uint8_t* header = group.data;
        for (int64_t b = 0; b < group.num_blocks; b += f.blocks_per_record, header += f.record_bytes()) {
            for (int i = 0; i < f.blocks_per_record; ++i) {
                const uint8_t* block = header + f.header_bytes + i * f.block_bytes();
                if (strip == 0) {
                    for (int line = 0; line < f.block_bytes(); line += 64) prefetch(block + 8192 + line);
                }
                const int16_t* values[kRows];
                int64_t at[kRows];
                TAKT_UNROLL
                for (int r = 0; r < kRows; ++r) {
                    at[r] = (row + r) * x.num_blocks + b + i;
                    values[r] = x.values + at[r] * kBlockColumns;
                }
                plane_block<kType, kRows, 0>(header, block, strip, x, at, values, acc);
                if constexpr (f.sub_columns == 16) plane_block<kType, kRows, 1>(header, block, strip, x, at, values, acc);
            }
        }
        TAKT_UNROLL
        for (int r = 0; r < kRows; ++r) store(out + static_cast<size_t>(r) * out_stride + strip * 16, acc[r]);
    }
}

}  // namespace
}  // namespace takt::cpu
