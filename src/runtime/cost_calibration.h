// Calibration: the steps that a device without a cached cost table is measured with. Pure; whoever runs them reports their times
// to CostModel::observe in the same order.
#pragma once

#include <vector>

#include "runtime/cost_model.h"

namespace takt {

/// Each shape a few times as one prefill without history; then two shapes with and without context, for the slopes.
std::vector<StepFeatures> calibration_steps(const CostModel& cost);

}  // namespace takt
