// Products of a group of packed weights with many rows, for paths whose tiles lose much to unpacking: a span of the group is unpacked
// once, into the L1 cache, and goes through all tiles of rows before the next. The same bits as product().
#pragma once

#include <limits>

#include "kernels/cpu/kernel_product.h"

namespace takt::cpu {
namespace {

/// A strip of a block, unpacked: what its type does not have is left as it is.
struct alignas(64) PanelBlock {
    uint8_t weights[kStripBytes];
    float scales[2][kStripRows], minima[2][kStripRows];   // of each half
};

/// Of kLateScale: signed weights times their scales, in place of the weights.
template <DType kType>
TAKT_LANES void scale_strip(const uint8_t* block, int strip, uint8_t* words) {
    const Ints offset = broadcast_int(kFormat<kType>.offset * 0x10001);
    repeat<2>([&](auto h) TAKT_INLINE {
        const Ints scale = double_words(integer_scale(block, strip, h));
        repeat<8>([&](auto i) TAKT_INLINE {
            uint8_t* at = words + (h * 8 + i) * 64;
            store_ints(at, multiply_words(subtract_words(load_ints(at), offset), scale));
        });
    });
}

template <DType kType>
TAKT_LANES void unpack_block_strip(const uint8_t* header, const uint8_t* block, int strip, PanelBlock& out) {
    unpack_strip<kType>(block, strip, out.weights);
    if constexpr (kLateScale<kType, true>) return scale_strip<kType>(block, strip, out.weights);
    else repeat<kFormat<kType>.sub_columns == 16 ? 2 : 1>([&](auto h) TAKT_INLINE {
        Lanes scale, minimum;
        block_scales<kType, true>(header, block, strip, h, scale, minimum);
        store(out.scales[h], scale);
        if constexpr (kFormat<kType>.has_min) store(out.minima[h], minimum);
    });
}

template <int kRows>
TAKT_LANES void add_scaled_block(const PanelBlock& block, const QuantBlock* const* x, Lanes* part) {
    BlockSums<kRows> sums;
    repeat<kRows>([&](auto r) TAKT_INLINE { begin_sum<r>(sums, 0); });
    dot_unpacked<0, 8, true>(block.weights, x, sums);
    repeat<kRows>([&](auto r) TAKT_INLINE { part[r] = part[r] + to_float(end_sum<true, r>(sums)); });
}

template <DType kType, int kRows, int h>
TAKT_LANES void add_panel_half(const PanelBlock& block, const QuantBlock* const* x, Lanes* part) {
    constexpr bool is_half = kFormat<kType>.sub_columns == 16;
    BlockSums<kRows> sums;
    begin_sums<kType, h>(x, sums);
    dot_unpacked<is_half ? h * 4 : 0, is_half ? 4 : 8, true>(block.weights, x, sums);
    add_sums<kType, h, true>(sums, load(block.scales[h]), load(block.minima[h]), x, part);
}

/// One strip of a span of weights and kRows rows; `x`: the first row's first block, `stride` blocks to the next row. Adds to what earlier
/// spans have left in `out`.
template <DType kType, int kRows>
void panel_tile(const PanelBlock* panel, int count, bool is_first, const uint8_t* header, int strip, const QuantBlock* first,
                int64_t stride, LinesAhead& ahead, float* out, size_t out_stride) {
    const QuantBlock* x[kRows];
    Lanes part[kRows];
    float scales[kRows];
    repeat<kRows>([&](auto r) TAKT_INLINE {
        x[r] = first + r * stride;
        part[r] = zero();
        scales[r] = x[r]->scale;
    });
    for (int i = 0; i < count; ++i, ++panel) {
        ahead.step();
        if constexpr (kLateScale<kType, true>) {
            add_scaled_block<kRows>(*panel, x, part);
        } else {
            add_panel_half<kType, kRows, 0>(*panel, x, part);
            if constexpr (kFormat<kType>.sub_columns == 16) add_panel_half<kType, kRows, 1>(*panel, x, part);
        }
        repeat<kRows>([&](auto r) TAKT_INLINE { ++x[r]; });
    }
    Lanes acc[kRows];
    repeat<kRows>([&](auto r) TAKT_INLINE { acc[r] = is_first ? zero() : load(out + static_cast<size_t>(r) * out_stride); });
    end_span<kType, kRows, true>(header, strip, scales, part, acc);
    repeat<kRows>([&](auto r) TAKT_INLINE { store(out + static_cast<size_t>(r) * out_stride, acc[r]); });
}

template <DType kType>
void panel_product(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride) {
    constexpr PackedFormat f = kFormat<kType>;
    const int tiles = (num_rows + kMaxTileRows - 1) / kMaxTileRows;
    const uint8_t* block = group.data;
    PanelBlock panel[2][kSpanBlocks];
    for (int64_t from = 0; from < group.num_blocks; from += kSpanBlocks) {
        const int count = static_cast<int>(group.num_blocks - from < kSpanBlocks ? group.num_blocks - from : kSpanBlocks);
        const uint8_t* header = block;
        block += f.header_bytes;
        for (int i = 0; i < count; ++i, block += f.block_bytes()) {
            for (int strip = 0; strip < 2; ++strip) unpack_block_strip<kType>(header, block, strip, panel[strip][i]);
        }
        // The next span, or the first of the group behind this one.
        LinesAhead ahead(block, (f.header_bytes + kSpanBlocks * f.block_bytes()) / 64, 2 * tiles * count);
        for (int strip = 0; strip < 2; ++strip) {
            for (int t = 0; t < tiles; ++t) {
                const int begin = num_rows * t / tiles, rows = num_rows * (t + 1) / tiles - begin;
                const QuantBlock* first = x.row(row + begin) + from;
                float* to = out + static_cast<size_t>(begin) * out_stride + strip * kStripRows;
                const auto run = [&](auto n) {
                    panel_tile<kType, decltype(n)::value>(panel[strip], count, from == 0, header, strip, first, x.num_blocks, ahead, to,
                                                          out_stride);
                };
                if (rows == 6) run(std::integral_constant<int, 6>{});
                if (rows == 5) run(std::integral_constant<int, 5>{});
                if (rows == 4) run(std::integral_constant<int, 4>{});
            }
        }
    }
}

/// Types of several planes cost most to unpack. What others save there pays for the stores from more rows on, on cores whose shifts and
/// logic share ports with multiplications (Intel's); elsewhere it costs nothing either way.
constexpr int panel_rows(DType t) {
    const PackedFormat f = packed_format(t);
    return f.twos || f.ones ? 8 : 24;
}

void product_panel(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride) {
    static_assert(kMaxTileRows == 6, "eight rows and more make tiles of four to six");
    switch (group.type) {
        case DType::q4_0: return panel_product<DType::q4_0>(group, x, row, num_rows, out, out_stride);
        case DType::q4_1: return panel_product<DType::q4_1>(group, x, row, num_rows, out, out_stride);
        case DType::q8_0: return panel_product<DType::q8_0>(group, x, row, num_rows, out, out_stride);
        case DType::q5_0: return panel_product<DType::q5_0>(group, x, row, num_rows, out, out_stride);
        case DType::q5_1: return panel_product<DType::q5_1>(group, x, row, num_rows, out, out_stride);
        case DType::q2_k: return panel_product<DType::q2_k>(group, x, row, num_rows, out, out_stride);
        case DType::q3_k: return panel_product<DType::q3_k>(group, x, row, num_rows, out, out_stride);
        case DType::q4_k: return panel_product<DType::q4_k>(group, x, row, num_rows, out, out_stride);
        case DType::q5_k: return panel_product<DType::q5_k>(group, x, row, num_rows, out, out_stride);
        default: return panel_product<DType::q6_k>(group, x, row, num_rows, out, out_stride);
    }
}

}  // namespace
}  // namespace takt::cpu
