// FlightRecorder: the last steps, in a ring. Written by the engine thread, copied by any.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <takt/metrics.h>

namespace takt {

class FlightRecorder {
public:
    explicit FlightRecorder(size_t capacity) : capacity_(capacity) { ring_.reserve(capacity); }

    void add(const StepRecord& step) {
        if (capacity_ == 0) return;
        std::lock_guard lock(mutex_);
        if (ring_.size() < capacity_) {
            ring_.push_back(step);
        } else {
            ring_[next_] = step;
        }
        next_ = (next_ + 1) % capacity_;
    }
    /// Oldest first.
    [[nodiscard]] std::vector<StepRecord> snapshot() const {
        std::lock_guard lock(mutex_);
        if (ring_.size() < capacity_) return ring_;
        std::vector<StepRecord> out(ring_.begin() + static_cast<std::ptrdiff_t>(next_), ring_.end());
        out.insert(out.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(next_));
        return out;
    }

private:
    const size_t capacity_;
    mutable std::mutex mutex_;
    std::vector<StepRecord> ring_;
    size_t next_ = 0;
};

}  // namespace takt
