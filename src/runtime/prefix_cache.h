// PrefixCache: index of KV blocks by what they hold, so that equal beginnings of prompts share blocks. Pure, engine thread
// only. A block is found by a chained hash and trusted only after domain, parent block and all tokens were compared; so a
// collision costs a miss, never a wrong answer. Domains keep tenants apart: a block is never found from another domain.
// It knows block ids and tokens, not requests; references are counted by the pool, KvManager says which blocks are idle.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace takt {

/// A place in a chain of cached blocks: after `block`, whose incarnation is `generation`. Block 0: at the root.
struct PrefixCursor {
    uint64_t hash = 0;
    int32_t block = 0;
    uint32_t generation = 0;
};

class PrefixCache {
public:
    PrefixCache(int32_t num_blocks, int32_t block_tokens);

    [[nodiscard]] PrefixCursor root(uint64_t domain) const;
    /// The cached block that continues `cursor` with exactly these block_tokens tokens, or -1; advances the cursor if found.
    int32_t find(PrefixCursor& cursor, uint64_t domain, std::span<const int32_t> tokens) const;
    /// Puts `block` in at the cursor, or finds the one that already stands there; advances the cursor either way.
    /// Returns whether `block` itself is in the cache now. False also when the cursor's block was evicted.
    bool insert(PrefixCursor& cursor, uint64_t domain, std::span<const int32_t> tokens, int32_t block);

    [[nodiscard]] bool contains(int32_t block) const { return entries_[static_cast<size_t>(block)].present; }
    /// Nobody holds the cached block any more: it may be evicted, the longest idle first.
    void set_idle(int32_t block);
    /// Somebody holds it again.
    void set_leased(int32_t block);
    /// Forgets the block that was idle longest and returns it, or -1.
    int32_t evict();
    [[nodiscard]] int32_t num_idle() const { return num_idle_; }
    [[nodiscard]] int32_t num_cached() const { return num_cached_; }
    [[nodiscard]] bool is_idle(int32_t block) const { return entries_[static_cast<size_t>(block)].idle; }
    [[nodiscard]] std::string check_integrity() const;

private:
    struct Entry {
        uint64_t hash = 0;
        uint64_t domain = 0;
        int32_t parent = 0;
        uint32_t parent_generation = 0;
        uint32_t generation = 0;      // counts evictions of this block id
        int32_t previous = -1, next = -1;   // idle list, oldest first
        bool present = false, idle = false;
    };
    [[nodiscard]] uint64_t chain(const PrefixCursor& cursor, std::span<const int32_t> tokens) const;
    [[nodiscard]] int32_t lookup(const PrefixCursor& cursor, uint64_t hash, uint64_t domain,
                                 std::span<const int32_t> tokens) const;
    [[nodiscard]] bool alive(const PrefixCursor& cursor) const;
    void index_insert(uint64_t hash, int32_t block);
    void index_erase(uint64_t hash, int32_t block);
    void unlink(int32_t block);

    int32_t block_tokens_;
    std::vector<Entry> entries_;      // [num_blocks]
    std::vector<int32_t> tokens_;     // [num_blocks][block_tokens]
    std::vector<int32_t> index_;      // open addressing by hash; -1 empty
    int32_t oldest_ = -1, newest_ = -1;
    int32_t num_idle_ = 0, num_cached_ = 0;
};

}  // namespace takt
