// PrefixCache: open addressing with linear probing and backward-shift deletion, so that nothing is allocated after the
// constructor; the idle list is threaded through the entries.
#include "runtime/prefix_cache.h"

#include <algorithm>
#include <bit>

#include "kernels/assert.h"

namespace takt {
namespace {

// Fields are mixed with their kind and length, so that no two different keys have the same encoding.
enum class Field : uint64_t { domain = 0x646f6d61696eULL, block_size = 0x626c6f636bULL, tokens = 0x746f6b656eULL };

uint64_t mix(uint64_t state, uint64_t value) {
    uint64_t x = state ^ (value + 0x9e3779b97f4a7c15ULL + (state << 6) + (state >> 2));
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

uint64_t mix_field(uint64_t state, Field field, uint64_t length) { return mix(mix(state, static_cast<uint64_t>(field)), length); }

}  // namespace

PrefixCache::PrefixCache(int32_t num_blocks, int32_t block_tokens)
    : block_tokens_(block_tokens),
      entries_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_tokens)),
      index_(std::bit_ceil(static_cast<size_t>(num_blocks) * 2), -1) {}

PrefixCursor PrefixCache::root(uint64_t domain) const {
    uint64_t hash = mix(mix_field(0, Field::domain, 1), domain);
    hash = mix(mix_field(hash, Field::block_size, 1), static_cast<uint64_t>(block_tokens_));
    return {hash, 0, 0};
}

uint64_t PrefixCache::chain(const PrefixCursor& cursor, std::span<const int32_t> tokens) const {
    uint64_t hash = mix_field(cursor.hash, Field::tokens, tokens.size());
    for (const int32_t token : tokens) hash = mix(hash, static_cast<uint32_t>(token));
    return hash;
}

bool PrefixCache::alive(const PrefixCursor& cursor) const {
    if (cursor.block == 0) return true;
    const Entry& entry = entries_[static_cast<size_t>(cursor.block)];
    return entry.present && entry.generation == cursor.generation;
}

int32_t PrefixCache::lookup(const PrefixCursor& cursor, uint64_t hash, uint64_t domain,
                            std::span<const int32_t> tokens) const {
    const size_t mask = index_.size() - 1;
    for (size_t at = hash & mask; index_[at] >= 0; at = (at + 1) & mask) {
        const int32_t block = index_[at];
        const Entry& entry = entries_[static_cast<size_t>(block)];
        if (entry.hash != hash || entry.domain != domain || entry.parent != cursor.block ||
            entry.parent_generation != cursor.generation) {
            continue;
        }
        const int32_t* own = &tokens_[static_cast<size_t>(block) * static_cast<size_t>(block_tokens_)];
        if (std::equal(tokens.begin(), tokens.end(), own)) return block;
    }
    return -1;
}

int32_t PrefixCache::find(PrefixCursor& cursor, uint64_t domain, std::span<const int32_t> tokens) const {
    TAKT_ASSERT(tokens.size() == static_cast<size_t>(block_tokens_));
    const uint64_t hash = chain(cursor, tokens);
    const int32_t block = lookup(cursor, hash, domain, tokens);
    if (block >= 0) cursor = {hash, block, entries_[static_cast<size_t>(block)].generation};
    return block;
}

bool PrefixCache::insert(PrefixCursor& cursor, uint64_t domain, std::span<const int32_t> tokens, int32_t block) {
    TAKT_ASSERT(tokens.size() == static_cast<size_t>(block_tokens_) && block > 0);
    if (!alive(cursor)) return false;
    const uint64_t hash = chain(cursor, tokens);
    const int32_t standing = lookup(cursor, hash, domain, tokens);
    if (standing >= 0) {
        cursor = {hash, standing, entries_[static_cast<size_t>(standing)].generation};
        return standing == block;
    }
    Entry& entry = entries_[static_cast<size_t>(block)];
    TAKT_ASSERT(!entry.present);
    entry.hash = hash;
    entry.domain = domain;
    entry.parent = cursor.block;
    entry.parent_generation = cursor.generation;
    entry.present = true;
    std::copy(tokens.begin(), tokens.end(),
              tokens_.begin() + static_cast<ptrdiff_t>(block) * static_cast<ptrdiff_t>(block_tokens_));
    index_insert(hash, block);
    ++num_cached_;
    cursor = {hash, block, entry.generation};
    return true;
}

