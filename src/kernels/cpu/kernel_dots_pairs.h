// Exact integer products of one block by multiplying pairs of int16 and adding them: for paths without dot instructions of bytes.
// Weights are unpacked to pairs of columns (c, c + 2), the order in which these paths store activations.
#pragma once

#include "kernels/cpu/kernel_math.h"

namespace takt::cpu {
namespace {

constexpr bool kSignedBytes = false;
constexpr bool kPairsColumns = false;

/// Sums of one strip of 16 output rows with kRows rows of activations.
template <int kRows>
struct BlockSums {
    Ints sum[kRows];
};

template <int r, int kRows>
TAKT_LANES void begin_sum(BlockSums<kRows>& sums, int32_t start) {
    sums.sum[r] = broadcast_int(start);
}

template <int r, int kRows>
TAKT_LANES void start_sum(BlockSums<kRows>& sums, Ints start) {
    sums.sum[r] = start;
}

template <bool kHigh, int r, int kRows>
TAKT_LANES Ints end_sum(const BlockSums<kRows>& sums) {
    return sums.sum[r];
}

/// Columns c and c + 2 in `even`, c + 1 and c + 3 in `odd`.
template <int kRows>
TAKT_LANES void dot_columns(Ints even, Ints odd, const QuantBlock* const* x, int column, BlockSums<kRows>& sums) {
    repeat<kRows>([&](auto r) TAKT_INLINE {
        sums.sum[r] = dot_pairs(sums.sum[r], even, broadcast_word(x[r]->values + column));
        sums.sum[r] = dot_pairs(sums.sum[r], odd, broadcast_word(x[r]->values + column + 2));
    });
}

template <bool kHigh, int kRows>
TAKT_LANES void dot_bytes(const uint8_t* planes, const QuantBlock* const* x, BlockSums<kRows>& sums) {
    repeat<8>([&](auto v) TAKT_INLINE {
        const Ints raw = load_ints(planes + v * 64);
        dot_columns(shift_and<0>(raw, 0x00ff00ffu), shift_and<8>(raw, 0x00ff00ffu), x, v * 4, sums);
    });
}

/// Columns 4q + odd and 4q + odd + 2 of a block. `block` is its begin.
template <DType kType, int q, int odd>
TAKT_LANES Ints plane_pair(const uint8_t* block, int strip) {
    if constexpr (kFormat<kType>.bytes) {
        return shift_and<8 * odd>(load_ints(block + kFormat<kType>.bytes_at(strip) + q * 64), 0x00ff00ffu);
    }
    constexpr int two_shift = 2 * (q % 4) + 8 * odd;
    const uint8_t* twos = block + kFormat<kType>.twos_at(strip) + q / 4 * 64;
    Ints w = broadcast_int(0);
    if constexpr (kFormat<kType>.nibbles) {
        const uint8_t* nibbles = block + kFormat<kType>.nibbles_at(strip) + q / 2 * 64;
        w = shift_and<(q % 2) * 4 + odd * 8>(load_ints(nibbles), 0x000f000fu);
        if constexpr (kFormat<kType>.twos) w = shift_and_or<two_shift - 4>(w, load_ints(twos), 0x00300030u);
    } else {
        w = shift_and<two_shift>(load_ints(twos), 0x00030003u);
    }
    if constexpr (kFormat<kType>.ones) {
        const uint8_t* ones = block + kFormat<kType>.ones_at(strip);
        w = shift_and_or<q + 8 * odd - kFormat<kType>.ones_shift>(w, load_ints(ones), 0x00010001u << kFormat<kType>.ones_shift);
    }
    return w;
}

/// Adds the quads [first, first + count) of a block to the sums.
template <DType kType, int first, int count, bool kHigh, int kRows>
TAKT_LANES void dot_planes(const uint8_t* block, int strip, const QuantBlock* const* x, BlockSums<kRows>& sums) {
    repeat<count>([&](auto i) TAKT_INLINE {
        constexpr int q = first + decltype(i)::value;
        dot_columns(plane_pair<kType, q, 0>(block, strip), plane_pair<kType, q, 1>(block, strip), x, q * 4, sums);
    });
}

constexpr int kStripBytes = 2 * kStripRows * kBlockColumns;   // of a strip of a block, unpacked

template <DType kType>
TAKT_LANES void unpack_strip(const uint8_t* block, int strip, uint8_t* out) {
    repeat<8>([&](auto q) TAKT_INLINE {
        store_ints(out + q * 128, plane_pair<kType, decltype(q)::value, 0>(block, strip));
        store_ints(out + q * 128 + 64, plane_pair<kType, decltype(q)::value, 1>(block, strip));
    });
}

/// dot_planes() of a strip that is unpacked.
template <int first, int count, bool kHigh, int kRows>
TAKT_LANES void dot_unpacked(const uint8_t* strip, const QuantBlock* const* x, BlockSums<kRows>& sums) {
    repeat<count>([&](auto i) TAKT_INLINE {
        constexpr int q = first + decltype(i)::value;
        dot_columns(load_ints(strip + q * 128), load_ints(strip + q * 128 + 64), x, q * 4, sums);
    });
}

}  // namespace
}  // namespace takt::cpu
