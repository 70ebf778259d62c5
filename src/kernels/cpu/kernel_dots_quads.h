// Exact integer products of one block by dot instructions of four bytes: the 16 bits of an activation as two planes of int8, each
// multiplied by the weights' bytes. Those are unsigned, or below 128, or (kSignedBytes) 8-bit ones less 128. Half the unpacking of
// the int16 form, none for 8-bit weights. For paths that have such instructions.
#pragma once

#include "kernels/cpu/kernel_math.h"

namespace takt::cpu {
namespace {

/// Sums of one strip of 16 output rows with kRows rows of activations.
template <int kRows>
struct BlockSums {
    Ints low[kRows];
    Ints high[kRows];
};

template <int r, int kRows>
TAKT_LANES void begin_sum(BlockSums<kRows>& sums, int32_t start) {
    sums.low[r] = broadcast_int(start);
    sums.high[r] = broadcast_int(0);
}

template <int r, int kRows>
TAKT_LANES void start_sum(BlockSums<kRows>& sums, Ints start) {
    sums.low[r] = start;
    sums.high[r] = broadcast_int(0);
}

template <bool kHigh, int r, int kRows>
TAKT_LANES Ints end_sum(const BlockSums<kRows>& sums) {
    if constexpr (!kHigh) return sums.low[r];
    return shift_left_8(sums.high[r]) + sums.low[r];
}

/// Four columns from `column` on.
template <bool kHigh, int kRows>
TAKT_LANES void dot_columns(Ints w, const QuantBlock* const* x, int column, BlockSums<kRows>& sums) {
    repeat<kRows>([&](auto r) TAKT_INLINE {
        const auto* planes = reinterpret_cast<const uint8_t*>(x[r]->values) + column;
        sums.low[r] = dot_quads(sums.low[r], w, planes);
        if constexpr (kHigh) sums.high[r] = dot_quads(sums.high[r], w, planes + 32);
    });
}

template <bool kHigh, int kRows>
TAKT_LANES void dot_bytes(const uint8_t* planes, const QuantBlock* const* x, BlockSums<kRows>& sums) {
    repeat<8>([&](auto v) TAKT_INLINE { dot_columns<kHigh>(load_bytes(planes + v * 64), x, v * 4, sums); });
}

/// Columns 4q to 4q + 3 of a block of several planes. `block` is its begin.
template <DType kType, int q>
TAKT_LANES Ints plane_quad(const uint8_t* block, int strip) {
    const uint8_t* twos = block + kFormat<kType>.twos_at(strip) + q / 4 * 64;
    Ints w = broadcast_int(0);
    if constexpr (kFormat<kType>.nibbles) {
        w = shift_and<(q % 2) * 4>(load_ints(block + kFormat<kType>.nibbles_at(strip) + q / 2 * 64), 0x0f0f0f0fu);
        if constexpr (kFormat<kType>.twos) w = shift_and_or<2 * (q % 4) - 4>(w, load_ints(twos), 0x30303030u);
    } else {
        w = shift_and<2 * (q % 4)>(load_ints(twos), 0x03030303u);
    }
    if constexpr (kFormat<kType>.ones) {
        const uint8_t* ones = block + kFormat<kType>.ones_at(strip);
        w = shift_and_or<q - kFormat<kType>.ones_shift>(w, load_ints(ones), 0x01010101u << kFormat<kType>.ones_shift);
    }
    return w;
}

/// Adds the quads [first, first + count) of a block to the sums.
template <DType kType, int first, int count, bool kHigh, int kRows>
TAKT_LANES void dot_planes(const uint8_t* block, int strip, const QuantBlock* const* x, BlockSums<kRows>& sums) {
    repeat<count>([&](auto i) TAKT_INLINE {
        constexpr int q = first + decltype(i)::value;
        dot_columns<kHigh>(plane_quad<kType, q>(block, strip), x, q * 4, sums);
    });
}

}  // namespace
}  // namespace takt::cpu
