// Reads the blocks of quantised tensors as files hold them (the GGUF block types) into one common form. Load time only; pure.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace takt::cpu {

/// 32 columns of one row. Weight c = scale(c / sub_columns) * (q[c] - offset) - min(...), see packed_format.h.
struct BlockQuants {
    uint8_t q[32] = {};
    uint16_t d = 0;        ///< float16: block scale, or the super-block's
    uint16_t m = 0;        ///< float16: block minimum (added), or the super-block's (subtracted)
    uint8_t scales[2] = {};///< K types: the two scale bytes of the packed block
};

/// Block `index` (of 32 columns) of a row that begins at `row`. `type` must be a quantised type.
BlockQuants read_block(DType type, const uint8_t* row, int64_t index);

/// The 32 weights of a block as float32, by the file format's own arithmetic (products and sums rounded one by one).
void block_to_float(DType type, const BlockQuants& block, float out[32]);

}  // namespace takt::cpu
