// Figures: what a simulated run came to, by the formulas of docs/scheduling.md. Pure.
#pragma once

#include <string>
#include <vector>

#include <takt/simulate.h>

#include "runtime/sim/scheduler_sim.h"

namespace takt::sim {

struct FigureNames {
    std::vector<std::string> classes, tenants;
};

SimulateResult make_figures(const SimOptions& options, const std::vector<SimRequest>& workload, SimReport& report,
                            const FigureNames& names);

}  // namespace takt::sim
