// GapLog: gaps over time, late time by cause, and the worst gaps of a simulated run. Listens to it; pure.
#pragma once

#include <vector>

#include <takt/simulate.h>

#include "runtime/late_cause.h"
#include "runtime/sim/scheduler_sim.h"

namespace takt::sim {

class GapLog {
public:
    GapLog(const SimulateOptions& options, const std::vector<SimRequest>& workload);
    /// Sets the run's on_gap; the log must outlive the run.
    void attach(SimOptions& options);
    void write(SimulateResult& result) const;

private:
    void add(const SimGap& gap);

    const size_t num_explained_;
    uint64_t stretch_ns_ = 1;
    std::vector<uint64_t> longest_ns_;          // [stretch of time]
    std::vector<uint64_t> late_ns_ = std::vector<uint64_t>(kNumLateCauses, 0);
    std::vector<ExplainedGap> worst_;           // the latest first
};

}  // namespace takt::sim
