// BlockPool: ids of KV blocks with reference counts and a free list; nothing else. Pure, engine thread only. It must not know
// of requests, tokens or devices. Block 0 is the dummy block: padding rows write there, and it is never handed out.
// A block is free (in the list), held (references > 0) or idle (no references, not in the list: the prefix cache owns it).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace takt {

class BlockPool {
public:
    /// `num_blocks` includes the dummy block.
    explicit BlockPool(int32_t num_blocks);

    /// A free block with one reference, or -1.
    int32_t take();
    /// One more holder, of a held or an idle block.
    void add_reference(int32_t block);
    /// One holder less; returns how many are left. At 0 the block is idle until `free` or `add_reference`.
    int32_t drop_reference(int32_t block);
    /// An idle block back to the free list.
    void free(int32_t block);

    [[nodiscard]] int32_t references(int32_t block) const { return references_[static_cast<size_t>(block)]; }
    [[nodiscard]] bool is_free(int32_t block) const { return in_list_[static_cast<size_t>(block)] != 0; }
    [[nodiscard]] int32_t num_free() const { return static_cast<int32_t>(list_.size()); }
    /// Blocks that can be handed out at all.
    [[nodiscard]] int32_t num_usable() const { return static_cast<int32_t>(references_.size()) - 1; }
    [[nodiscard]] int32_t num_blocks() const { return static_cast<int32_t>(references_.size()); }
    /// Empty if the list and the flags agree and no free block has a holder.
    [[nodiscard]] std::string check_integrity() const;

private:
    std::vector<int32_t> references_;   // [num_blocks]
    std::vector<uint8_t> in_list_;      // [num_blocks]
    std::vector<int32_t> list_;         // stack; the last freed is handed out first (warm in cache)
};

}  // namespace takt
