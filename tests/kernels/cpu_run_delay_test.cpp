// The time that a thread stood ready for a core: it never falls, and is another thread's own.
#include <sched.h>

#include <atomic>
#include <thread>

#include "catch.h"
#include "kernels/cpu/run_delay.h"

using namespace takt::cpu;

TEST_CASE("two threads that share one core stand ready for it about as long as the other one runs") {
    if (run_delay_ns() < 0) {
        WARN("skipped: this kernel keeps no scheduler statistics");
        return;
    }
    cpu_set_t before, one;
    REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);   // inherited by the thread
    const int64_t begin_ns = run_delay_ns();
    std::atomic<int64_t> other_ns{0};
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop.load(std::memory_order_relaxed)) {}
        other_ns = run_delay_ns();
    });
    int64_t own_ns = 0;
    // Each turn on the core ends with some wait for the next; no clock is read, the statistics are their own.
    while (own_ns < 20'000'000) {
        const int64_t now_ns = run_delay_ns() - begin_ns;
        REQUIRE(now_ns >= own_ns);
        own_ns = now_ns;
    }
    stop = true;
    other.join();
    CHECK(other_ns.load() > 0);
    REQUIRE(sched_setaffinity(0, sizeof(before), &before) == 0);
}
