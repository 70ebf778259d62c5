// The scheduler takes no memory once it has seen its load: neither a decision nor what is learned from its outcome, while answers
// end, prompts come in, tenants and classes mix, and blocks are taken from one for another.
#include <atomic>
#include <cstdlib>
#include <new>

#include "catch.h"
#include "runtime/scheduler_rig.h"
#include "runtime/sim/random.h"

namespace {

std::atomic<uint64_t> num_allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
    num_allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
    std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace takt {
namespace {

/// Steps that took memory in plan() or apply() and admissions, of the second half of `steps`; streams that had to give way, in all.
struct Taken {
    int steps = 0, preemptions = 0, admissions = 0;
};

Taken run_steps(SchedulerRig& rig, int steps, int32_t waiting, int32_t longest_answer) {
    sim::Random random(3);
    Taken taken;
    RequestId next = 1;
    for (int i = 0; i < steps; ++i) {
        while (rig.scheduler.counts().num_waiting < waiting) {
            const int32_t prompt = random.between(30, 900), answer = random.between(5, longest_answer);
            const int32_t sla_class = random.between(0, 1), tenant = random.between(0, 2);
            rig.submit(next++, prompt, answer, sla_class, tenant);
        }
        const uint64_t before = num_allocations.load();
        rig.scheduler.plan(rig.now, rig.plan);
        uint64_t own = num_allocations.load() - before;
        if (rig.plan.empty()) continue;
        const auto device_ns = static_cast<uint64_t>(rig.time.ns(rig.plan.features));
        rig.now += device_ns + 100'000;
        rig.outcome.step = rig.plan.step;
        rig.outcome.device_ns = device_ns;
        for (const PlanSegment& s : rig.plan.segments) {
            if (!s.samples) continue;
            rig.scheduler.emitted(s.request, rig.now);
            if (++rig.emitted[s.request] >= rig.most[s.request]) rig.scheduler.finish(s.request);
        }
        const uint64_t between = num_allocations.load();
        rig.scheduler.apply(rig.outcome, rig.now);
        own += num_allocations.load() - between;
        taken.preemptions += static_cast<int>(rig.plan.preempted.size());
        if (i < steps / 2) continue;
        taken.steps += own > 0 ? 1 : 0;
        taken.admissions += static_cast<int>(rig.plan.admitted.size());
    }
    return taken;
}

SchedulerConfig busy_config() {
    SchedulerConfig c = rig_config(40, 64);
    c.classes.push_back(c.classes[0]);
    c.classes[1].itl_ns = 200 * kMs;
    c.tenants = {{"", 1, 0, 0}, {"a", 2, 0, 0}, {"b", 1, 0, 0}};
    return c;
}

}  // namespace

TEST_CASE("the measure sees an allocation", "[scheduler]") {
    const uint64_t before = num_allocations.load();
    std::vector<int> some(7);
    CHECK(some.size() == 7);
    CHECK(num_allocations.load() > before);
}

TEST_CASE("a decision takes no memory in the steady state", "[scheduler]") {
    SchedulerRig rig(busy_config());
    const Taken taken = run_steps(rig, 6000, 200, 300);
    CHECK(taken.admissions > 1000);
    CHECK(taken.steps == 0);
}

TEST_CASE("a decision takes no memory in the steady state where blocks lack", "[scheduler]") {
    SchedulerRig rig(busy_config(), 300);
    const Taken taken = run_steps(rig, 6000, 200, 1200);
    CHECK(taken.preemptions > 0);
    CHECK(taken.steps == 0);
}

}  // namespace takt
