// Clocks: the real one is monotonic from any thread, the virtual one moves only when told and never back.
#include "runtime/clock.h"

#include <atomic>
#include <thread>
#include <vector>

#include "catch.h"

using namespace takt;

TEST_CASE("the real clock never goes back, between threads neither") {
    const RealClock clock;
    std::atomic<uint64_t> latest{0};
    std::atomic<int> num_back{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 20000; ++i) {
                const uint64_t seen = latest.load();
                const uint64_t now = clock.now_ns();
                if (now < seen) ++num_back;
                uint64_t old = latest.load();
                while (old < now && !latest.compare_exchange_weak(old, now)) {
                }
            }
        });
    }
    for (std::thread& t : threads) t.join();
    CHECK(num_back == 0);
    CHECK(latest > 0);
}

TEST_CASE("the virtual clock stands, advances, and is seen through its source") {
    VirtualClock clock;
    const uint64_t begin = clock.now_ns();
    CHECK(begin > 0);
    const TimeSource source = clock.source();
    CHECK(source.now() == begin);
    clock.advance_to(begin + 5);
    CHECK(source.now() == begin + 5);
    clock.advance_to(begin);
    CHECK(clock.now_ns() == begin + 5);
}

TEST_CASE("the wall clock is past the year 2024") {
    CHECK(unix_seconds() > 1'704'067'200);
}
