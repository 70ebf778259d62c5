// Dealing of units: whatever the threads' pace, each unit of each deal goes to exactly one of them, a thread's own share comes in
// order, and a thread that sleeps leaves its share to the others.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "catch.h"
#include "kernels/cpu/shared_ranges.h"

using namespace takt::cpu;

namespace {

std::vector<int64_t> take_all(SharedRanges& ranges, uint32_t deal, int thread, int num_threads, int64_t num_units) {
    std::vector<int64_t> units;
    for (int64_t u = ranges.take(deal, thread, num_threads, num_units); u >= 0; u = ranges.take(deal, thread, num_threads, num_units)) {
        units.push_back(u);
    }
    return units;
}

}  // namespace

TEST_CASE("a thread that works alone gets its own units in order, then those of the others from the back") {
    SharedRanges ranges(2);
    CHECK(take_all(ranges, 1, 0, 2, 6) == std::vector<int64_t>{0, 1, 2, 5, 4, 3});
    CHECK(take_all(ranges, 1, 1, 2, 6).empty());
    CHECK(take_all(ranges, 2, 1, 2, 5) == std::vector<int64_t>{2, 3, 4, 1, 0});
    CHECK(take_all(ranges, 2, 0, 2, 5).empty());
}

TEST_CASE("one that is still in a deal takes nothing of a later one") {
    SharedRanges ranges(2);
    CHECK(ranges.take(1, 1, 2, 4) == 2);
    CHECK(take_all(ranges, 1, 0, 2, 4) == std::vector<int64_t>{0, 1, 3});
    CHECK(ranges.take(2, 0, 2, 4) == 0);
    CHECK(ranges.take(2, 0, 2, 4) == 1);
    CHECK(ranges.take(2, 0, 2, 4) == 3);   // of thread 1, which has not come to this deal
    CHECK(ranges.take(1, 1, 2, 4) == -1);
    CHECK(ranges.take(2, 1, 2, 4) == 2);
    CHECK(ranges.take(2, 1, 2, 4) == -1);
}

TEST_CASE("numbers of deals wrap; empty deals and the largest one") {
    SharedRanges ranges(3);
    CHECK(take_all(ranges, 0x7fffffffu, 1, 3, 7).size() == 7);   // no further ahead than half of all numbers
    for (uint32_t deal = 0xfffffff0u, i = 0; i < 32; ++i, ++deal) {
        // The first thread never shows up; ranges are as old as one deal.
        std::vector<int64_t> units = take_all(ranges, deal, 1, 3, i % 4);
        CHECK(units.size() == i % 4);
        CHECK(take_all(ranges, deal, 2, 3, i % 4).empty());
    }
    SharedRanges large(2);
    CHECK(take_all(large, 1, 0, 2, SharedRanges::kMostUnits).size() == static_cast<size_t>(SharedRanges::kMostUnits));
}

TEST_CASE("threads of uneven pace take every unit of every deal once") {
    constexpr int kThreads = 3;
    constexpr uint32_t kDeals = 3000;
    constexpr int64_t kUnits = 17;
    SharedRanges ranges(kThreads);
    std::vector<std::atomic<int>> taken(static_cast<size_t>(kDeals * kUnits));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (uint32_t deal = 1; deal <= kDeals; ++deal) {
                for (int64_t u = ranges.take(deal, t, kThreads, kUnits); u >= 0; u = ranges.take(deal, t, kThreads, kUnits)) {
                    taken[static_cast<size_t>((deal - 1) * kUnits + u)].fetch_add(1);
                    if ((deal + static_cast<uint32_t>(t)) % 7 == 0) std::this_thread::yield();
                }
            }
        });
    }
    for (std::thread& t : threads) t.join();
    CHECK(std::all_of(taken.begin(), taken.end(), [](const std::atomic<int>& n) { return n.load() == 1; }));
}
