// The packed layout of weights on the CPU device: groups of 32 output rows, each group one sequential stream of records along K.
// Knows sizes and offsets only; pack.cpp writes records, the kernels read them, both by this page.
//
// A record covers 32 columns (plain types, blocks of 32) or 256 (K types: a header, then eight blocks). Inside a block:
//   float16 d[32], m[32] | K types: scale bytes; then the planes of the first strip of 16 rows, each a number of 64-byte vectors, and
//   those of the second: in the order in which a product reads them, for the hardware's streams.
// In a vector, lane i (4 bytes) belongs to row i of the strip. "Quad" q is columns 4q..4q+3 of the block:
//   nibbles  4 vectors; vector v, byte b: column 8v+b in the low half, 8v+4+b in the high half
//   bytes    8 vectors; vector q, byte b: column 4q+b
//   twos     2 vectors; vector t, byte b, bits 2j..2j+1: column 16t+4j+b
//   ones     1 vector;  byte b, bit q: column 4q+b
// Quants are stored unsigned (file value + offset). Plain types: [column][32 rows].
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace takt::cpu {

constexpr int kGroupRows = 32;
constexpr int kStripRows = 16;
constexpr int kBlockColumns = 32;

constexpr bool is_plain(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }
constexpr bool is_k_type(DType t) {
    return t == DType::q2_k || t == DType::q3_k || t == DType::q4_k || t == DType::q5_k || t == DType::q6_k;
}
constexpr bool is_packable(DType t) {
    return is_plain(t) || is_k_type(t) || t == DType::q4_0 || t == DType::q4_1 || t == DType::q5_0 || t == DType::q5_1 ||
           t == DType::q8_0;
}

/// What a block of 32 columns of a quantised type holds.
struct PackedFormat {
    int header_bytes = 0;        ///< K types: float16 d[32] (and dmin[32]) once a record
    int blocks_per_record = 1;
    int scale_bytes = 0;         ///< at the block's begin
    bool nibbles = false, bytes = false, twos = false, ones = false;
    int ones_shift = 4;          ///< weight of the `ones` plane: 2^shift
    int offset = 0;              ///< stored quant - offset = signed quant
    bool has_min = false;
    int sub_columns = 32;        ///< columns with one scale

    // Where a plane of a strip begins in a block.
    [[nodiscard]] constexpr int nibbles_at(int strip) const { return scale_bytes + strip * strip_bytes(); }
    [[nodiscard]] constexpr int bytes_at(int strip) const { return scale_bytes + strip * strip_bytes(); }
    [[nodiscard]] constexpr int twos_at(int strip) const { return nibbles_at(strip) + (nibbles ? 256 : 0); }
    [[nodiscard]] constexpr int ones_at(int strip) const { return twos_at(strip) + (twos ? 128 : 0); }
    [[nodiscard]] constexpr int strip_bytes() const { return (nibbles ? 256 : 0) + (bytes ? 512 : 0) + (twos ? 128 : 0) + (ones ? 64 : 0); }
    [[nodiscard]] constexpr int block_bytes() const { return scale_bytes + 2 * strip_bytes(); }
    [[nodiscard]] constexpr int record_bytes() const { return header_bytes + blocks_per_record * block_bytes(); }
};

constexpr PackedFormat packed_format(DType t) {
    switch (t) {
        case DType::q4_0: return {.scale_bytes = 64, .nibbles = true, .offset = 8};
        case DType::q4_1: return {.scale_bytes = 128, .nibbles = true, .has_min = true};
        case DType::q5_0: return {.scale_bytes = 64, .nibbles = true, .ones = true, .offset = 16};
        case DType::q5_1: return {.scale_bytes = 128, .nibbles = true, .ones = true, .has_min = true};
        case DType::q8_0: return {.scale_bytes = 64, .bytes = true, .offset = 128};
        case DType::q2_k:
            return {.header_bytes = 128, .blocks_per_record = 8, .scale_bytes = 64, .twos = true, .has_min = true, .sub_columns = 16};
        case DType::q3_k:
            return {.header_bytes = 64, .blocks_per_record = 8, .scale_bytes = 64, .twos = true, .ones = true, .ones_shift = 2,
                    .offset = 4, .sub_columns = 16};
        case DType::q4_k:
            return {.header_bytes = 128, .blocks_per_record = 8, .scale_bytes = 64, .nibbles = true, .has_min = true};
        case DType::q5_k:
            return {.header_bytes = 128, .blocks_per_record = 8, .scale_bytes = 64, .nibbles = true, .ones = true, .has_min = true};
        case DType::q6_k:
            return {.header_bytes = 64, .blocks_per_record = 8, .scale_bytes = 64, .nibbles = true, .twos = true, .offset = 32,
                    .sub_columns = 16};
        default: return {};
    }
}

template <DType t>
inline constexpr PackedFormat kFormat = packed_format(t);

/// Types whose columns may be multiplied in pairs, see kernel_dots_paired.h. Q2_K and Q3_K have quants as small, but their unpacking takes
/// the ports that pairs need.
constexpr bool is_pairable(DType t) {
    const PackedFormat f = packed_format(t);
    return f.nibbles && !f.twos && !f.ones;
}

/// Blocks of 32 columns that `cols` columns take (the last one padded with zeros).
constexpr int64_t num_blocks(int64_t cols) { return (cols + kBlockColumns - 1) / kBlockColumns; }

/// Bytes of one group of 32 rows over `cols` columns.
constexpr size_t group_bytes(DType t, int64_t cols) {
    const auto blocks = static_cast<size_t>(num_blocks(cols));
    if (is_plain(t)) return blocks * kBlockColumns * kGroupRows * dtype_bytes(t, 1);
    const PackedFormat f = packed_format(t);
    return blocks / static_cast<size_t>(f.blocks_per_record) * static_cast<size_t>(f.record_bytes());
}

}  // namespace takt::cpu
