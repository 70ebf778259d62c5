// The job loop of the compute threads, their barrier and their scratch.
#include "kernels/cpu/thread_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "kernels/assert.h"
#include "kernels/cpu/run_delay.h"

namespace takt::cpu {
namespace {

// Pauses before a thread sleeps. Some 20 us: more than any balanced wait, less than what a descheduled partner costs.
constexpr int kBarrierSpins = 600;
// A worker waits this long for the next job before it sleeps, and leaves the core to the engine's thread otherwise.
constexpr int kJobSpins = 200;
constexpr size_t kScratchAlign = 64;
constexpr size_t kScratchStep = 4096;

/// What the calling thread has had of its core; 0 where the system does not say.
uint64_t cpu_time_ns() {
    rusage usage{};
#ifdef RUSAGE_THREAD
    if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
#endif
    const auto us = [](const timeval& t) { return static_cast<uint64_t>(t.tv_sec) * 1'000'000 + static_cast<uint64_t>(t.tv_usec); };
    return (us(usage.ru_utime) + us(usage.ru_stime)) * 1000;
}

}  // namespace

void* ThreadPool::Scratch::grow(size_t wanted) {
    if (wanted <= bytes) return data;
    const size_t rounded = (wanted + kScratchStep - 1) / kScratchStep * kScratchStep;
    std::free(data);
    data = std::aligned_alloc(kScratchAlign, rounded);
    bytes = data == nullptr ? 0 : rounded;
    return data;
}

ThreadPool::Scratch::~Scratch() { std::free(data); }

ThreadPool::ThreadPool(const PoolOptions& options, TimeSource time)
    : options_(options), time_(time), failed_item_(INT_MAX), ranges_(options.num_threads),
      members_(static_cast<size_t>(options.num_threads)) {
    threads_.reserve(static_cast<size_t>(options.num_threads - 1));
    for (int t = 1; t < options.num_threads; ++t) threads_.emplace_back([this, t] { worker(t); });
}

ThreadPool::~ThreadPool() {
    stop_ = true;
    published_.advance();
    for (std::thread& t : threads_) t.join();
}

Status ThreadPool::run(std::span<const Operation> operations, int32_t rows) {
    if (operations.empty()) return {};
    failed_item_.store(INT_MAX, std::memory_order_relaxed);
    const bool parallel = options_.num_threads > 1 &&
                          std::any_of(operations.begin(), operations.end(), [](const Operation& o) { return !o.single; });
    watched_ = parallel && options_.adaptive && Crowding::is_watched(rows);
    const bool reduced = watched_ && crowding_.single(rows);
    const uint64_t begin_ns = watched_ ? time_.now() : 0, begin_cpu_ns = watched_ ? cpu_time_ns() : 0;
    const int64_t begin_delay_ns = watched_ ? run_delay_ns() : 0;
    for (Member& m : members_) m.seen_delay_ns = m.run_delay_ns;
    job_.operations = operations;
    job_.num_threads = parallel && !reduced ? options_.num_threads : 1;
    if (job_.num_threads > 1) published_.advance();
    execute(0);
    // All threads have made the same deals, but for one that failed in the midst of an operation.
    for (int t = 0; t < job_.num_threads; ++t) {
        const uint32_t last = members_[static_cast<size_t>(t)].last_deal;
        if (static_cast<int32_t>(last - job_.first_deal) > 0) job_.first_deal = last;
    }
    if (watched_) {
        const uint64_t elapsed_ns = time_.now() - begin_ns;
        const uint64_t on_core_ns = begin_cpu_ns > 0 ? cpu_time_ns() - begin_cpu_ns : elapsed_ns;
        const uint64_t off_core_ns = elapsed_ns - std::min(elapsed_ns, on_core_ns);
        const bool known = begin_delay_ns >= 0;
        crowding_.observe({rows, reduced, elapsed_ns, off_core_ns, known ? contended_ns(run_delay_ns() - begin_delay_ns) : off_core_ns});
    }
    if (failed_item_.load(std::memory_order_relaxed) == INT_MAX) return {};
    return {failed_code_.load(std::memory_order_relaxed), failed_message_.load(std::memory_order_relaxed)};
}

/// The longest that one thread stood ready without a core in the job that has ended, thread 0 for `own_ns`. A worker's time runs from the
/// end of its job before: one that has slept is woken for this one, and may wait for its core then.
uint64_t ThreadPool::contended_ns(int64_t own_ns) {
    int64_t most = own_ns;
    for (const Member& m : members_) most = std::max(most, m.run_delay_ns - m.seen_delay_ns);
    return static_cast<uint64_t>(std::max<int64_t>(most, 0));
}

void ThreadPool::worker(int thread) {
    uint32_t seen = 0;
    for (;;) {
        if (published_.spin_while(seen, kJobSpins)) published_.sleep_while(seen);
        ++seen;   // every published job is for every worker, so none is missed
        if (stop_) return;
        execute(thread);
    }
}

void ThreadPool::execute(int thread) {
    TaskContext context;
    context.thread = thread;
    context.isa = options_.isa;
    context.arithmetic = options_.arithmetic;
    context.pool_ = this;
    context.deal_ = job_.first_deal;
    const int num_operations = static_cast<int>(job_.operations.size());
    bool alone = true;   // only thread 0 has worked since the last barrier
    for (int i = 0; i < num_operations; ++i) {
        const Operation& operation = job_.operations[static_cast<size_t>(i)];
        // Between two operations of thread 0 nobody need meet.
        if (i > 0 && !(alone && operation.single)) meet();
        alone = operation.single;
        // An operation that fails meanwhile has a larger index, so all threads decide alike.
        if (failed_item_.load(std::memory_order_relaxed) < i) continue;
        if (operation.single && thread != 0) continue;
        context.item_ = i;
        context.num_threads = operation.single ? 1 : job_.num_threads;
        operation.run(context, operation.params);
    }
    members_[static_cast<size_t>(thread)].last_deal = context.deal_;
    if (thread != 0 && options_.adaptive) members_[static_cast<size_t>(thread)].run_delay_ns = run_delay_ns();
    meet();
}

void ThreadPool::meet() {
    const int n = job_.num_threads;
    if (n == 1) return;
    const uint32_t phase = phase_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.advance();
        return;
    }
    if (phase_.spin_while(phase, kBarrierSpins)) phase_.sleep_while(phase);
}

