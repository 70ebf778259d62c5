// scheduler_bench: what a decision costs: plan and apply with 256 running and 1,000 waiting requests, on the H100 profile's cost
// model. Counts allocations in the steady state. Floor beside it: one pass over the same records. A case is run three times over, with
// the same plans: what one decision took in each of them is its own time, the rest is the machine's (repmax: the longest of the least
// of three). `--json FILE` writes the figures.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include <takt/percentiles.h>

#include "runtime/cost_calibration.h"
#include "runtime/cost_model.h"
#include "runtime/kv.h"
#include "runtime/scheduler.h"
#include "runtime/sim/random.h"
#include "runtime/sim/step_time.h"

namespace {

std::atomic<uint64_t> num_allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
    num_allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* memory = std::malloc(bytes)) return memory;
    std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace takt;
using Clock = std::chrono::steady_clock;

constexpr int32_t kRunning = 256, kWaiting = 1000;

struct Case {
    const char* name;
    int32_t num_tenants;
    bool leave;            // requests end and others come in, as in a server; else all run on
};

struct Figures {
    std::string name;
    double plan_p50_us = 0, plan_p99_us = 0, plan_max_us = 0, plan_repeated_max_us = 0, apply_p50_us = 0, apply_p99_us = 0, scan_p50_us = 0;
    double allocations_per_step = 0;
    int steps = 0;
};

double percentile_us(std::vector<double>& ns, double share) {
    return percentile(ns, share) / 1000;
}

SchedulerConfig config_of(const Case& c) {
    SchedulerConfig config;
    config.max_running = kRunning;
    config.max_waiting = kWaiting + 10;
    config.max_context = 65536;
    config.row_ladder = sim::h100_ladder(kRunning);
    SchedulerClass tight, loose;
    tight.itl_ns = 40'000'000;
    loose.itl_ns = 200'000'000;
    config.classes = {tight, loose};
    for (int32_t t = 0; t < c.num_tenants; ++t) config.tenants.push_back({"t", 1.0, 0, 0});
    return config;
}

