// LateCause: see the header.
#include "runtime/late_cause.h"

#include <algorithm>

namespace takt {
namespace {

constexpr double kOutlier = 1.15;        // over the prediction: noise is within it

}  // namespace

LateCause late_cause(const LateFacts& f) {
    if (f.was_paused) return LateCause::reader;
    if (f.was_preempted) return LateCause::preemption;
    if (f.device_ns <= f.promised_ns && f.gap_ns > f.device_ns) {
        // The device alone kept it: what lies around the step is the host's, or the step was planned too long for what was left.
        const uint64_t host_ns = f.gap_ns - f.device_ns;
        const uint64_t late_ns = f.gap_ns - std::min(f.gap_ns, f.promised_ns);
        if (host_ns >= late_ns && host_ns * 5 >= f.promised_ns) return LateCause::host;
    }
    if (static_cast<double>(f.device_ns) > kOutlier * static_cast<double>(f.predicted_ns)) return LateCause::device;
    if (f.prefill_rows > 0) return LateCause::prefill;
    if (f.padding_ns > 0 && f.gap_ns - std::min(f.gap_ns, f.promised_ns) <= f.padding_ns) return LateCause::padding;
    // What lies around the step is to blame only where it is more than the device's own part over the promise.
    const uint64_t over_ns = f.device_ns - std::min(f.device_ns, f.promised_ns);
    return f.gap_ns > f.device_ns + std::max(f.promised_ns / 2, over_ns) ? LateCause::host : LateCause::device;
}

}  // namespace takt
