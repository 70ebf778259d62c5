// Crowding: decides how many threads the next job may use while other programs compete for the cores. Pure: it is told what the
// last jobs saw and answers; it reads no clock and no thread.
#pragma once

#include <cstdint>

namespace takt::cpu {

/// What a job on all threads saw.
struct JobReport {
    uint64_t now_ns = 0;          ///< its end
    uint64_t elapsed_ns = 0;
    uint64_t slept_ns = 0;        ///< most that one thread slept in barriers for a partner
    int64_t num_preempted = 0;    ///< involuntary switches of all threads
};

class Crowding {
public:
    /// Whether the next job should run on one thread. `now_ns` may stand still (virtual clocks): then it never does.
    [[nodiscard]] bool single(uint64_t now_ns) const { return now_ns < single_until_ns_; }
    /// Called after each job that ran on all threads.
    void observe(const JobReport& report);

private:
    int num_bad_ = 0;                 // crowded jobs in a row
    uint64_t single_until_ns_ = 0;
    uint64_t pause_ns_ = 0;           // length of the last spell on one thread
};

}  // namespace takt::cpu