class Run {
public:
    explicit Run(const Case& c)
        : case_(c), config_(config_of(c)), cost_(config_.row_ladder, false, sim::h100_roofline()),
          kv_({80'000, 16, kRunning, 65536, true}), scheduler_(config_, cost_, kv_) {
        for (const StepFeatures& f : calibration_steps(cost_)) cost_.observe(f, static_cast<uint64_t>(time_.ns(f)));
    }
    Figures measure(int num_steps);
    /// Of each step timed, in the order of steps.
    [[nodiscard]] const std::vector<double>& plan_ns() const { return plan_ns_; }

private:
    void refill();
    void step(bool timed);

    Case case_;
    const sim::StepTime time_ = sim::StepTime::h100();
    SchedulerConfig config_;
    CostModel cost_;
    KvManager kv_;
    Scheduler scheduler_;
    sim::Random random_{7};
    StepPlan plan_;
    StepOutcome outcome_;
    RequestId next_ = 1;
    uint64_t now_ns_ = 1'000'000'000;
    std::vector<double> plan_ns_, apply_ns_;
};

void Run::refill() {
    while (scheduler_.counts().num_waiting < kWaiting) {
        SchedulerRequest r;
        r.id = next_++;
        r.prompt_tokens = random_.between(50, 1500);
        r.max_tokens = 60'000;
        r.arrival_ns = now_ns_;
        r.class_index = random_.between(0, 1);
        r.tenant_index = random_.between(0, std::max(case_.num_tenants, 1) - 1);
        scheduler_.submit(r, now_ns_);
    }
}

void Run::step(bool timed) {
    const auto begin = Clock::now();
    scheduler_.plan(now_ns_, plan_);
    const auto planned = Clock::now();
    if (plan_.empty()) return;
    const auto device = static_cast<uint64_t>(time_.ns(plan_.features));
    now_ns_ += device + 100'000;
    outcome_.step = plan_.step;
    outcome_.device_ns = device;
    for (const PlanSegment& s : plan_.segments) {
        if (s.samples) scheduler_.emitted(s.request, now_ns_);
    }
    const auto before = Clock::now();
    scheduler_.apply(outcome_, now_ns_);
    const auto applied = Clock::now();
    if (!timed) return;
    plan_ns_.push_back(std::chrono::duration<double, std::nano>(planned - begin).count());
    apply_ns_.push_back(std::chrono::duration<double, std::nano>(applied - before).count());
}

Figures Run::measure(int num_steps) {
    for (int i = 0; i < 3000 && scheduler_.counts().num_decoding < kRunning * 9 / 10; ++i) {
        refill();
        step(false);
    }
    plan_ns_.reserve(static_cast<size_t>(num_steps));
    apply_ns_.reserve(static_cast<size_t>(num_steps));
    uint64_t allocations = 0;
    for (int i = 0; i < num_steps; ++i) {
        if (case_.leave && !plan_.segments.empty()) {   // two answers end in each step
            for (int k = 0; k < 2; ++k) scheduler_.finish(plan_.segments[random_.below(plan_.segments.size())].request);
        }
        refill();
        const uint64_t before = num_allocations.load();
        step(true);
        allocations += num_allocations.load() - before;
    }
    Figures f;
    f.name = case_.name;
    f.steps = static_cast<int>(plan_ns_.size());
    f.allocations_per_step = static_cast<double>(allocations) / std::max(f.steps, 1);
    std::vector<double> sorted = plan_ns_;
    f.plan_p50_us = percentile_us(sorted, 0.5);
    f.plan_p99_us = percentile_us(sorted, 0.99);
    f.plan_max_us = percentile_us(sorted, 1.0);
    f.apply_p50_us = percentile_us(apply_ns_, 0.5);
    f.apply_p99_us = percentile_us(apply_ns_, 0.99);
    // The least any plan must do: look at each record once.
    std::vector<double> scans;
    for (int i = 0; i < 200; ++i) {
        const auto begin = Clock::now();
        const SchedulerCounts counts = scheduler_.counts();
        const auto end = Clock::now();
        if (counts.num_running >= 0) scans.push_back(std::chrono::duration<double, std::nano>(end - begin).count());
    }
    f.scan_p50_us = percentile_us(scans, 0.5);
    return f;
}

/// The figures of the first of the runs, and what all of them agree on.
Figures measure_case(const Case& c) {
    constexpr int kSteps = 4000, kRuns = 3;
    Run first(c);
    Figures f = first.measure(kSteps);
    std::vector<double> least = first.plan_ns();
    for (int i = 1; i < kRuns; ++i) {
        Run again(c);
        again.measure(kSteps);
        for (size_t k = 0; k < least.size(); ++k) least[k] = std::min(least[k], again.plan_ns().at(k));
    }
    f.plan_repeated_max_us = percentile_us(least, 1.0);
    return f;
}

}  // namespace

int main(int argc, char** argv) {
    std::string json;
    for (int i = 1; i + 1 < argc; ++i) {
        if (std::string(argv[i]) == "--json") json = argv[i + 1];
    }
    const Case cases[] = {{"steady", 1, false}, {"answers end, others come in", 1, true}, {"27 tenants, two classes", 27, true}};
    std::string out = "{\"running\": 256, \"waiting\": 1000, \"cases\": [";
    std::printf("%-30s %8s %8s %8s %8s %8s %8s %8s %12s\n", "case", "plan50", "plan99", "planmax", "repmax", "apply50", "apply99",
                "scan50", "allocations");
    bool first = true;
    for (const Case& c : cases) {
        const Figures f = measure_case(c);
        std::printf("%-30s %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %8.2f %12.4f\n", f.name.c_str(), f.plan_p50_us, f.plan_p99_us,
                    f.plan_max_us, f.plan_repeated_max_us, f.apply_p50_us, f.apply_p99_us, f.scan_p50_us, f.allocations_per_step);
        char line[512];
        std::snprintf(line, sizeof line,
                      "%s\n {\"case\": \"%s\", \"steps\": %d, \"plan_p50_us\": %.1f, \"plan_p99_us\": %.1f, \"plan_max_us\": %.1f, "
                      "\"plan_repeated_max_us\": %.1f, \"apply_p50_us\": %.1f, \"apply_p99_us\": %.1f, "
                      "\"scan_of_running_p50_us\": %.2f, \"allocations_per_step\": %.4f}",
                      first ? "" : ",", f.name.c_str(), f.steps, f.plan_p50_us, f.plan_p99_us, f.plan_max_us, f.plan_repeated_max_us,
                      f.apply_p50_us, f.apply_p99_us, f.scan_p50_us, f.allocations_per_step);
        out += line;
        first = false;
    }
    out += "\n]}\n";
    if (!json.empty()) std::ofstream(json) << out;
    return 0;
}
