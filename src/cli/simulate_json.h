// The figures of `takt simulate` as JSON; the keys are described in docs/scheduling.md.
#pragma once

#include <takt/simulate.h>

#include <string>
#include <vector>

#include "cli/command.h"

namespace takt::cli {

std::string simulate_json(const SimulateCommand& command, const Config& config, const std::vector<SimulateResult>& results,
                          double wall_s);

}  // namespace takt::cli