void ThreadPool::fail(int item, Status status) {
    while (failing_.test_and_set(std::memory_order_acquire)) spin_pause();
    if (item < failed_item_.load(std::memory_order_relaxed)) {
        failed_code_.store(status.code, std::memory_order_relaxed);
        failed_message_.store(status.message, std::memory_order_relaxed);
        failed_item_.store(item, std::memory_order_relaxed);
    }
    failing_.clear(std::memory_order_release);
}

void TaskContext::barrier() {
    if (num_threads > 1) pool_->meet();
}

Deal TaskContext::deal(int64_t num_units) {
    if (num_threads == 1) return {nullptr, 0, 0, 1, num_units};
    return {&pool_->ranges_, ++deal_, thread, num_threads, num_units};
}

Deal::Deal(SharedRanges* ranges, uint32_t number, int thread, int num_threads, int64_t num_units)
    : ranges_(ranges), number_(number), thread_(thread), num_threads_(num_threads), num_units_(num_units),
      stretch_((num_units + SharedRanges::kMostUnits - 1) / SharedRanges::kMostUnits) {
    if (ranges_ == nullptr) end_ = num_units;
}

int64_t Deal::next() {
    if (at_ < end_) return at_++;
    if (ranges_ == nullptr || num_units_ == 0) return -1;
    const int64_t stretch = ranges_->take(number_, thread_, num_threads_, (num_units_ + stretch_ - 1) / stretch_);
    if (stretch < 0) return -1;
    at_ = stretch * stretch_;
    end_ = std::min(at_ + stretch_, num_units_);
    return at_++;
}

void* TaskContext::scratch(size_t bytes) {
    void* data = pool_->members_[static_cast<size_t>(thread)].scratch.grow(bytes);
    if (data == nullptr) fail({kStatusOutOfMemory, "no memory for a compute thread's scratch"});
    return data;
}

void* TaskContext::shared_scratch(size_t bytes) {
    ThreadPool::Scratch& shared = pool_->shared_;
    // All threads see the same size here: it changes only between the two barriers below.
    if (bytes > shared.bytes) {
        barrier();
        if (thread == 0) shared.grow(bytes);
        barrier();
    }
    if (shared.bytes < bytes) {
        fail({kStatusOutOfMemory, "no memory for the compute threads' shared scratch"});
        return nullptr;
    }
    return shared.data;
}

RotationCache& TaskContext::rotations() { return pool_->members_[static_cast<size_t>(thread)].rotations; }

void TaskContext::fail(Status status) { pool_->fail(item_, status); }

}  // namespace takt::cpu
