// A decision's time with 256 running and 1,000 waiting requests (invariant 23), on the thread's own clock: other programs on the machine
// are not in it. bench/scheduler_bench has the figures.
#include <ctime>

#include <takt/percentiles.h>

#include "catch.h"
#include "runtime/scheduler_rig.h"
#include "runtime/sim/random.h"

namespace takt {
namespace {

constexpr int32_t kRunning = 256, kWaiting = 1000;
#ifdef __OPTIMIZE__
constexpr double kMostUs = 100;
#else
constexpr double kMostUs = 1000;   // the order of magnitude: nothing in it may grow with the square of the requests
#endif

double thread_us() {
    timespec at{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) * 1e6 + static_cast<double>(at.tv_nsec) * 1e-3;
}

SchedulerConfig crowded_config(int32_t num_tenants) {
    SchedulerConfig c = rig_config(40, kRunning);
    c.max_waiting = kWaiting + 10;
    c.classes.push_back(c.classes[0]);
    c.classes[1].itl_ns = 200 * kMs;
    for (int32_t t = 0; t < num_tenants; ++t) c.tenants.push_back({"t", 1, 0, 0});
    return c;
}

struct Decisions {
    std::vector<double> us;
    int64_t running = 0, waiting = 0;   // requests, summed over the steps
    int count = 0;
};

/// Two answers end in each step and others come in, as in a server under load.
Decisions decide(int32_t num_tenants, int num_steps) {
    SchedulerRig rig(crowded_config(num_tenants), 80'000);
    sim::Random random(7);
    RequestId next = 1;
    Decisions out;
    const auto refill = [&] {
        while (rig.scheduler.counts().num_waiting < kWaiting) {
            const int32_t prompt = random.between(50, 1500), sla_class = random.between(0, 1);
            const int32_t tenant = random.between(0, num_tenants - 1);
            rig.submit(next++, prompt, 60'000, sla_class, tenant);
        }
    };
    for (int i = 0; i < 3000 && rig.scheduler.counts().num_decoding < kRunning * 9 / 10; ++i) {
        refill();
        rig.step();
    }
    for (int i = 0; i < num_steps; ++i) {
        for (int k = 0; k < 2 && !rig.plan.segments.empty(); ++k) {
            rig.scheduler.finish(rig.plan.segments[random.below(rig.plan.segments.size())].request);
        }
        refill();
        const double begin = thread_us();
        rig.look();
        out.us.push_back(thread_us() - begin);
        const SchedulerCounts counts = rig.scheduler.counts();
        out.running += counts.num_running;
        out.waiting += counts.num_waiting;
        ++out.count;
        if (!rig.plan.empty()) rig.complete();
    }
    return out;
}

}  // namespace

TEST_CASE("23: a decision takes less than 100 us with 256 running and 1,000 waiting", "[scheduler]") {
    for (const int32_t num_tenants : {1, 27}) {
        // The same plans again: what the machine did to a decision in one run it does not do in all of three.
        std::vector<double> least_us;
        for (int run = 0; run < 3; ++run) {
            Decisions decisions = decide(num_tenants, 1500);
            REQUIRE(decisions.running > decisions.count * int64_t{kRunning} * 8 / 10);
            REQUIRE(decisions.waiting > decisions.count * int64_t{kWaiting} * 9 / 10);
            if (run == 0) least_us = decisions.us;
            for (size_t i = 0; i < least_us.size(); ++i) least_us[i] = std::min(least_us[i], decisions.us.at(i));
        }
        const double p99_us = percentile(least_us, 0.99);
        INFO(num_tenants << " tenants: " << p99_us << " us");
        CHECK(p99_us < kMostUs);
    }
}

}  // namespace takt
