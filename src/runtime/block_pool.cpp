// BlockPool: see the header. Every operation is O(1) and allocates nothing.
#include "runtime/block_pool.h"

#include "kernels/assert.h"
#include "kernels/kv_layout.h"

namespace takt {

BlockPool::BlockPool(int32_t num_blocks)
    : references_(static_cast<size_t>(num_blocks), 0), in_list_(static_cast<size_t>(num_blocks), 1) {
    TAKT_ASSERT(num_blocks >= 1);
    in_list_[kDummyBlock] = 0;
    list_.reserve(static_cast<size_t>(num_blocks));
    for (int32_t block = num_blocks - 1; block > kDummyBlock; --block) list_.push_back(block);
}

int32_t BlockPool::take() {
    if (list_.empty()) return -1;
    const int32_t block = list_.back();
    list_.pop_back();
    in_list_[static_cast<size_t>(block)] = 0;
    references_[static_cast<size_t>(block)] = 1;
    return block;
}

void BlockPool::add_reference(int32_t block) {
    TAKT_ASSERT(block > kDummyBlock && block < num_blocks() && !is_free(block));
    ++references_[static_cast<size_t>(block)];
}

int32_t BlockPool::drop_reference(int32_t block) {
    TAKT_ASSERT(block > kDummyBlock && block < num_blocks() && references(block) > 0);
    return --references_[static_cast<size_t>(block)];
}

void BlockPool::free(int32_t block) {
    TAKT_ASSERT(block > kDummyBlock && block < num_blocks() && references(block) == 0 && !is_free(block));
    in_list_[static_cast<size_t>(block)] = 1;
    list_.push_back(block);
}

std::string BlockPool::check_integrity() const {
    if (in_list_[kDummyBlock] != 0 || references_[kDummyBlock] != 0) return "the dummy block is free or held";
    size_t num_flagged = 0;
    for (size_t block = 0; block < in_list_.size(); ++block) {
        num_flagged += in_list_[block];
        if (references_[block] < 0) return "block " + std::to_string(block) + " has a negative count";
        if (in_list_[block] != 0 && references_[block] != 0) return "block " + std::to_string(block) + " is free and held";
    }
    if (num_flagged != list_.size()) return "free list and flags disagree";
    for (const int32_t block : list_) {
        if (in_list_[static_cast<size_t>(block)] == 0) return "block " + std::to_string(block) + " is listed, not flagged";
    }
    return {};
}

}  // namespace takt
