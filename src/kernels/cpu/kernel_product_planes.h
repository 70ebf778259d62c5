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

/// The exact sums of half `h` (or the whole) of a block of one strip, as float32.
template <DType kType, int kRows, int h, bool kHigh>
TAKT_LANES void plane_sums(const uint8_t* block, int strip, const QuantBlock* const* x, Lanes* out) {
    constexpr bool is_half = kFormat<kType>.sub_columns == 16;
    constexpr int offset = kFormat<kType>.offset;
    BlockSums<kRows> sums;
    repeat<kRows>([&](auto r) TAKT_INLINE {
        static_assert((offset & (offset - 1)) == 0);
        if constexpr (is_half && offset > 0) {
            start_sum<r>(sums, shift_and<-__builtin_ctz(offset)>(broadcast_word(&x[r]->minus_half_sums[h]), ~0u));   // times offset
        } else {
            begin_sum<r>(sums, offset == 0 ? 0 : -offset * x[r]->sum);
        }
    });
    dot_planes<kType, is_half ? h * 4 : 0, is_half ? 4 : 8, kHigh>(block, strip, x, sums);
    repeat<kRows>([&](auto r) TAKT_INLINE { out[r] = to_float(end_sum<kHigh, r>(sums)); });
}

/// One block for one strip: sums, then the scales into the accumulators. Where each half has a scale the halves are added first and
/// then meet the scale of the activations.
template <DType kType, int kRows, bool kHigh>
TAKT_LANES void plane_block(const uint8_t* header, const uint8_t* block, int strip, const QuantBlock* const* x, Lanes* acc) {
    Lanes sums[kRows], scale, minimum;
    plane_sums<kType, kRows, 0, kHigh>(block, strip, x, sums);
    plane_scales<kType>(header, block, strip, 0, scale, minimum);
    if constexpr (kFormat<kType>.sub_columns == 32) {
        repeat<kRows>([&](auto r) TAKT_INLINE {
            acc[r] = fma(scale * broadcast(x[r]->scale), sums[r], acc[r]);
            if constexpr (kFormat<kType>.has_min) acc[r] = fma(minimum, broadcast(x[r]->scaled_sum), acc[r]);
        });
    } else {
        Lanes part[kRows];
        const auto minima = [&](auto r, int h) TAKT_INLINE {
            const float total = -static_cast<float>(x[r]->minus_half_sums[h]);
            if constexpr (kFormat<kType>.has_min) part[r] = fma(minimum, broadcast(total), part[r]);
        };
        repeat<kRows>([&](auto r) TAKT_INLINE {
            part[r] = scale * sums[r];
            minima(r, 0);
        });
        plane_sums<kType, kRows, 1, kHigh>(block, strip, x, sums);
        plane_scales<kType>(header, block, strip, 1, scale, minimum);
        repeat<kRows>([&](auto r) TAKT_INLINE {
            part[r] = fma(scale, sums[r], part[r]);
            minima(r, 1);
            acc[r] = fma(part[r], broadcast(x[r]->scale), acc[r]);
        });
    }
}

/// Asks for `kBytes` of the next group. While a group goes through several tiles from the caches the hardware sees no stream and
/// fetches nothing: the next group would come from memory at the first tile's pace.
template <int kBytes>
TAKT_LANES void fetch_bytes(bool wanted, const uint8_t* bytes) {
    if (!wanted) return;
    repeat<(kBytes + 63) / 64>([&](auto line) TAKT_INLINE { prefetch(bytes + line * 64); });
}

template <DType kType>
TAKT_LANES void fetch_record(bool wanted, const uint8_t* record) {
    fetch_bytes<kFormat<kType>.record_bytes()>(wanted, record);
}

template <int kRows, DType kType, bool kHigh>
void product_planes_tile(const PackedGroup& group, const QuantRows& rows, int64_t row, float* out, size_t out_stride) {
    constexpr PackedFormat f = kFormat<kType>;
    const int64_t num_records = group.num_blocks / f.blocks_per_record;
    const int64_t bytes = num_records * f.record_bytes();
    for (int strip = 0; strip < 2; strip += kStripsPerPass) {
        Lanes acc[kStripsPerPass][kRows];
        repeat<kStripsPerPass>([&](auto s) TAKT_INLINE { repeat<kRows>([&](auto r) TAKT_INLINE { acc[s][r] = zero(); }); });
        const bool fetches = kRows > 1 && group.fetch_next && strip + kStripsPerPass == 2;
        const QuantBlock* x[kRows];
        repeat<kRows>([&](auto r) TAKT_INLINE { x[r] = rows.row(row + r); });
        const uint8_t* header = group.data;
        for (int64_t record = 0; record < num_records; ++record, header += f.record_bytes()) {
            fetch_bytes<f.header_bytes>(fetches, header + bytes);
            const uint8_t* block = header + f.header_bytes;
            // A block's share of the next group with each block: a whole record at once would fill every miss the core may have.
            for (int i = 0; i < f.blocks_per_record; ++i, block += f.block_bytes()) {
                fetch_bytes<f.block_bytes()>(fetches, block + bytes);
                repeat<kStripsPerPass>([&](auto s) TAKT_INLINE {
                    plane_block<kType, kRows, kHigh>(header, block, strip + s, x, acc[s]);
                });
                repeat<kRows>([&](auto r) TAKT_INLINE { ++x[r]; });
            }
        }
        repeat<kStripsPerPass>([&](auto s) TAKT_INLINE {
            repeat<kRows>([&](auto r) TAKT_INLINE {
                store(out + static_cast<size_t>(r) * out_stride + (strip + s) * 16, acc[s][r]);
            });
        });
    }
}

}  // namespace
}  // namespace takt::cpu
