// KvManager: who holds which KV block. One block table a device slot, a retire queue keyed by the step's ticket, and the prefix
// cache. Pure, engine thread only; it knows slots, tokens and tickets, not requests, clocks or devices.
// Every block is exactly one of: free; cached and idle; held by tables and retire entries (as often as its count says).
// Nothing that a launched step names is freed or rewritten before `retire` of that step: `release` takes the last such ticket.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/block_pool.h"
#include "runtime/prefix_cache.h"

namespace takt {

struct KvConfig {
    int32_t num_blocks = 0;       ///< the dummy block included
    int32_t block_tokens = 16;
    int32_t max_running = 0;      ///< number of slots
    int32_t max_context = 0;      ///< tokens of the longest sequence
    bool prefix_cache = true;
};

struct KvCounts {
    int32_t num_total = 0;        ///< usable blocks
    int32_t num_free = 0;         ///< in the free list
    int32_t num_idle = 0;         ///< cached, nobody holds them: as good as free
    int32_t num_used = 0;         ///< held by a request or a launched step
    int32_t num_retiring = 0;     ///< entries of the retire queue
    uint64_t num_hit_blocks = 0, num_missed_blocks = 0, num_evicted = 0;
};

class KvManager {
public:
    explicit KvManager(const KvConfig& config);

    [[nodiscard]] int32_t block_tokens() const { return config_.block_tokens; }
    [[nodiscard]] int32_t blocks_for(int64_t num_tokens) const {
        return static_cast<int32_t>((num_tokens + config_.block_tokens - 1) / config_.block_tokens);
    }
    /// Blocks that could be handed out now.
    [[nodiscard]] int32_t num_available() const { return pool_.num_free() + cache_.num_idle(); }
    /// Blocks whose only holder is the retire queue (upper bound): available once the launched steps end.
    [[nodiscard]] int32_t num_retiring() const { return static_cast<int32_t>(retiring_.size()); }
    [[nodiscard]] int32_t num_usable() const { return pool_.num_usable(); }
    [[nodiscard]] int32_t num_blocks_of(int32_t slot) const;

    /// How many leading tokens of the list are cached now: whole blocks, and never the last token. Changes nothing.
    [[nodiscard]] int32_t match(uint64_t domain, std::span<const int32_t> tokens) const;
    /// Opens an empty table for a sequence, taking its cached beginning. Returns the cached tokens.
    int32_t open(int32_t slot, uint64_t domain, std::span<const int32_t> tokens);
    /// Grows the table to hold positions [0, num_tokens). All or nothing; evicts idle cached blocks where needed.
    bool reserve(int32_t slot, int64_t num_tokens);
    /// The KV of block `index` of the table is complete and valid and holds these tokens: the cache may offer it. Blocks are
    /// published in order, each once.
    void publish(int32_t slot, std::span<const int32_t> tokens);
    [[nodiscard]] int32_t num_published(int32_t slot) const { return tables_[static_cast<size_t>(slot)].num_published; }
    /// Closes the table. Its blocks are given up when `ticket` is retired, at once if it has been.
    void release(int32_t slot, uint64_t ticket);
    /// Steps up to `ticket` are over.
    void retire(uint64_t ticket);

    [[nodiscard]] std::span<const int32_t> table(int32_t slot) const;
    /// Of the slot's table, never 0 and never that of another: while it stays, the table only grows at its end.
    [[nodiscard]] uint64_t table_number(int32_t slot) const { return tables_[static_cast<size_t>(slot)].number; }
    [[nodiscard]] KvCounts counts() const;
    [[nodiscard]] std::string check_integrity() const;

private:
    struct Table {
        std::vector<int32_t> blocks;
        PrefixCursor cursor;          // after the last published block
        uint64_t domain = 0;
        uint64_t number = 0;          // counts the tables opened
        int32_t num_published = 0;
        bool open = false;
        bool cacheable = false;       // false once a publish met an evicted parent
    };
    struct Retiring {
        uint64_t ticket = 0;
        int32_t block = 0;
    };
    int32_t take();
    void give_up(int32_t block);

    KvConfig config_;
    BlockPool pool_;
    PrefixCache cache_;
    std::vector<Table> tables_;       // [max_running]
    std::vector<Retiring> retiring_;
    uint64_t retired_ = 0;
    uint64_t num_opened_ = 0;
    uint64_t num_hit_blocks_ = 0, num_missed_blocks_ = 0, num_evicted_ = 0;
};

}  // namespace takt
