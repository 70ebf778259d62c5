// Crowding: decides whether the next job runs on all threads or on one while other programs compete for the cores. A partner that is
// kept off its core holds up every barrier, so that two threads may be slower than one; how much depends on the job and on the
// other programs, so both ways are tried and measured, and the better one is kept for a while. Results have the same bits either
// way. Pure: it is told what jobs took and answers; it reads no clock and no thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace takt::cpu {

/// What a job of `rows` rows took.
struct JobReport {
    int32_t rows = 0;
    bool single = false;          ///< it ran on one thread
    uint64_t elapsed_ns = 0;
    uint64_t off_core_ns = 0;     ///< the calling thread was kept off its core, or waited asleep for another one
    uint64_t contended_ns = 0;    ///< a compute thread, that with the most, stood ready while something else had its core
};

class Crowding {
public:
    /// Whether the next job, of `rows` rows, should run on one thread.
    [[nodiscard]] bool single(int32_t rows) const { return is_watched(rows) && state(rows).single; }
    /// Jobs of many rows stay on all threads: their barriers are far apart, and a crowd leaves them faster than one thread.
    [[nodiscard]] static bool is_watched(int32_t rows) { return rows >= 1 && rows <= kMostRows; }
    /// Called after each watched job. Time that stands still (a virtual clock) never changes anything.
    void observe(const JobReport& report);

private:
    static constexpr int32_t kMostRows = 64;

    // Jobs of about as many rows are alike; their times are compared a row.
    struct State {
        bool single = false;           // the way that is in use
        bool trial = false;            // for one window, against the other way
        double ns_per_row[2] = {};     // of all threads and of one; 0: unknown
        uint64_t window_ns = 0;        // the running window: job time,
        int64_t rows = 0;
        int num_jobs = 0;
        uint64_t off_core_ns = 0;      // of it off the core,
        uint64_t contended_ns = 0;     // and of it ready, without one
        int num_crowded = 0;           // windows in a row that were crowded
        uint64_t held_ns = 0;          // job time since the last trial
        uint64_t hold_ns = 0;          // how much of it must pass before the next
    };
    static size_t index(int32_t rows);
    [[nodiscard]] const State& state(int32_t rows) const { return states_[index(rows)]; }
    static bool is_hopeless(const State& state);   // a trial that loses clearly
    static void end_window(State& state);
    static void end_trial(State& state);

    std::array<State, 20> states_;
};

}  // namespace takt::cpu
