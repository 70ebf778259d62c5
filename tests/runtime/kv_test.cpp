// KvManager: tables, retirement by ticket, sharing through the prefix cache. Pure.
#include "runtime/kv.h"

#include <numeric>
#include <vector>

#include "catch.h"
#include "runtime/sim/random.h"

namespace takt {
namespace {

KvConfig small(int32_t num_blocks, bool prefix_cache = true) { return {num_blocks, 4, 4, 64, prefix_cache}; }

std::vector<int32_t> count_from(int32_t first, size_t count) {
    std::vector<int32_t> out(count);
    std::iota(out.begin(), out.end(), first);
    return out;
}

void fill(KvManager& kv, int32_t slot, const std::vector<int32_t>& tokens) {
    REQUIRE(kv.reserve(slot, static_cast<int64_t>(tokens.size())));
    for (auto n = static_cast<size_t>(kv.num_published(slot)); (n + 1) * 4 <= tokens.size(); ++n) {
        kv.publish(slot, std::span<const int32_t>(tokens).subspan(n * 4, 4));
    }
}

}  // namespace

TEST_CASE("a reservation is all or nothing", "[kv]") {
    KvManager kv(small(6));
    kv.open(0, 1, {});
    CHECK(kv.reserve(0, 9));
    CHECK(kv.table(0).size() == 3);
    kv.open(1, 1, {});
    CHECK_FALSE(kv.reserve(1, 12));
    CHECK(kv.table(1).empty());
    CHECK(kv.reserve(1, 8));
    CHECK(kv.num_available() == 0);
    CHECK(kv.check_integrity().empty());
}

TEST_CASE("blocks that a launched step names come back when its ticket is retired, not before", "[kv]") {
    KvManager kv(small(6, false));
    kv.open(0, 1, {});
    kv.reserve(0, 12);
    kv.release(0, 7);
    CHECK(kv.num_available() == 2);
    CHECK(kv.num_retiring() == 3);
    kv.retire(6);
    CHECK(kv.num_available() == 2);
    CHECK(kv.check_integrity().empty());
    kv.retire(7);
    CHECK(kv.num_available() == 5);
    kv.open(0, 1, {});
    kv.reserve(0, 12);
    kv.release(0, 7);   // that step is over: at once
    CHECK(kv.num_available() == 5);
}

TEST_CASE("a prefix match leaves at least one token to compute", "[kv]") {
    KvManager kv(small(20));
    const std::vector<int32_t> tokens = count_from(0, 12);
    kv.open(0, 1, tokens);
    fill(kv, 0, tokens);
    const auto first = kv.table(0)[0];
    kv.release(0, 0);
    CHECK(kv.match(1, tokens) == 8);                   // 12 tokens are 3 blocks; (12 - 1) / 4 = 2 may be taken
    CHECK(kv.match(1, count_from(0, 13)) == 12);
    CHECK(kv.match(2, tokens) == 0);
    CHECK(kv.open(1, 1, tokens) == 8);
    CHECK(kv.table(1)[0] == first);
    CHECK(kv.counts().num_hit_blocks == 2);
    CHECK(kv.check_integrity().empty());
}

TEST_CASE("two that run together share; the block lives until both let go", "[kv]") {
    KvManager kv(small(20));
    const std::vector<int32_t> tokens = count_from(0, 9);
    kv.open(0, 1, tokens);
    fill(kv, 0, tokens);
    CHECK(kv.open(1, 1, tokens) == 8);
    kv.release(0, 3);
    kv.retire(3);
    CHECK(kv.counts().num_used == 2);
    CHECK(kv.check_integrity().empty());
    kv.release(1, 3);
    CHECK(kv.counts().num_used == 0);
    CHECK(kv.counts().num_idle == 2);
}

TEST_CASE("idle cached blocks make room, the deepest of a chain first", "[kv]") {
    KvManager kv(small(6));
    const std::vector<int32_t> tokens = count_from(0, 17);
    kv.open(0, 1, tokens);
    fill(kv, 0, tokens);
    kv.release(0, 0);
    CHECK(kv.num_available() == 5);
    kv.open(1, 1, {});
    CHECK(kv.reserve(1, 12));                          // one free block and two evicted
    CHECK(kv.match(1, tokens) == 8);
    CHECK(kv.counts().num_evicted == 2);
    CHECK(kv.check_integrity().empty());
}

TEST_CASE("random lives conserve every block", "[kv]") {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        sim::Random random(seed);
        const int32_t num_blocks = random.between(8, 40);
        KvManager kv(small(num_blocks, random.chance(0.7)));
        std::vector<std::vector<int32_t>> open(4);
        uint64_t ticket = 1;
        for (int i = 0; i < 600; ++i) {
            const int32_t slot = random.between(0, 3);
            std::vector<int32_t>& tokens = open[static_cast<size_t>(slot)];
            if (tokens.empty()) {
                const int32_t first = random.between(0, 2) * 100;
                tokens = count_from(first, static_cast<size_t>(random.between(1, 40)));
                kv.open(slot, random.below(2), tokens);
                if (!kv.reserve(slot, static_cast<int64_t>(tokens.size()))) {
                    kv.release(slot, ticket);
                    tokens.clear();
                }
            } else if (random.chance(0.4)) {
                fill(kv, slot, tokens);
            } else {
                kv.release(slot, random.chance(0.5) ? ticket : ticket - 1);
                tokens.clear();
            }
            if (random.chance(0.3)) kv.retire(ticket++);
            INFO("seed " << seed << " step " << i);
            REQUIRE(kv.check_integrity() == "");
        }
        for (int32_t slot = 0; slot < 4; ++slot) {
            if (!open[static_cast<size_t>(slot)].empty()) kv.release(slot, ticket);
        }
        kv.retire(ticket);
        CHECK(kv.counts().num_used == 0);
        CHECK(kv.num_available() == kv.num_usable());
    }
}

}  // namespace takt
