// Products of the types whose quants lie in more than one plane (Q5, K types), or whose scales change inside a block of 32. Same
// rules as kernel_product.h: exact int32 sums over the columns of one scale, one FMA a scale, lane = output row.
#pragma once

#include "kernels/cpu/kernel_math.h"

namespace takt::cpu {
namespace {

/// Scale and (negative or added) minimum of one strip for half `h` of a block.
template <DType kType>
TAKT_LANES void plane_scales(const uint8_t* header, const uint8_t* block, int strip, int h, Lanes& scale, Lanes& minimum) {
    const uint8_t* halves = kFormat<kType>.header_bytes > 0 ? header : block;
    scale = load_f16(halves + strip * 32);
    minimum = zero();
    if constexpr (kFormat<kType>.has_min) minimum = load_f16(halves + 64 + strip * 32);
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
TAKT_LANES void plane_block(const uint8_t* header, const uint8_t* block, int strip, const QuantBlock* const* x, Lanes* acc) {
    constexpr bool is_half = kFormat<kType>.sub_columns == 16;
    int32_t total[kRows];
    BlockSums<kRows> sums;
    repeat<kRows>([&](auto r) TAKT_INLINE {
        total[r] = !is_half ? x[r]->sum : h == 0 ? x[r]->half_sum : x[r]->sum - x[r]->half_sum;
        begin_sum<r>(sums, -kFormat<kType>.offset * total[r]);
    });
    dot_planes<kType, is_half ? h * 4 : 0, is_half ? 4 : 8>(block, strip, x, sums);
    Lanes scale, minimum;
    plane_scales<kType>(header, block, strip, h, scale, minimum);
    repeat<kRows>([&](auto r) TAKT_INLINE {
        acc[r] = fma(scale * broadcast(x[r]->scale), to_float(end_sum<true, r>(sums)), acc[r]);
        if constexpr (kFormat<kType>.has_min) acc[r] = fma(minimum, broadcast(x[r]->scale * static_cast<float>(total[r])), acc[r]);
    });
}

/// Asks for the record of the next group. While a group goes through several tiles from the caches the hardware sees no stream and
/// fetches nothing: the next group would come from memory at the first tile's pace.
template <DType kType>
TAKT_LANES void fetch_record(bool wanted, const uint8_t* record) {
    if (!wanted) return;
    repeat<(kFormat<kType>.record_bytes() + 63) / 64>([&](auto line) TAKT_INLINE { prefetch(record + line * 64); });
}

template <int kRows, DType kType>
void product_planes_tile(const PackedGroup& group, const QuantRows& rows, int64_t row, float* out, size_t out_stride) {
    for (int strip = 0; strip < 2; ++strip) {
        Lanes acc[kRows];
        repeat<kRows>([&](auto r) TAKT_INLINE { acc[r] = zero(); });
        const uint8_t* header = group.data;
        const int64_t bytes = group.num_blocks / kFormat<kType>.blocks_per_record * kFormat<kType>.record_bytes();
        const bool fetches = group.fetch_next && strip == 1;
        for (int64_t b = 0; b < group.num_blocks; b += kFormat<kType>.blocks_per_record, header += kFormat<kType>.record_bytes()) {
            if constexpr (kRows > 1) fetch_record<kType>(fetches, header + bytes);
            for (int i = 0; i < kFormat<kType>.blocks_per_record; ++i) {
                const uint8_t* block = header + kFormat<kType>.header_bytes + i * kFormat<kType>.block_bytes();
                const QuantBlock* x[kRows];
                repeat<kRows>([&](auto r) TAKT_INLINE { x[r] = rows.row(row + r) + b + i; });
                plane_block<kType, kRows, 0>(header, block, strip, x, acc);
                if constexpr (kFormat<kType>.sub_columns == 16) plane_block<kType, kRows, 1>(header, block, strip, x, acc);
            }
        }
        repeat<kRows>([&](auto r) TAKT_INLINE { store(out + static_cast<size_t>(r) * out_stride + strip * 16, acc[r]); });
    }
}

}  // namespace
}  // namespace takt::cpu