void PrefixCache::index_insert(uint64_t hash, int32_t block) {
    const size_t mask = index_.size() - 1;
    size_t at = hash & mask;
    while (index_[at] >= 0) at = (at + 1) & mask;
    index_[at] = block;
}

void PrefixCache::index_erase(uint64_t hash, int32_t block) {
    const size_t mask = index_.size() - 1;
    size_t hole = hash & mask;
    while (index_[hole] != block) {
        TAKT_ASSERT(index_[hole] >= 0);
        hole = (hole + 1) & mask;
    }
    index_[hole] = -1;
    for (size_t at = (hole + 1) & mask; index_[at] >= 0; at = (at + 1) & mask) {
        const size_t home = entries_[static_cast<size_t>(index_[at])].hash & mask;
        if (((at - home) & mask) < ((at - hole) & mask)) continue;   // reachable without passing the hole
        index_[hole] = index_[at];
        index_[at] = -1;
        hole = at;
    }
}

void PrefixCache::set_idle(int32_t block) {
    Entry& entry = entries_[static_cast<size_t>(block)];
    TAKT_ASSERT(entry.present && !entry.idle);
    entry.idle = true;
    entry.previous = newest_;
    entry.next = -1;
    if (newest_ >= 0) entries_[static_cast<size_t>(newest_)].next = block;
    newest_ = block;
    if (oldest_ < 0) oldest_ = block;
    ++num_idle_;
}

void PrefixCache::unlink(int32_t block) {
    Entry& entry = entries_[static_cast<size_t>(block)];
    (entry.previous >= 0 ? entries_[static_cast<size_t>(entry.previous)].next : oldest_) = entry.next;
    (entry.next >= 0 ? entries_[static_cast<size_t>(entry.next)].previous : newest_) = entry.previous;
    entry.previous = entry.next = -1;
    entry.idle = false;
    --num_idle_;
}

void PrefixCache::set_leased(int32_t block) {
    if (entries_[static_cast<size_t>(block)].idle) unlink(block);
}

int32_t PrefixCache::evict() {
    if (oldest_ < 0) return -1;
    const int32_t block = oldest_;
    unlink(block);
    Entry& entry = entries_[static_cast<size_t>(block)];
    index_erase(entry.hash, block);
    entry.present = false;
    ++entry.generation;
    --num_cached_;
    return block;
}

std::string PrefixCache::check_integrity() const {
    int32_t num_present = 0, num_listed = 0, num_indexed = 0;
    for (size_t block = 0; block < entries_.size(); ++block) {
        num_present += entries_[block].present ? 1 : 0;
        if (entries_[block].idle && !entries_[block].present) return "idle block " + std::to_string(block) + " is not cached";
    }
    for (int32_t block = oldest_; block >= 0; block = entries_[static_cast<size_t>(block)].next) {
        if (!entries_[static_cast<size_t>(block)].idle) return "the idle list holds leased block " + std::to_string(block);
        if (++num_listed > num_idle_) return "the idle list is longer than its count";
    }
    for (const int32_t block : index_) {
        if (block < 0) continue;
        ++num_indexed;
        if (!entries_[static_cast<size_t>(block)].present) return "the index holds evicted block " + std::to_string(block);
    }
    if (num_present != num_cached_ || num_indexed != num_cached_) return "cached blocks and index disagree";
    if (num_listed != num_idle_) return "the idle list is shorter than its count";
    return {};
}

}  // namespace takt
