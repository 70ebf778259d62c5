// Rounding of float32 weights to the block formats of GGUF: scales by least squares over a few candidates, then the nearest quants
// for the scales as stored. Pure; any thread.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace takt {

/// `count` weights, a whole number of blocks of `type` (q8_0, q4_0, q4_1, q4_k or q6_k), to dtype_bytes(type, count) bytes.
void encode_blocks(DType type, const float* weights, int64_t count, uint8_t* out);

/// The positive scale of quants in [-levels, levels - 1] with the least squared error over `count` weights among the candidates.
float fit_symmetric_scale(const float* weights, int count, int levels);

}  // namespace takt
