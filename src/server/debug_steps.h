// The flight recorder as JSON, for /debug/steps and the page that draws it. Pure.
#pragma once

#include <takt/metrics.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace takt::server {

constexpr std::size_t kUsualSteps = 512, kMostSteps = 65536;

/// `last=N` of a query: how many steps are asked for; kUsualSteps where nothing is said, 0 where it is no number from 1 to kMostSteps.
std::size_t steps_asked(std::string_view query);

/// {"steps": [...]}: the last `count` of `steps`, oldest first. Times in milliseconds; begin and end on the device's clock.
std::string steps_json(std::span<const StepRecord> steps, std::size_t count);

}  // namespace takt::server
