// Who runs next: the CPU device's queue side. push() is called by the engine's thread; the entries run on the worker, or inside
// poll() and synchronize() in manual mode. One mutex guards all queues; nothing runs while it is held.
#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/graph.h"

namespace takt::cpu {
namespace {

// The worker looks this often for a new entry before it sleeps: about 10 us, the engine's turn between two steps.
constexpr int kIdleSpins = 300;

}  // namespace

void CpuDevice::attach(CpuStream* stream) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
}

void CpuDevice::detach(CpuStream* stream) {
    std::unique_lock lock(mutex_);
    stream->queue_.clear();   // what has not begun never will
    progress_.wait(lock, [&] { return !stream->running_; });
    streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
    // Others may have waited for its events.
    num_pushed_.fetch_add(1);
    work_.notify_all();
}

void CpuDevice::push(CpuStream& stream, CpuStream::Entry&& entry) {
    {
        const std::lock_guard lock(mutex_);
        stream.queue_.push_back(std::move(entry));
        num_pushed_.fetch_add(1);
    }
    if (!options_.manual) work_.notify_one();
}

bool CpuDevice::reached(Event event) const {
    for (const CpuStream* s : streams_) {
        if (s->id_ == event.stream_id) return s->completed_.load(std::memory_order_acquire) >= event.value;
    }
    return true;   // its stream is gone
}

CpuStream* CpuDevice::next_stream() const {
    CpuStream* best = nullptr;
    // Equal urgency: in turn by id, beginning after the one served last.
    const auto turn = [this](const CpuStream* s) { return s->id_ - last_served_ - 1; };
    for (CpuStream* s : streams_) {
        if (s->queue_.empty()) continue;
        const CpuStream::Entry& front = s->queue_.front();
        if (front.kind == CpuStream::Entry::Kind::wait && !reached(front.event)) continue;
        if (best == nullptr || s->priority_ < best->priority_ ||
            (s->priority_ == best->priority_ && turn(s) < turn(best))) {
            best = s;
        }
    }
    return best;
}

void CpuDevice::run_front(CpuStream& stream, std::unique_lock<std::mutex>& lock) {
    const CpuStream::Entry entry = std::move(stream.queue_.front());
    stream.queue_.pop_front();
    last_served_ = stream.id_;
    stream.running_ = true;
    const bool skipped = !stream.error_.ok();
    lock.unlock();
    Status status;
    const bool is_record = entry.kind == CpuStream::Entry::Kind::record;
    if (is_record) {
        stream.completed_.store(entry.event.value, std::memory_order_release);
        num_records_.fetch_add(1, std::memory_order_release);
        announce();
    } else if (!skipped) {
        status = run_entry(entry);
    }
    lock.lock();
    if (!status.ok()) {
        stream.error_ = status;
        stream.failed_.store(true, std::memory_order_release);
    }
    stream.running_ = false;
    progress_.notify_all();
}

Status CpuDevice::run_entry(const CpuStream::Entry& entry) {
    if (entry.kind == CpuStream::Entry::Kind::launch) return pool_->run(entry.graph->operations(), entry.graph->rows());
    if (entry.kind != CpuStream::Entry::Kind::operation) return {};
    const Operation operation{entry.run, entry.params(), entry.single};
    return pool_->run({&operation, 1});
}

void CpuDevice::work() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
        CpuStream* stream = next_stream();
        if (stream != nullptr) {
            run_front(*stream, lock);
            continue;
        }
        const uint64_t seen = num_pushed_.load();
        lock.unlock();
        for (int i = 0; i < kIdleSpins && num_pushed_.load(std::memory_order_acquire) == seen; ++i) spin_pause();
        lock.lock();
        work_.wait(lock, [&] { return stop_ || num_pushed_.load() != seen; });
    }
}

bool CpuDevice::poll(int max_items) {
    if (!options_.manual) {
        const uint64_t records = num_records_.load(std::memory_order_acquire);
        const bool progressed = records != records_polled_;
        records_polled_ = records;
        return progressed;
    }
    std::unique_lock lock(mutex_);
    int num_run = 0;
    while (max_items < 0 || num_run < max_items) {
        CpuStream* stream = next_stream();
        if (stream == nullptr) break;
        run_front(*stream, lock);
        ++num_run;
    }
    return num_run > 0;
}

Status CpuDevice::synchronize(CpuStream& stream) {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return stream.queue_.empty() && !stream.running_; };
    const auto stuck = [&] {
        return next_stream() == nullptr &&
               std::none_of(streams_.begin(), streams_.end(), [](const CpuStream* s) { return s->running_; });
    };
    if (options_.manual) {
        while (!done() && !stuck()) run_front(*next_stream(), lock);
    } else {
        progress_.wait(lock, [&] { return done() || stuck(); });
    }
    if (!done()) return {kStatusBadArgument, "the stream waits for an event that is never recorded"};
    return stream.error_;
}

void CpuDevice::announce() {
    const std::lock_guard lock(wakeup_mutex_);
    if (wakeup_ != nullptr) wakeup_(wakeup_context_);
}

}  // namespace takt::cpu
