// PrefixCache: chains, domains, token comparison, eviction order. Pure.
#include "runtime/prefix_cache.h"

#include <vector>

#include "catch.h"
#include "runtime/sim/random.h"

namespace takt {
namespace {

std::vector<int32_t> tokens(int32_t first) { return {first, first + 1, first + 2, first + 3}; }

}  // namespace

TEST_CASE("a chain is found only from its root, in its order", "[prefix_cache]") {
    PrefixCache cache(16, 4);
    PrefixCursor cursor = cache.root(1);
    CHECK(cache.insert(cursor, 1, tokens(10), 3));
    CHECK(cache.insert(cursor, 1, tokens(20), 5));
    PrefixCursor walk = cache.root(1);
    CHECK(cache.find(walk, 1, tokens(10)) == 3);
    CHECK(cache.find(walk, 1, tokens(20)) == 5);
    CHECK(cache.find(walk, 1, tokens(30)) == -1);
    PrefixCursor root = cache.root(1);
    CHECK(cache.find(root, 1, tokens(20)) == -1);   // the same tokens, but not as a beginning
    CHECK(cache.check_integrity().empty());
}

TEST_CASE("a domain never sees another's blocks", "[prefix_cache]") {
    PrefixCache cache(16, 4);
    PrefixCursor cursor = cache.root(1);
    cache.insert(cursor, 1, tokens(10), 3);
    PrefixCursor other = cache.root(2);
    CHECK(cache.find(other, 2, tokens(10)) == -1);
    // Even somebody who knows the other's cursor is told nothing.
    PrefixCursor forged = cache.root(1);
    CHECK(cache.find(forged, 2, tokens(10)) == -1);
}

TEST_CASE("equal hashes are not trusted: the tokens are compared", "[prefix_cache]") {
    // Found by a search of 2^31 steps: both have the hash 64 bits long behind the root of domain 1 with blocks of four.
    const std::vector<int32_t> one{1, 2, 1397327631, -535296856}, other{1, 2, 1409412774, 1890538369};
    PrefixCache cache(16, 4);
    PrefixCursor first = cache.root(1), second = cache.root(1), walk = cache.root(1);
    CHECK(cache.insert(first, 1, one, 3));
    CHECK(cache.find(walk, 1, other) == -1);
    CHECK(cache.insert(second, 1, other, 4));
    CHECK(second.hash == first.hash);
    walk = cache.root(1);
    CHECK(cache.find(walk, 1, other) == 4);
    walk = cache.root(1);
    CHECK(cache.find(walk, 1, one) == 3);
    CHECK(cache.check_integrity().empty());
}

TEST_CASE("the second of two equal blocks is not put in, and its chain goes on behind the first", "[prefix_cache]") {
    PrefixCache cache(16, 4);
    PrefixCursor first = cache.root(1), second = cache.root(1);
    CHECK(cache.insert(first, 1, tokens(10), 3));
    CHECK_FALSE(cache.insert(second, 1, tokens(10), 4));
    CHECK(second.block == 3);
    CHECK(cache.insert(second, 1, tokens(20), 6));
    CHECK(cache.num_cached() == 2);
    PrefixCursor walk = cache.root(1);
    CHECK(cache.find(walk, 1, tokens(10)) == 3);
    CHECK(cache.find(walk, 1, tokens(20)) == 6);
}

TEST_CASE("the block that was idle longest goes first; leased ones stay", "[prefix_cache]") {
    PrefixCache cache(16, 4);
    for (int32_t block = 1; block <= 4; ++block) {
        PrefixCursor cursor = cache.root(1);
        cache.insert(cursor, 1, tokens(block * 100), block);
    }
    cache.set_idle(2);
    cache.set_idle(1);
    cache.set_idle(3);
    cache.set_leased(1);
    CHECK(cache.num_idle() == 2);
    CHECK(cache.evict() == 2);
    CHECK(cache.evict() == 3);
    CHECK(cache.evict() == -1);
    PrefixCursor walk = cache.root(1);
    CHECK(cache.find(walk, 1, tokens(200)) == -1);
    walk = cache.root(1);
    CHECK(cache.find(walk, 1, tokens(100)) == 1);
    CHECK(cache.check_integrity().empty());
}

TEST_CASE("a chain does not go on behind an evicted block, nor behind its id's next life", "[prefix_cache]") {
    PrefixCache cache(16, 4);
    PrefixCursor cursor = cache.root(1);
    cache.insert(cursor, 1, tokens(10), 3);
    cache.set_idle(3);
    CHECK(cache.evict() == 3);
    CHECK_FALSE(cache.insert(cursor, 1, tokens(20), 5));
    PrefixCursor again = cache.root(1);
    cache.insert(again, 1, tokens(90), 3);            // the same id holds something else now
    CHECK_FALSE(cache.insert(cursor, 1, tokens(20), 5));
    CHECK_FALSE(cache.contains(5));
}

TEST_CASE("random inserts and evictions keep index and list together", "[prefix_cache]") {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        sim::Random random(seed);
        PrefixCache cache(40, 4);
        std::vector<uint8_t> used(40, 0);
        for (int i = 0; i < 3000; ++i) {
            const int32_t block = random.between(1, 39);
            if (used[static_cast<size_t>(block)] == 0) {
                PrefixCursor cursor = cache.root(random.below(2));
                if (cache.insert(cursor, cursor.hash == cache.root(0).hash ? 0 : 1, tokens(random.between(0, 30)), block)) {
                    used[static_cast<size_t>(block)] = 1;
                }
            } else if (cache.is_idle(block)) {
                cache.set_leased(block);
            } else {
                cache.set_idle(block);
            }
            if (random.chance(0.2)) {
                const int32_t evicted = cache.evict();
                if (evicted >= 0) used[static_cast<size_t>(evicted)] = 0;
            }
            if (i % 100 == 0) REQUIRE(cache.check_integrity().empty());
        }
    }
}

}  // namespace takt
