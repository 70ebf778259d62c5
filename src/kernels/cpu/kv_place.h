// Where K and V lie in a layer's cache on the CPU device: [kv_head][K, V][block][...], so that a head's K and its V are two streams where
// blocks follow one another. Inside a block K lies in panels of 16 positions, each dimension by dimension: the scores of 16 positions
// are one vector, and nothing is transposed when it is read. V lies position by position. Behind a block's int8 elements lie the float32
// scales of its positions. Sizes are KvLayout's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kv_layout.h"

namespace takt::cpu {

constexpr int kPanelPositions = 16;

/// Positions of one panel: a block of 8 is a panel of its own.
constexpr int panel_positions(int block_tokens) { return block_tokens < kPanelPositions ? block_tokens : kPanelPositions; }

/// Byte offsets in a layer's buffer: of a head's K, of the same head's V, and from block to block.
inline size_t key_begin(const KvLayout& kv, int head) {
    return 2 * static_cast<size_t>(head) * static_cast<size_t>(kv.num_blocks) * kv.head_stride();
}
inline size_t value_begin(const KvLayout& kv, int head) {
    return key_begin(kv, head) + static_cast<size_t>(kv.num_blocks) * kv.head_stride();
}

/// Where (token, dim) lies in one block's K of a head, in elements.
constexpr size_t key_offset(int block_tokens, int head_dim, int token, int dim) {
    const int width = panel_positions(block_tokens);
    return static_cast<size_t>(token / width * width * head_dim + dim * width + token % width);
}

/// Puts one token's key, `head_dim` elements in a row, into its place in a head's K of one block.
template <class Element>
void place_key(const Element* key, int block_tokens, int head_dim, int token, uint8_t* block) {
    const auto stride = static_cast<size_t>(panel_positions(block_tokens)) * sizeof(Element);
    uint8_t* to = block + key_offset(block_tokens, head_dim, token, 0) * sizeof(Element);
    for (int d = 0; d < head_dim; ++d) std::memcpy(to + static_cast<size_t>(d) * stride, key + d, sizeof(Element));
}

}  // namespace takt::cpu
