// How far two cores are from one another: the time of a round trip of one word between threads on the first two cores that this process
// may use. On a virtual machine this is no constant: its host may move the cores to one complex, with one L3 cache and one way to the
// memory, or to two, with one each. The rate at which two threads read, and so decode, depends on it: run_rival.py notes it beside samples.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "runtime/clock.h"

namespace {

constexpr uint32_t kTrips = 3000;
constexpr int kRounds = 15;

/// Puts the calling thread on the `index`-th core that the process may use; false: there are not so many.
bool pin(int index) {
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof one, &one) == 0;
    }
    return false;
}

/// Waits for `wanted`; where the partner has no core it may take a while.
void wait_for(const std::atomic<uint32_t>& word, uint32_t wanted) {
    while (word.load(std::memory_order_acquire) != wanted) {
    }
}

}  // namespace

int main() {
    const takt::RealClock clock;
    std::atomic<uint32_t> word{0};
    std::atomic<bool> two_cores{true};
    std::vector<double> ns;
    std::thread far([&] {
        if (!pin(1)) two_cores = false;
        for (uint32_t trip = 0; trip < kTrips * kRounds; ++trip) {
            wait_for(word, 2 * trip + 1);
            word.store(2 * trip + 2, std::memory_order_release);
        }
    });
    std::thread near([&] {
        if (!pin(0)) two_cores = false;
        for (uint32_t trip = 0; trip < kTrips * kRounds;) {
            const uint64_t begin = clock.now_ns();
            for (const uint32_t end = trip + kTrips; trip < end; ++trip) {
                word.store(2 * trip + 1, std::memory_order_release);
                wait_for(word, 2 * trip + 2);
            }
            ns.push_back(static_cast<double>(clock.now_ns() - begin) / kTrips);
        }
    });
    near.join();
    far.join();
    if (!two_cores) {
        std::fprintf(stderr, "one core only\n");
        return 2;
    }
    std::sort(ns.begin(), ns.end());
    std::printf("{\"round_trip_ns\": %.1f}\n", ns[ns.size() / 2]);
    return 0;
}
