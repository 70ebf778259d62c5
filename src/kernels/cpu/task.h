// What an operation of the CPU device is: one function that every compute thread runs at once, with this context. Owns the
// contract between the operations (src/kernels/cpu/*.cpp) and the pool that runs them; knows no operation. All members may be
// called from any compute thread of the item that they were given to, and from nowhere else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_factory.h"
#include "kernels/status.h"

namespace takt::cpu {

class RotationCache;
class SharedRanges;
class ThreadPool;

/// One deal of `num_units` to the threads of an item: `while ((unit = deal.next()) >= 0)`.
class Deal {
public:
    Deal(SharedRanges* ranges, uint32_t number, int thread, int num_threads, int64_t num_units);
    /// The next unit for this thread, -1 at the end. Ascending, but for those taken from others at the end.
    int64_t next();

private:
    SharedRanges* ranges_;   // null: one thread takes all
    uint32_t number_;
    int thread_, num_threads_;
    int64_t num_units_, stretch_;   // units that go together where there are very many
    int64_t at_ = 0, end_ = 0;      // of the stretch in hand
};

/// The view that one compute thread has of the item it runs. `num_threads` may differ from item to item (the pool drops to one
/// thread while other programs hold the cores) and never changes within one: split work by it, not by caps().num_threads.
class TaskContext {
public:
    int thread = 0;         ///< 0 ... num_threads - 1
    int num_threads = 1;
    CpuIsa isa = CpuIsa::portable;   ///< the path to run: never `automatic`
    CpuArithmetic arithmetic = CpuArithmetic::int16;

    /// All threads of the item meet here; what they wrote before is seen by all after. Every thread must make the same calls.
    void barrier();

    /// Deals units to the threads as they come: for work whose units are alike and independent. Every thread must make the same calls.
    /// No barrier: a thread that finds nothing left may go on to the next deal while others still work.
    Deal deal(int64_t num_units);

    /// This thread's own scratch, at least `bytes`, 64-byte aligned, contents undefined. A second call may move it and keeps
    /// nothing. It stays allocated, so that steady state never allocates. null: no memory; the item has then failed already.
    void* scratch(size_t bytes);

    /// Scratch shared by the threads of the item: the same pointer on all. Every thread must call it with the same `bytes`, at
    /// the item's start and before any data is in it; its first growth is a barrier. Contents undefined. null as above.
    void* shared_scratch(size_t bytes);

    /// This thread's own cosines and sines; they last from item to item.
    RotationCache& rotations();

    /// The item failed: its stream becomes sticky-failed with the first such status, later items are skipped. The caller still
    /// has to make the barriers that the item's other threads make.
    void fail(Status status);

private:
    friend class ThreadPool;
    ThreadPool* pool_ = nullptr;
    int item_ = 0;   // index in the running job
    uint32_t deal_ = 0;   // number of the last deal
};

/// Runs on every compute thread (or on one: CpuStream::enqueue_single). `params` is the stream's copy.
using Task = void (*)(TaskContext& context, const void* params);

}  // namespace takt::cpu

namespace takt {
using CpuTaskContext = cpu::TaskContext;
}
