// Workload: a trace's arrivals as requests of a simulation: scaled, cut or repeated, batched stamps spread, tenants numbered. Pure.
#pragma once

#include <string>
#include <vector>

#include <takt/simulate.h>

#include "runtime/sim/scheduler_sim.h"

namespace takt::sim {

/// Of a trace's stamps and of virtual time, which is counted in nanoseconds: three hundred years.
constexpr double kMostSeconds = 1e10;

/// `tenants` gets the names that are not in it yet, in order of appearance; [0] stands for requests without one.
std::vector<SimRequest> make_workload(const Trace& trace, const SimulateOptions& options, uint64_t seed, int32_t max_context,
                                      std::vector<std::string>& tenants);

}  // namespace takt::sim
