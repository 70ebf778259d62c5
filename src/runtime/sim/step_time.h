// StepTime: how long a step of the pretended device takes, from the same profile as the sim device, asked with a step's features.
// Pure; without noise.
#pragma once

#include <string>
#include <vector>

#include "kernels/sim/profile.h"
#include "runtime/cost_model.h"

namespace takt::sim {

class StepTime {
public:
    /// The built-in profile "h100-7b".
    static StepTime h100();
    explicit StepTime(Profile profile) : profile_(std::move(profile)) {}

    /// Nanoseconds of the step, launched in its padded shape.
    [[nodiscard]] double ns(const StepFeatures& features) const;

private:
    Profile profile_;
};

/// The shapes of the pretended device: doubling to 128, then multiples of 128 to 4096, `max_running` among them.
std::vector<int32_t> h100_ladder(int32_t max_running);
/// What is known of an H100 with a 7B model before anything was measured: a guess, wrong by up to a quarter on purpose.
CostRoofline h100_roofline();

}  // namespace takt::sim
