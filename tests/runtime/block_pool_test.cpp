// BlockPool: ids, counts, the free list, and that the dummy block stays at home. Pure.
#include "runtime/block_pool.h"

#include <algorithm>
#include <set>

#include "catch.h"
#include "kernels/kv_layout.h"
#include "runtime/sim/random.h"

namespace takt {

TEST_CASE("every block but the dummy is handed out once", "[block_pool]") {
    BlockPool pool(9);
    std::set<int32_t> taken;
    for (int i = 0; i < 8; ++i) taken.insert(pool.take());
    CHECK(taken.size() == 8);
    CHECK(taken.count(kDummyBlock) == 0);
    CHECK(*taken.rbegin() == 8);
    CHECK(pool.take() == -1);
    CHECK(pool.num_free() == 0);
    CHECK(pool.check_integrity().empty());
}

TEST_CASE("a block is free only when its last holder let go and it was freed", "[block_pool]") {
    BlockPool pool(3);
    const int32_t block = pool.take();
    pool.add_reference(block);
    CHECK(pool.drop_reference(block) == 1);
    CHECK_FALSE(pool.is_free(block));
    CHECK(pool.drop_reference(block) == 0);
    CHECK_FALSE(pool.is_free(block));   // idle: the cache may still offer it
    pool.add_reference(block);
    CHECK(pool.references(block) == 1);
    pool.drop_reference(block);
    pool.free(block);
    CHECK(pool.is_free(block));
    CHECK(pool.num_free() == 2);
    CHECK(pool.take() == block);        // last freed, first out
}

TEST_CASE("random traffic keeps the pool's books", "[block_pool]") {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        sim::Random random(seed);
        BlockPool pool(random.between(2, 60));
        std::vector<int32_t> held;
        for (int i = 0; i < 2000; ++i) {
            if (random.chance(0.55)) {
                const int32_t block = pool.take();
                if (block < 0) {
                    REQUIRE(static_cast<int32_t>(held.size()) == pool.num_usable());
                    continue;
                }
                REQUIRE(std::find(held.begin(), held.end(), block) == held.end());
                held.push_back(block);
            } else if (!held.empty()) {
                const size_t at = random.below(held.size());
                REQUIRE(pool.drop_reference(held[at]) == 0);
                pool.free(held[at]);
                held.erase(held.begin() + static_cast<ptrdiff_t>(at));
            }
            REQUIRE(pool.num_free() + static_cast<int32_t>(held.size()) == pool.num_usable());
        }
        CHECK(pool.check_integrity().empty());
    }
}

}  // namespace takt
