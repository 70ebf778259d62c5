// IdIndex against std::map: random insertions and erasures at full load, with ids that meet in the same slots.
#include "runtime/id_index.h"

#include <map>
#include <random>

#include "catch.h"

using namespace takt;

TEST_CASE("the index agrees with a map through insertions and erasures") {
    for (const size_t capacity : {size_t{1}, size_t{7}, size_t{64}}) {
        IdIndex index(capacity);
        std::map<RequestId, int32_t> known;
        std::mt19937 random(static_cast<uint32_t>(capacity));
        RequestId next = 1;
        for (int round = 0; round < 20000; ++round) {
            if (known.size() < capacity && (known.empty() || random() % 2 == 0)) {
                const auto record = static_cast<int32_t>(random() % 1000);
                index.insert(next, record);
                known[next] = record;
                next += 1 + random() % 5;
            } else {
                auto at = known.begin();
                std::advance(at, random() % known.size());
                index.erase(at->first);
                CHECK(index.find(at->first) == -1);
                known.erase(at);
            }
            REQUIRE(index.size() == known.size());
            for (const auto& [id, record] : known) REQUIRE(index.find(id) == record);
        }
        CHECK(index.find(next) == -1);
    }
}
