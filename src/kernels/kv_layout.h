// KvLayout: the only source of sizes and strides of the paged KV cache, for every device.
// Per layer one buffer [block][K=0, V=1][kv_head][block_tokens][head_dim]; quantised types have float32 scales [block_tokens] behind the
// elements of each head's K and V in a block, so that a block stays one piece. The CPU device orders the same bytes of a layer in its
// own way (kernels/cpu/kv_place.h). A block id spans all layers. Block 0 is the dummy block: padding rows write there, padded block tables
// point there, and no request ever owns it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace takt {

constexpr int32_t kDummyBlock = 0;

struct KvLayout {
    DType type = DType::f16;        ///< f32, f16, bf16, i8, fp8_e4m3; u8 with head_dim 8 for the sim device's hashes
    int32_t num_layers = 0;
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t block_tokens = 16;
    int32_t num_blocks = 0;         ///< the dummy block included

    [[nodiscard]] bool has_scales() const { return type == DType::i8 || type == DType::fp8_e4m3; }
    [[nodiscard]] size_t token_stride() const { return dtype_bytes(type, static_cast<size_t>(head_dim)); }    // bytes
    /// Where the scales of a head's K or V in a block begin, in bytes: behind its elements.
    [[nodiscard]] size_t scales_begin() const { return token_stride() * static_cast<size_t>(block_tokens); }
    [[nodiscard]] size_t head_stride() const {
        return scales_begin() + (has_scales() ? sizeof(float) * static_cast<size_t>(block_tokens) : 0);
    }
    [[nodiscard]] size_t kv_stride() const { return head_stride() * static_cast<size_t>(num_kv_heads); }      // K to V
    [[nodiscard]] size_t block_stride() const { return 2 * kv_stride(); }
    [[nodiscard]] size_t layer_bytes() const { return block_stride() * static_cast<size_t>(num_blocks); }
    /// Bytes of one block over all layers, scales included: the unit of the memory plan.
    [[nodiscard]] size_t block_bytes() const { return block_stride() * static_cast<size_t>(num_layers); }
    /// Byte offset in a layer's buffer of (block, K or V, kv head, token in block); not on the CPU device.
    [[nodiscard]] size_t offset(int64_t block, int kv, int head, int token) const {
        return static_cast<size_t>(block) * block_stride() + static_cast<size_t>(kv) * kv_stride() +
               static_cast<size_t>(head) * head_stride() + static_cast<size_t>(token) * token_stride();
    }
};

}  // namespace takt
