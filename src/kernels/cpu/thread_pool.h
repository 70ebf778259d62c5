// ThreadPool: the compute threads of one CPU device. Runs a list of operations on all threads with a barrier between them; the
// caller of run() is thread 0. Owns the threads, their scratch and the decision to go down to one thread while other programs
// hold the cores. Knows no streams and no events.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "kernels/cpu/crowding.h"
#include "kernels/cpu/rotation.h"
#include "kernels/cpu/shared_ranges.h"
#include "kernels/cpu/task.h"
#include "kernels/cpu/wait_word.h"
#include "kernels/device.h"

namespace takt::cpu {

/// One recorded or queued operation. `params` lie in the entry's or the graph's own storage.
struct Operation {
    Task run = nullptr;
    const void* params = nullptr;
    bool single = false;   ///< thread 0 alone runs it
};

struct PoolOptions {
    int num_threads = 1;
    CpuIsa isa = CpuIsa::portable;
    CpuArithmetic arithmetic = CpuArithmetic::int16;
    bool adaptive = true;   ///< may drop to one thread
};

class ThreadPool {
public:
    ThreadPool(const PoolOptions& options, TimeSource time);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    [[nodiscard]] int num_threads() const { return options_.num_threads; }
    /// Runs the operations in order and returns the first failure; those after it are skipped. One caller at a time.
    /// `rows` is what its work grows with, if it has such a number: jobs of one number are compared with one another.
    Status run(std::span<const Operation> operations, int32_t rows = 0);

private:
    friend class TaskContext;
    struct Scratch {
        void* data = nullptr;
        size_t bytes = 0;
        void* grow(size_t wanted);
        ~Scratch();
    };
    struct alignas(64) Member {
        Scratch scratch;
        RotationCache rotations;
        uint32_t last_deal = 0;
        int64_t run_delay_ns = 0;        // of a worker since it began, as its last job ended
        int64_t seen_delay_ns = 0;       // and as the job before that ended
    };
    struct Job {
        std::span<const Operation> operations;
        int num_threads = 1;
        uint32_t first_deal = 0;   // deals so far
    };

    uint64_t contended_ns(int64_t own_ns);
    void worker(int thread);
    void execute(int thread);
    void meet();
    void fail(int item, Status status);

    const PoolOptions options_;
    const TimeSource time_;
    Job job_;                                // written by thread 0 before it is published
    bool watched_ = false;                   // same
    bool stop_ = false;                      // same
    WaitWord published_;                     // job serial
    alignas(64) std::atomic<int32_t> arrived_{0};
    WaitWord phase_;
    std::atomic<int32_t> failed_item_;       // index of the first failed operation
    std::atomic<int32_t> failed_code_{0};
    std::atomic<const char*> failed_message_{""};
    std::atomic_flag failing_ = ATOMIC_FLAG_INIT;
    SharedRanges ranges_;
    Scratch shared_;
    std::vector<Member> members_;
    Crowding crowding_;
    std::vector<std::thread> threads_;       // last: they use all of the above
};

}  // namespace takt::cpu
