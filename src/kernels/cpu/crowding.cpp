// Windows, trials and holds of the crowd decision. While the threads have their cores nothing is ever tried: uneven work alone is no
// reason to give up a thread, and a trial of the slower way makes tokens late.
#include "kernels/cpu/crowding.h"

#include <algorithm>
#include <bit>

namespace takt::cpu {
namespace {

// Several slices of the kernel's scheduler long, so that the luck of one slice is not taken for a crowd.
constexpr uint64_t kWindowNs = 60'000'000;
constexpr int kWindowJobs = 4;
// Crowded: off the core for two fifths of the time. Measured beside a busy process on one core or on both: 0.44 to 0.9; alone, in bad
// moments of the machine's host, 0.2 to 0.3, and 0.5 in the first window of a process, whose pages come in.
constexpr uint64_t kCrowdedFifths = 2;
// ... and one thread ready without a core for a tenth of it: who waits asleep for a partner that has more to do, or whose core the
// machine's host has, is off the core as well, and one thread would be no faster.
constexpr uint64_t kContendedTenths = 1;
constexpr int kCrowdedWindows = 3;     // ... in so many windows in a row: a burst of another program is over by then
constexpr double kBetter = 0.97;       // a trial must win by this to change the way,
constexpr double kHopeless = 1.4;      // and ends early where it loses by this
constexpr uint64_t kShortestTrialNs = 20'000'000;
// Between trials. Each trial costs a window of the slower way, at worst.
constexpr uint64_t kShortestHoldNs = 300'000'000;
constexpr uint64_t kLongestHoldNs = 2'400'000'000;
constexpr int32_t kSingleRows = 16;    // up to here each count of rows is a kind of its own

}  // namespace

size_t Crowding::index(int32_t rows) {
    if (rows <= kSingleRows) return static_cast<size_t>(rows - 1);
    return static_cast<size_t>(kSingleRows + std::bit_width(static_cast<uint32_t>(rows - 1)) - std::bit_width(uint32_t{kSingleRows}));
}

void Crowding::observe(const JobReport& report) {
    if (!is_watched(report.rows)) return;
    State& s = states_[index(report.rows)];
    if (report.single != s.single) return;
    s.window_ns += report.elapsed_ns;
    s.rows += report.rows;
    ++s.num_jobs;
    s.off_core_ns += report.off_core_ns;
    s.contended_ns += report.contended_ns;
    const bool full = s.window_ns >= kWindowNs && s.num_jobs >= kWindowJobs;
    if (full || is_hopeless(s)) end_window(s);
}

bool Crowding::is_hopeless(const State& s) {
    const double other = s.ns_per_row[s.single ? 0 : 1];
    return s.trial && s.window_ns >= kShortestTrialNs && s.num_jobs > 1 &&
           static_cast<double>(s.window_ns) > kHopeless * other * static_cast<double>(s.rows);
}

void Crowding::end_window(State& s) {
    const double seen = static_cast<double>(s.window_ns) / static_cast<double>(s.rows);
    double& rate = s.ns_per_row[s.single ? 1 : 0];
    const bool crowded = s.off_core_ns * 5 >= s.window_ns * kCrowdedFifths && s.contended_ns * 10 >= s.window_ns * kContendedTenths;
    // What a crowd leaves varies; without one a single window tells.
    rate = rate == 0 || !crowded ? seen : (rate + seen) / 2;
    s.held_ns += s.window_ns;
    s.window_ns = 0;
    s.rows = 0;
    s.num_jobs = 0;
    s.off_core_ns = s.contended_ns = 0;
    s.num_crowded = crowded ? s.num_crowded + 1 : 0;
    if (s.trial) return end_trial(s);
    if (!s.single && !crowded) {   // the common state: nothing is remembered of past crowds
        s = State{};
        return;
    }
    if (!s.single && s.num_crowded < kCrowdedWindows) return;
    const uint64_t hold = crowded ? s.hold_ns : std::min(s.hold_ns, kShortestHoldNs);
    if (s.held_ns < hold) return;
    s.single = !s.single;
    s.trial = true;
}

void Crowding::end_trial(State& s) {
    const double tried = s.ns_per_row[s.single ? 1 : 0];
    const double other = s.ns_per_row[s.single ? 0 : 1];
    const bool won = tried < kBetter * other;
    if (!won) s.single = !s.single;
    s.hold_ns = won ? kShortestHoldNs : std::clamp(2 * s.hold_ns, kShortestHoldNs, kLongestHoldNs);
    s.held_ns = 0;
    s.trial = false;
}

}  // namespace takt::cpu
