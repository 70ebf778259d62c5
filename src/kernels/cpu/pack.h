// Packs rows of a host tensor into groups of 32 output rows (packed_format.h), and reads single rows back. Load time and the
// embedding; pure, any thread.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace takt::cpu {

/// A source of up to 16 rows of one strip: rows [first, first + count) of `tensor`; the strip's other rows become zeros.
struct StripSource {
    const HostTensor* tensor = nullptr;
    int64_t first = 0;
    int count = 0;
};

/// Writes one group (`group_bytes(type, cols)` bytes, 64-byte aligned) from two strips of the same type and columns.
void pack_group(const StripSource& low, const StripSource& high, uint8_t* out);

/// Row `row` (0..31) of a packed group as float32, `cols` values.
void unpack_row(DType type, const uint8_t* group, int64_t cols, int row, float* out);

/// Block `block` (32 columns) of all rows of a packed group of a quantised type: out[column][32].
void unpack_block(DType type, const uint8_t* group, int64_t block, float* out);

/// One row of a host tensor as float32, `tensor.cols` values.
void row_to_float(const HostTensor& tensor, int64_t row, float* out);

}  // namespace takt::cpu
