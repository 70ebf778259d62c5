// From a Config to the scheduler's part of it that does not depend on a device. Shared by the engine and the simulator.
#pragma once

#include <takt/config.h>

#include "runtime/scheduler.h"

namespace takt {

/// Everything but the row ladder and rows_are_data.
SchedulerConfig scheduler_basics(const Config& config, int32_t max_context);

}  // namespace takt
