// See end_forecast.h.
#include "runtime/end_forecast.h"

#include <algorithm>

namespace takt {
namespace {

// Follows the earliest of the recent steps: most of the way at once when one ends sooner, back slowly.
constexpr double kRise = 0.5, kFall = 0.02;
constexpr double kMostShare = 0.25;    // of a step: an outlier moves no plan further than that
constexpr double kDriftShare = 1e-4;   // two clocks may part by so much

}  // namespace

void EndForecast::observe(bool with_prefill, uint64_t predicted_ns, uint64_t device_ns, uint64_t device_end_ns, uint64_t seen_ns) {
    last_end_ns_ = seen_ns;
    if (device_end_ns == 0 || device_ns == 0) return;
    const auto apart = static_cast<int64_t>(seen_ns - device_end_ns);
    const auto drift = static_cast<int64_t>(kDriftShare * static_cast<double>(seen_ns - std::min(offset_seen_ns_, seen_ns)));
    offset_ns_ = offset_seen_ns_ == 0 ? apart : std::min(apart, offset_ns_ + drift);
    offset_seen_ns_ = std::max<uint64_t>(seen_ns, 1);
    last_end_ns_ = device_end_ns + static_cast<uint64_t>(offset_ns_);

    double& early = early_[with_prefill ? 1 : 0];
    const double most = kMostShare * static_cast<double>(predicted_ns);
    const double now = std::clamp(static_cast<double>(predicted_ns) - static_cast<double>(device_ns), 0.0, most);
    early += (now - early) * (now > early ? kRise : kFall);
}

}  // namespace takt
