// Exact products of weights of up to four bits with two planes of int8, the high plane by half as many multiplications: of two columns
// p and q, w_p x_p + w_q x_q = (x_p + w_q) (x_q + w_p) - x_p x_q - w_p w_q (Winograd, 1968). The sums in brackets are bytes' additions,
// for which a core has ports beside those that multiply; x_p x_q is the row's own, w_p w_q the weights' own. The same integers as
// kernel_dots_quads.h gives. Columns 8v + b and 8v + 4 + b make a pair: so the nibbles of a packed byte lie.
#pragma once

#include "kernels/cpu/kernel_dots_quads.h"

namespace takt::cpu {
namespace {

/// Adds a block to the sums, which hold where they begin. `pairs`: the block's pair sums. A high byte of +-120 with 120 or -8 more leaves
/// room for four bits.
template <DType kType, int kRows>
TAKT_LANES void dot_paired(const uint8_t* block, const int16_t* pairs, int strip, const QuantBlock* const* x,
                           BlockSums<kRows>& sums) {
    const Ints own = load_i16(pairs + strip * kStripRows);
    repeat<kRows>([&](auto r) TAKT_INLINE {
        const Ints start = broadcast_word(&x[r]->pair_start);
        sums.low[r] = kFormat<kType>.offset == 0 ? start : sums.low[r] + start;
        sums.high[r] = own;
    });
    repeat<4>([&](auto i) TAKT_INLINE {
        constexpr int q = 2 * decltype(i)::value;
        const Ints even = plane_quad<kType, q>(block, strip);
        const Ints odd = plane_quad<kType, q + 1>(block, strip);
        repeat<kRows>([&](auto r) TAKT_INLINE {
            const uint8_t* high = x[r]->paired + q * 4;
            const auto* low = reinterpret_cast<const uint8_t*>(x[r]->values) + q * 4;
            sums.high[r] = dot_quads(sums.high[r], add_unsigned_bytes(odd, high), add_bytes(even, high + 4));
            sums.low[r] = dot_quads(sums.low[r], even, low);
            sums.low[r] = dot_quads(sums.low[r], odd, low + 4);
        });
    });
}

/// Less what a strip's weights in a block add for themselves: what a row of zeros gives. Fits 16 bits.
template <DType kType>
TAKT_LANES Ints pair_sum(const uint8_t* block, int strip) {
    alignas(4) static constexpr int8_t kZero[8] = {120, 120, 120, 120, -8, -8, -8, -8};
    Ints sum = broadcast_int(kBlockColumns / 2 * 120 * 8);
    repeat<4>([&](auto i) TAKT_INLINE {
        constexpr int q = 2 * decltype(i)::value;
        const Ints even = plane_quad<kType, q>(block, strip);
        const Ints odd = plane_quad<kType, q + 1>(block, strip);
        sum = dot_quads(sum, add_unsigned_bytes(odd, kZero), add_bytes(even, kZero + 4));
    });
    return broadcast_int(0) - sum;
}

template <DType kType>
void pair_sums_of(const PackedGroup& group, int16_t* out) {
    constexpr PackedFormat f = kFormat<kType>;
    const uint8_t* block = group.data;
    for (int64_t b = 0; b < group.num_blocks; ++b, block += f.block_bytes(), out += kGroupRows) {
        if (f.header_bytes > 0 && b % kSpanBlocks == 0) block += f.header_bytes;
        for (int strip = 0; strip < 2; ++strip) store_i16(out + strip * kStripRows, pair_sum<kType>(block, strip));
    }
}

void pair_sums(const PackedGroup& group, int16_t* out) {
    switch (group.type) {
        case DType::q4_0: return pair_sums_of<DType::q4_0>(group, out);
        case DType::q4_1: return pair_sums_of<DType::q4_1>(group, out);
        case DType::q4_k: return pair_sums_of<DType::q4_k>(group, out);
        default: return;   // not is_pairable()
    }
}

}  // namespace
}  // namespace takt::cpu
