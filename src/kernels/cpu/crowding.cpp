// Thresholds of the crowd decision. A partner that other programs keep off its core shows as sleep in barriers together with
// involuntary switches; uneven work alone shows as sleep without them and is no reason to give up a thread.
#include "kernels/cpu/crowding.h"

#include <algorithm>

namespace takt::cpu {
namespace {

constexpr uint64_t kShortestJobNs = 200'000;     // below, one switch says nothing
constexpr double kBadShare = 0.45;               // asleep for more of the job: one thread alone would have been as fast
constexpr int kBadJobs = 4;                      // in a row, so that one daemon's burst changes nothing
constexpr uint64_t kFirstPauseNs = 50'000'000;   // then probe again with all threads
constexpr uint64_t kLongestPauseNs = 1'000'000'000;

}  // namespace

void Crowding::observe(const JobReport& report) {
    if (report.elapsed_ns < kShortestJobNs) return;
    const bool bad = report.num_preempted > 0 &&
                     static_cast<double>(report.slept_ns) > kBadShare * static_cast<double>(report.elapsed_ns);
    if (!bad) {
        num_bad_ = 0;
        pause_ns_ = 0;
        return;
    }
    // A probe after a spell on one thread needs only one bad job to go back.
    if (++num_bad_ < kBadJobs && pause_ns_ == 0) return;
    pause_ns_ = std::clamp(2 * pause_ns_, kFirstPauseNs, kLongestPauseNs);
    single_until_ns_ = report.now_ns + pause_ns_;
    num_bad_ = 0;
}

}  // namespace takt::cpu
