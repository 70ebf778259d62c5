// Products of many rows with a group of weights: 256 columns of the group are unpacked once for all rows into a panel of int16 in the L1
// cache, times the integer scales of K types that have no minimums. There a row takes one sum instead of the two of int8 planes (or four of
// halves) and no unpacking; kPairs: of every second four columns two are multiplied by one multiplication for both (kernel_dots_paired.h).
// The same integers and the same order of FMAs as kernel_product.h, so the same bits. For AVX-512.
#pragma once

#include <limits>

#include "kernels/cpu/kernel_product_block.h"

namespace takt::cpu {
namespace {

// A tile of eight rows takes 16 accumulators, four vectors of weights and two of activations; float sums stay in the L1 cache.

/// Four columns make a step: two vectors of weights, columns c and c + 2, then c + 1 and c + 3. Steps 0, 2, 4 and 6 of a block are
/// multiplied in pairs: more additions or more multiplications than that wait for one another's ports.
constexpr int kStepColumns = 4;
constexpr int kSteps = kBlockColumns / kStepColumns;
constexpr bool is_paired_step(int step) { return step % 2 == 0; }
constexpr __mmask16 kPairedWords = 0x1111;   // of a row's 16 words in a block the first of each paired step

struct alignas(64) Panel {
    int16_t weights[kSpanBlocks][kSteps][2][2][32];   // [block][step][strip][vector]
    int32_t own[kSpanBlocks][2][kStripRows];          // [block][strip]: less what paired weights give multiplied with one another
    float scales[kSpanBlocks][2][kStripRows];
    float minimums[kSpanBlocks][2][kStripRows];
    float late_scale[2][kStripRows];
};

template <DType kType, int q>
TAKT_LANES Ints panel_quad(const uint8_t* block, int strip) {
    if constexpr (kFormat<kType>.bytes) return load_ints(block + kFormat<kType>.bytes_at(strip) + q * 64);
    else return plane_quad<kType, q>(block, strip);
}

/// One strip of one block into the panel. Weights are signed here, those of kLateScale times their scales.
template <DType kType, bool kPairs>
TAKT_LANES void fill_block(const uint8_t* header, const uint8_t* block, int strip, int b, Panel& panel) {
    constexpr bool scaled = kLateScale<kType, true>;
    const Ints offset = broadcast_int(kFormat<kType>.offset * 0x10001);
    Ints own = broadcast_int(0);
    Ints scales[2] = {offset, offset};
    if constexpr (scaled) {
        repeat<2>([&](auto h) TAKT_INLINE { scales[h] = double_words(integer_scale(block, strip, h)); });
    }
    repeat<kSteps>([&](auto q) TAKT_INLINE {
        const Ints quad = panel_quad<kType, q>(block, strip);
        Ints even = shift_and<0>(quad, 0x00ff00ffu), odd = shift_words_right_8(quad);
        if constexpr (kFormat<kType>.offset != 0) {
            even = subtract_words(even, offset);
            odd = subtract_words(odd, offset);
        }
        if constexpr (scaled) {
            even = multiply_words(even, scales[q / 4]);
            odd = multiply_words(odd, scales[q / 4]);
        }
        if constexpr (kPairs && is_paired_step(q)) own = dot_words(own, even, odd);
        store_ints(panel.weights[b][q][strip][0], even);
        store_ints(panel.weights[b][q][strip][1], odd);
    });
    if constexpr (kPairs) store_ints(panel.own[b][strip], broadcast_int(0) - own);
    if constexpr (!scaled) {
        Lanes scale, minimum;
        block_scales<kType, true>(header, block, strip, 0, scale, minimum);
        store(panel.scales[b][strip], scale);
        if constexpr (kFormat<kType>.has_min) store(panel.minimums[b][strip], minimum);
    }
}

template <DType kType, bool kPairs>
void fill_panel(const uint8_t* header, int blocks, Panel& panel) {
    constexpr PackedFormat f = kFormat<kType>;
    for (int b = 0; b < blocks; ++b) {
        const uint8_t* block = header + f.header_bytes + b * f.block_bytes();
        repeat<2>([&](auto strip) TAKT_INLINE { fill_block<kType, kPairs>(header, block, strip, b, panel); });
    }
    if constexpr (kLateScale<kType, true>) {
        repeat<2>([&](auto strip) TAKT_INLINE { store(panel.late_scale[strip], load_f16(header + strip * 32)); });
    }
}

/// How a block's integers become part of a span's sums.
enum class PanelScales { block, block_and_minimum, in_weights };

template <int kRows>
TAKT_LANES void plain_sums(const Panel& panel, int b, const WideSpan* x, Ints (&sums)[2][kRows]) {
    repeat<2>([&](auto s) TAKT_INLINE { repeat<kRows>([&](auto r) TAKT_INLINE { sums[s][r] = broadcast_int(0); }); });
    repeat<kSteps>([&](auto step) TAKT_INLINE {
        repeat<2>([&](auto v) TAKT_INLINE {
            const Ints w[2] = {load_ints(panel.weights[b][step][0][v]), load_ints(panel.weights[b][step][1][v])};
            repeat<kRows>([&](auto r) TAKT_INLINE {
                const Ints column = broadcast_fresh_word(x[r].values + b * kBlockColumns + step * kStepColumns + v * 2);
                repeat<2>([&](auto s) TAKT_INLINE { sums[s][r] = dot_words(sums[s][r], w[s], column); });
            });
        });
    });
}

template <int kRows>
TAKT_LANES void paired_sums(const Panel& panel, int b, const WideSpan* x, Ints (&sums)[2][kRows]) {
    repeat<kRows>([&](auto r) TAKT_INLINE {
        const Ints start = broadcast_word(&x[r].pair_products[b]);
        repeat<2>([&](auto s) TAKT_INLINE { sums[s][r] = load_ints(panel.own[b][s]) - start; });
    });
    repeat<kSteps>([&](auto step) TAKT_INLINE {
        Ints w[2][2];
        repeat<2>([&](auto s) TAKT_INLINE { repeat<2>([&](auto v) TAKT_INLINE { w[s][v] = load_ints(panel.weights[b][step][s][v]); }); });
        repeat<kRows>([&](auto r) TAKT_INLINE {
            const int16_t* columns = x[r].values + b * kBlockColumns + step * kStepColumns;
            if constexpr (is_paired_step(step)) {
                const Ints even = broadcast_fresh_word(columns), odd = broadcast_fresh_word(columns + 2);
                repeat<2>([&](auto s) TAKT_INLINE {
                    sums[s][r] = dot_words(sums[s][r], add_words(even, w[s][1]), add_words(odd, w[s][0]));
                });
            } else {
                repeat<2>([&](auto v) TAKT_INLINE {
                    repeat<2>([&](auto s) TAKT_INLINE { sums[s][r] = dot_words(sums[s][r], w[s][v], columns + v * 2); });
                });
            }
        });
    });
}

/// Where a tile's outputs lie: their sums over the spans before, [row][32] (null: this is the first), and where these go.
struct PanelOut {
    const float* before;
    float* out;
    size_t stride;
};

/// Adds a span of `blocks`.
template <int kRows, PanelScales kScales, bool kPairs>
void panel_tile(const Panel& panel, int blocks, const WideSpan* x, const PanelOut& to) {
    constexpr bool scaled = kScales == PanelScales::in_weights;
    alignas(64) float part[2][kRows][kStripRows];
    repeat<2>([&](auto s) TAKT_INLINE { repeat<kRows>([&](auto r) TAKT_INLINE { store(part[s][r], zero()); }); });
    for (int b = 0; b < blocks; ++b) {
        Ints sums[2][kRows];
        if constexpr (kPairs) paired_sums<kRows>(panel, b, x, sums);
        else plain_sums<kRows>(panel, b, x, sums);
        repeat<2>([&](auto s) TAKT_INLINE {
            repeat<kRows>([&](auto r) TAKT_INLINE {
                Lanes sum = load(part[s][r]);
                if constexpr (scaled) sum = sum + to_float(sums[s][r]);
                else sum = fma(load(panel.scales[b][s]), to_float(sums[s][r]), sum);
                if constexpr (kScales == PanelScales::block_and_minimum) {
                    sum = fma(load(panel.minimums[b][s]), broadcast(x[r].sums[b]), sum);
                }
                store(part[s][r], sum);
            });
        });
    }
    repeat<2>([&](auto s) TAKT_INLINE {
        repeat<kRows>([&](auto r) TAKT_INLINE {
            const Lanes scale = broadcast(x[r].scale);
            const Lanes before = to.before == nullptr ? zero() : load(to.before + r * kGroupRows + s * kStripRows);
            store(to.out + static_cast<size_t>(r) * to.stride + s * kStripRows,
                  fma(load(part[s][r]), scaled ? load(panel.late_scale[s]) * scale : scale, before));
        });
    });
}

template <PanelScales kScales, bool kPairs>
void panel_tiles(int rows, const Panel& panel, int blocks, const WideSpan* x, const PanelOut& to) {
    switch (rows) {
        case 1: return panel_tile<1, kScales, kPairs>(panel, blocks, x, to);
        case 2: return panel_tile<2, kScales, kPairs>(panel, blocks, x, to);
        case 3: return panel_tile<3, kScales, kPairs>(panel, blocks, x, to);
        case 4: return panel_tile<4, kScales, kPairs>(panel, blocks, x, to);
        case 5: return panel_tile<5, kScales, kPairs>(panel, blocks, x, to);
        case 6: return panel_tile<6, kScales, kPairs>(panel, blocks, x, to);
        case 7: return panel_tile<7, kScales, kPairs>(panel, blocks, x, to);
        default: return panel_tile<8, kScales, kPairs>(panel, blocks, x, to);
    }
}

/// Rows whose sums lie side by side meanwhile: outputs may be far apart, in the same sets of a cache.
constexpr int kMaxPanelPass = 96;

template <DType kType, bool kPairs>
void panel_product(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride) {
    constexpr PackedFormat f = kFormat<kType>;
    constexpr PanelScales kScales = kLateScale<kType, true> ? PanelScales::in_weights
                                    : f.has_min              ? PanelScales::block_and_minimum
                                                             : PanelScales::block;
    static_assert(f.sub_columns == 32 || kLateScale<kType, true>);
    constexpr int64_t span_bytes = f.header_bytes + kSpanBlocks * f.block_bytes();
    Panel panel;
    alignas(64) float sums[kMaxPanelPass][kGroupRows];
    const int tiles = (num_rows + kWideTileRows - 1) / kWideTileRows;
    const uint8_t* record = group.data;
    for (int64_t first = 0; first < group.num_blocks; first += kSpanBlocks, record += span_bytes) {
        const bool ends = first + kSpanBlocks >= group.num_blocks;
        const auto blocks = static_cast<int>(ends ? group.num_blocks - first : kSpanBlocks);
        fill_panel<kType, kPairs>(record, blocks, panel);
        LinesAhead ahead(record + span_bytes, span_bytes / 64, tiles);   // the hardware sees no stream in reading with such pauses
        for (int t = 0; t < tiles; ++t) {
            ahead.step();
            const int from = num_rows * t / tiles, to = num_rows * (t + 1) / tiles;
            const float* before = first == 0 ? nullptr : sums[from];
            const PanelOut places = ends ? PanelOut{before, out + static_cast<size_t>(from) * out_stride, out_stride}
                                         : PanelOut{before, sums[from], kGroupRows};
            panel_tiles<kScales, kPairs>(to - from, panel, blocks, x.span(first / kSpanBlocks, row + from), places);
        }
    }
}

template <DType kType, bool kPairs>
void panel_passes(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride) {
    for (int from = 0; from < num_rows; from += kMaxPanelPass) {
        const int count = num_rows - from < kMaxPanelPass ? num_rows - from : kMaxPanelPass;
        panel_product<kType, kPairs>(group, x, row + from, count, out + static_cast<size_t>(from) * out_stride, out_stride);
    }
}

/// Fewer rows do not pay for the panel. Beside products in pairs types of 4 bits gain too little; Q2_K has minimums of halves in the way.
template <bool kPairs>
constexpr int panel_rows(DType t) {
    if (t == DType::q2_k || (kPairs && is_pairable(t))) return std::numeric_limits<int>::max();
    if (kPairs || packed_format(t).bytes) return 24;
    return is_pairable(t) ? 14 : 8;
}

template <bool kPairs>
void product_panel(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride) {
    const auto run = [&](auto type) {
        constexpr DType t = decltype(type)::value;
        if constexpr (panel_rows<kPairs>(t) < std::numeric_limits<int>::max()) {
            panel_passes<t, kPairs>(group, x, row, num_rows, out, out_stride);
        }
    };
    switch (group.type) {
        case DType::q4_0: return run(std::integral_constant<DType, DType::q4_0>{});
        case DType::q4_1: return run(std::integral_constant<DType, DType::q4_1>{});
        case DType::q5_0: return run(std::integral_constant<DType, DType::q5_0>{});
        case DType::q5_1: return run(std::integral_constant<DType, DType::q5_1>{});
        case DType::q8_0: return run(std::integral_constant<DType, DType::q8_0>{});
        case DType::q3_k: return run(std::integral_constant<DType, DType::q3_k>{});
        case DType::q4_k: return run(std::integral_constant<DType, DType::q4_k>{});
        case DType::q5_k: return run(std::integral_constant<DType, DType::q5_k>{});
        case DType::q6_k: return run(std::integral_constant<DType, DType::q6_k>{});
        default: return;   // more rows than there are
    }
}

/// A row's integers for product_panel(), span by span, `stride` spans apart.
template <bool kPairs>
void widen(const QuantBlock* blocks, int64_t num_blocks, WideSpan* out, int64_t stride) {
    for (int64_t first = 0; first < num_blocks; first += kSpanBlocks, out += stride) {
        out->scale = blocks[first].scale;
        for (int64_t b = first; b < num_blocks && b < first + kSpanBlocks; ++b) {
            const auto at = static_cast<size_t>(b - first);
            const Ints words = join_planes(blocks[b].values);
            store_ints(out->values + at * kBlockColumns, words);
            if constexpr (kPairs) out->pair_products[at] = sum_of_pairs(words, kPairedWords);
            out->sums[at] = blocks[b].float_sum;
        }
    }
}

}  // namespace
}  // namespace takt::cpu
