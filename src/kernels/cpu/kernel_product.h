// Products of packed weights with rows of activations. Quantised: exact int32 sums inside a block of 32 columns, then one
// multiplication of the two scales and one FMA a block, lane = output row: the same bits on every path, tile and thread.
#pragma once

#include "kernels/cpu/kernel_math.h"
#include "kernels/cpu/kernel_product_planes.h"
#include "kernels/cpu/pack.h"

namespace takt::cpu {
namespace {

/// The quants of one strip and block times kRows rows, then the scales into the strip's accumulators.
template <int kRows, DType kType, bool kHigh>
TAKT_LANES void simple_block(const uint8_t* record, int strip, const QuantBlock* const* x, Lanes* acc) {
    const uint8_t* planes = record + kFormat<kType>.scale_bytes + strip * (kFormat<kType>.nibbles ? 256 : 512);
    BlockSums<kRows> sums;
    repeat<kRows>([&](auto r) TAKT_INLINE { begin_sum<r>(sums, kFormat<kType>.offset == 0 ? 0 : -kFormat<kType>.offset * x[r]->sum); });
    if constexpr (kFormat<kType>.nibbles) {
        dot_nibbles<kHigh>(planes, x, sums);
    } else {
        dot_bytes<kHigh>(planes, x, sums);
    }
    const Lanes d = load_f16(record + strip * 32);
    repeat<kRows>([&](auto r) TAKT_INLINE {
        acc[r] = fma(d * broadcast(x[r]->scale), to_float(end_sum<kHigh, r>(sums)), acc[r]);
        if constexpr (kFormat<kType>.has_min) acc[r] = fma(load_f16(record + 64 + strip * 32), broadcast(x[r]->scaled_sum), acc[r]);
    });
}

template <int kRows, DType kType, bool kHigh>
void product_simple_tile(const PackedGroup& group, const QuantRows& rows, int64_t row, float* out, size_t out_stride) {
    for (int strip = 0; strip < 2; strip += kStripsPerPass) {
        Lanes acc[kStripsPerPass][kRows];
        repeat<kStripsPerPass>([&](auto s) TAKT_INLINE { repeat<kRows>([&](auto r) TAKT_INLINE { acc[s][r] = zero(); }); });
        const uint8_t* record = group.data;
        const int64_t bytes = group.num_blocks * kFormat<kType>.record_bytes();
        for (int64_t b = 0; b < group.num_blocks; ++b, record += kFormat<kType>.record_bytes()) {
            const QuantBlock* x[kRows];
            repeat<kRows>([&](auto r) TAKT_INLINE { x[r] = rows.row(row + r) + b; });
            if constexpr (kRows > 1) fetch_record<kType>(group.fetch_next, record + bytes);
            repeat<kStripsPerPass>([&](auto s) TAKT_INLINE { simple_block<kRows, kType, kHigh>(record, strip + s, x, acc[s]); });
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
    if constexpr (kFormat<kType>.twos || kFormat<kType>.ones || kFormat<kType>.header_bytes > 0) {
        if (x.bytes_only) return product_planes_tile<kRows, kType, false>(group, x, row, out, out_stride);
        product_planes_tile<kRows, kType, true>(group, x, row, out, out_stride);
    } else {
        if (x.bytes_only) return product_simple_tile<kRows, kType, false>(group, x, row, out, out_stride);
        product_simple_tile<kRows, kType, true>(group, x, row, out, out_stride);
    }
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
