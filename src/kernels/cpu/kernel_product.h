// Products of packed weights with rows of activations. Quantised: exact int32 sums inside a block of 32 columns, one FMA under the
// weights' scale a block and one under the activations' a span of blocks, lane = output row: the same bits on every path, tile and
// thread.
#pragma once

#include "kernels/cpu/kernel_math.h"
#include "kernels/cpu/kernel_product_block.h"
#include "kernels/cpu/pack.h"

namespace takt::cpu {
namespace {

template <int kRows, DType kType, Dots kDots>
void product_tile(const PackedGroup& group, const QuantRows& rows, int64_t row, float* out, size_t out_stride) {
    constexpr bool kHigh = kDots != Dots::low;
    constexpr PackedFormat f = kFormat<kType>;
    static_assert(f.header_bytes == 0 || f.blocks_per_record == kSpanBlocks);
    const int64_t ahead = group.fetch_ahead;
    for (int strip = 0; strip < 2; strip += kStripsPerPass) {
        Lanes acc[kStripsPerPass][kRows];
        repeat<kStripsPerPass>([&](auto s) TAKT_INLINE { repeat<kRows>([&](auto r) TAKT_INLINE { acc[s][r] = zero(); }); });
        const bool fetches = ahead > 0 && (kRows == 1 ? strip == 0 : strip + kStripsPerPass == 2);
        const QuantBlock* x[kRows];
        repeat<kRows>([&](auto r) TAKT_INLINE { x[r] = rows.row(row + r); });
        const uint8_t* block = group.data;
        const int16_t* pairs = group.pair_sums;
        for (int64_t left = group.num_blocks; left > 0; left -= kSpanBlocks) {
            const uint8_t* header = block;
            fetch_bytes<f.header_bytes>(fetches, header + ahead);
            block += f.header_bytes;
            Lanes part[kStripsPerPass][kRows];
            float scales[kRows];
            repeat<kRows>([&](auto r) TAKT_INLINE { scales[r] = x[r]->scale; });
            repeat<kStripsPerPass>([&](auto s) TAKT_INLINE { repeat<kRows>([&](auto r) TAKT_INLINE { part[s][r] = zero(); }); });
            // A block's share of the next group with each block: a whole record at once would fill every miss the core may have.
            for (int64_t i = left < kSpanBlocks ? left : kSpanBlocks; i > 0; --i, block += f.block_bytes()) {
                fetch_bytes<f.block_bytes()>(fetches, block + ahead);
                if constexpr (kDots == Dots::paired) fetch_bytes<kGroupRows * 2>(fetches, pairs + group.num_blocks * kGroupRows);
                repeat<kStripsPerPass>([&](auto s) TAKT_INLINE {
                    add_block<kType, kRows, kDots>(header, block, pairs, strip + s, x, part[s]);
                    if constexpr (!kHigh) {
                        repeat<kRows>([&](auto r) TAKT_INLINE { scales[r] = x[r]->scale; });
                        end_span<kType, kRows, kHigh>(header, strip + s, scales, part[s], acc[s]);
                        repeat<kRows>([&](auto r) TAKT_INLINE { part[s][r] = zero(); });
                    }
                });
                repeat<kRows>([&](auto r) TAKT_INLINE { ++x[r]; });
                if constexpr (kDots == Dots::paired) pairs += kGroupRows;
            }
            if constexpr (kHigh) {
                repeat<kStripsPerPass>([&](auto s) TAKT_INLINE {
                    end_span<kType, kRows, kHigh>(header, strip + s, scales, part[s], acc[s]);
                });
            }
        }
        repeat<kStripsPerPass>([&](auto s) TAKT_INLINE {
            repeat<kRows>([&](auto r) TAKT_INLINE {
                store(out + static_cast<size_t>(r) * out_stride + (strip + s) * 16, acc[s][r]);
            });
        });
    }
}

template <int kRows, DType kType>
void product_tile(const PackedGroup& group, const QuantRows& x, int64_t row, float* out, size_t out_stride) {
    if (x.bytes_only) return product_tile<kRows, kType, Dots::low>(group, x, row, out, out_stride);
    if constexpr (kPairsColumns && kRows > 2 && is_pairable(kType)) {
        if (group.pair_sums != nullptr) return product_tile<kRows, kType, Dots::paired>(group, x, row, out, out_stride);
    }
    product_tile<kRows, kType, Dots::both>(group, x, row, out, out_stride);
}

template <DType kType>
void product_rows(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride) {
    switch (num_rows) {
        case 1: return product_tile<1, kType>(group, x, row, out, out_stride);
        case 2: return product_tile<2, kType>(group, x, row, out, out_stride);
        case 3:
            if constexpr (kMaxTileRows >= 3) return product_tile<3, kType>(group, x, row, out, out_stride);
            break;
        case 4:
            if constexpr (kMaxTileRows >= 4) return product_tile<4, kType>(group, x, row, out, out_stride);
            break;
        case 5:
            if constexpr (kMaxTileRows >= 5) return product_tile<5, kType>(group, x, row, out, out_stride);
            break;
        default:
            if constexpr (kMaxTileRows >= 6) return product_tile<6, kType>(group, x, row, out, out_stride);
    }
}

void product(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride) {
    switch (group.type) {
        case DType::q4_0: return product_rows<DType::q4_0>(group, x, row, num_rows, out, out_stride);
        case DType::q4_1: return product_rows<DType::q4_1>(group, x, row, num_rows, out, out_stride);
        case DType::q5_0: return product_rows<DType::q5_0>(group, x, row, num_rows, out, out_stride);
        case DType::q5_1: return product_rows<DType::q5_1>(group, x, row, num_rows, out, out_stride);
        case DType::q2_k: return product_rows<DType::q2_k>(group, x, row, num_rows, out, out_stride);
        case DType::q3_k: return product_rows<DType::q3_k>(group, x, row, num_rows, out, out_stride);
        case DType::q4_k: return product_rows<DType::q4_k>(group, x, row, num_rows, out, out_stride);
        case DType::q5_k: return product_rows<DType::q5_k>(group, x, row, num_rows, out, out_stride);
        case DType::q6_k: return product_rows<DType::q6_k>(group, x, row, num_rows, out, out_stride);
        default: return product_rows<DType::q8_0>(group, x, row, num_rows, out, out_stride);
    }
}

/// One block of 32 columns x 32 rows as float32: w[column][32].
void dequantise_block(const PackedGroup& group, int64_t block, float* w) {
    if (is_plain(group.type)) {
        const size_t column_bytes = kGroupRows * dtype_bytes(group.type, 1);
        const uint8_t* p = group.data + static_cast<size_t>(block) * kBlockColumns * column_bytes;
        for (int i = 0; i < kBlockColumns * 2; ++i) {
            const uint8_t* at = p + static_cast<size_t>(i) * (column_bytes / 2);
            const Lanes v = group.type == DType::f32   ? load(reinterpret_cast<const float*>(at))
                            : group.type == DType::f16 ? load_f16(at)
                                                       : load_bf16(at);
            store(w + i * 16, v);
        }
        return;
    }
    const PackedFormat f = packed_format(group.type);
    if (f.twos || f.ones || f.header_bytes > 0) {
        unpack_block(group.type, group.data, block, w);
        return;
    }
    const uint8_t* record = group.data + block * f.record_bytes();
    for (int strip = 0; strip < 2; ++strip) {
        const Lanes d = load_f16(record + strip * 32);
        const Lanes m = f.has_min ? load_f16(record + 64 + strip * 32) : zero();
        const uint8_t* planes = record + f.scale_bytes + strip * (f.nibbles ? 256 : 512);
        // Rounded as a dequantised file is: d * q, then + m.
        const auto put = [&](int column, Ints q) TAKT_INLINE {
            store(w + column * kGroupRows + strip * 16, d * to_float(q + broadcast_int(-f.offset)) + m);
        };
        for (int v = 0; v < (f.nibbles ? 4 : 8); ++v) {
            const Ints raw = load_ints(planes + v * 64);
            repeat<4>([&](auto b) TAKT_INLINE {
                constexpr int shift = 8 * decltype(b)::value;
                if (!f.nibbles) return put(v * 4 + b, shift_and<shift>(raw, 0xffu));
                put(v * 8 + b, shift_and<shift>(raw, 0x0fu));
                put(v * 8 + 4 + b, shift_and<shift + 4>(raw, 0x0fu));
            });
        }
    }
}

void product_float(const PackedGroup& group, const float* x, size_t x_stride, int num_rows, float* out, size_t out_stride) {
    alignas(64) float w[kBlockColumns * kGroupRows];
    for (int r = 0; r < num_rows; ++r) {
        store(out + static_cast<size_t>(r) * out_stride, zero());
        store(out + static_cast<size_t>(r) * out_stride + 16, zero());
    }
    for (int64_t b = 0; b < group.num_blocks; ++b) {
        dequantise_block(group, b, w);
        for (int r = 0; r < num_rows; ++r) {
            const float* row = x + static_cast<size_t>(r) * x_stride + b * kBlockColumns;
            float* o = out + static_cast<size_t>(r) * out_stride;
            Lanes a0 = load(o);
            Lanes a1 = load(o + 16);
            for (int c = 0; c < kBlockColumns; ++c) {
                const Lanes v = broadcast(row[c]);
                a0 = fma(load(w + c * kGroupRows), v, a0);
                a1 = fma(load(w + c * kGroupRows + 16), v, a1);
            }
            store(o, a0);
            store(o + 16, a1);
        }
    }
}

}  // namespace
}  // namespace takt::cpu
