// KvManager: see the header. Tables and the retire queue are reserved at construction, so that steps allocate nothing.
#include "runtime/kv.h"

#include <algorithm>

#include "kernels/assert.h"

namespace takt {

KvManager::KvManager(const KvConfig& config)
    : config_(config),
      pool_(config.num_blocks),
      cache_(config.num_blocks, config.block_tokens),
      tables_(static_cast<size_t>(config.max_running)) {
    const auto longest = static_cast<size_t>(std::min(blocks_for(config.max_context), pool_.num_usable()));
    for (Table& table : tables_) table.blocks.reserve(longest);
    retiring_.reserve(static_cast<size_t>(config.num_blocks) * 2);
}

int32_t KvManager::num_blocks_of(int32_t slot) const {
    return static_cast<int32_t>(tables_[static_cast<size_t>(slot)].blocks.size());
}

int32_t KvManager::match(uint64_t domain, std::span<const int32_t> tokens) const {
    if (!config_.prefix_cache || tokens.empty()) return 0;
    const auto width = static_cast<size_t>(config_.block_tokens);
    const size_t most = (tokens.size() - 1) / width;   // one token is always computed: its logits are needed
    PrefixCursor cursor = cache_.root(domain);
    size_t found = 0;
    while (found < most && cache_.find(cursor, domain, tokens.subspan(found * width, width)) >= 0) ++found;
    return static_cast<int32_t>(found * width);
}

int32_t KvManager::open(int32_t slot, uint64_t domain, std::span<const int32_t> tokens) {
    Table& table = tables_[static_cast<size_t>(slot)];
    TAKT_ASSERT(!table.open && table.blocks.empty());
    table.open = true;
    table.number = ++num_opened_;
    table.domain = domain;
    table.cursor = cache_.root(domain);
    table.num_published = 0;
    table.cacheable = config_.prefix_cache && !tokens.empty();
    if (!table.cacheable) return 0;
    const auto width = static_cast<size_t>(config_.block_tokens);
    const size_t most = (tokens.size() - 1) / width;
    for (size_t found = 0; found < most; ++found) {
        const int32_t block = cache_.find(table.cursor, domain, tokens.subspan(found * width, width));
        if (block < 0) {
            num_missed_blocks_ += most - found;
            break;
        }
        cache_.set_leased(block);
        pool_.add_reference(block);
        table.blocks.push_back(block);
        ++table.num_published;
        ++num_hit_blocks_;
    }
    return table.num_published * config_.block_tokens;
}

int32_t KvManager::take() {
    const int32_t block = pool_.take();
    if (block >= 0) return block;
    const int32_t evicted = cache_.evict();
    if (evicted < 0) return -1;
    ++num_evicted_;
    pool_.add_reference(evicted);
    return evicted;
}

bool KvManager::reserve(int32_t slot, int64_t num_tokens) {
    Table& table = tables_[static_cast<size_t>(slot)];
    TAKT_ASSERT(table.open);
    const int32_t lacking = blocks_for(num_tokens) - static_cast<int32_t>(table.blocks.size());
    if (lacking > num_available()) return false;
    for (int32_t i = 0; i < lacking; ++i) table.blocks.push_back(take());
    return true;
}

void KvManager::publish(int32_t slot, std::span<const int32_t> tokens) {
    Table& table = tables_[static_cast<size_t>(slot)];
    TAKT_ASSERT(table.open && table.num_published < static_cast<int32_t>(table.blocks.size()));
    const int32_t block = table.blocks[static_cast<size_t>(table.num_published++)];
    if (!table.cacheable) return;
    const PrefixCursor before = table.cursor;
    cache_.insert(table.cursor, table.domain, tokens, block);
    if (table.cursor.block == before.block) table.cacheable = false;   // the chain it would continue was evicted
}

void KvManager::give_up(int32_t block) {
    if (pool_.drop_reference(block) > 0) return;
    if (cache_.contains(block)) {
        cache_.set_idle(block);
    } else {
        pool_.free(block);
    }
}

void KvManager::release(int32_t slot, uint64_t ticket) {
    Table& table = tables_[static_cast<size_t>(slot)];
    TAKT_ASSERT(table.open);
    // From the end, so that the deepest blocks of a chain are the first to be evicted and a chain never loses its middle.
    for (size_t i = table.blocks.size(); i-- > 0;) {
        if (ticket <= retired_) {
            give_up(table.blocks[i]);
        } else {
            retiring_.push_back({ticket, table.blocks[i]});
        }
    }
    table.blocks.clear();
    table.open = false;
}

void KvManager::retire(uint64_t ticket) {
    retired_ = std::max(retired_, ticket);
    size_t kept = 0;
    for (const Retiring& entry : retiring_) {
        if (entry.ticket <= retired_) {
            give_up(entry.block);
        } else {
            retiring_[kept++] = entry;
        }
    }
    retiring_.resize(kept);
}

std::span<const int32_t> KvManager::table(int32_t slot) const { return tables_[static_cast<size_t>(slot)].blocks; }

KvCounts KvManager::counts() const {
    KvCounts counts;
    counts.num_total = pool_.num_usable();
    counts.num_free = pool_.num_free();
    counts.num_idle = cache_.num_idle();
    counts.num_used = counts.num_total - counts.num_free - counts.num_idle;
    counts.num_retiring = num_retiring();
    counts.num_hit_blocks = num_hit_blocks_;
    counts.num_missed_blocks = num_missed_blocks_;
    counts.num_evicted = num_evicted_;
    return counts;
}

std::string KvManager::check_integrity() const {
    if (std::string wrong = pool_.check_integrity(); !wrong.empty()) return wrong;
    if (std::string wrong = cache_.check_integrity(); !wrong.empty()) return wrong;
    std::vector<int32_t> holders(static_cast<size_t>(pool_.num_blocks()), 0);
    for (const Table& table : tables_) {
        if (!table.open && !table.blocks.empty()) return "a closed table holds blocks";
        for (const int32_t block : table.blocks) ++holders[static_cast<size_t>(block)];
    }
    for (const Retiring& entry : retiring_) ++holders[static_cast<size_t>(entry.block)];
    for (int32_t block = 0; block < pool_.num_blocks(); ++block) {
        const std::string name = "block " + std::to_string(block);
        const int32_t count = holders[static_cast<size_t>(block)];
        if (count != pool_.references(block)) return name + " has another count than holders";
        if (block == 0) continue;
        const bool idle = cache_.is_idle(block);
        if (count > 0 && idle) return name + " is held and evictable";
        if (count == 0 && !idle && !pool_.is_free(block)) return name + " is lost";
        if (pool_.is_free(block) && cache_.contains(block)) return name + " is free and cached";
    }
    return {};
}

}  // namespace takt
