// Clock: the engine's only source of time. Passed by reference to whoever needs it. RealClock may be read from any thread;
// VirtualClock belongs to the simulation's one thread.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace takt {

class Clock {
public:
    virtual ~Clock() = default;
    /// Nanoseconds of a monotonic clock; the origin is arbitrary.
    [[nodiscard]] virtual uint64_t now_ns() const = 0;
    /// The same as a plain function for layers below.
    [[nodiscard]] TimeSource source() const {
        return {[](void* self) { return static_cast<const Clock*>(self)->now_ns(); }, const_cast<Clock*>(this)};
    }
};

/// std::chrono::steady_clock.
class RealClock final : public Clock {
public:
    [[nodiscard]] uint64_t now_ns() const override;
};

/// Stands still until it is advanced. Time never goes back.
class VirtualClock final : public Clock {
public:
    [[nodiscard]] uint64_t now_ns() const override { return now_ns_; }
    void advance_to(uint64_t ns) {
        if (ns > now_ns_) now_ns_ = ns;
    }

private:
    uint64_t now_ns_ = 1'000'000'000;   // not 0: a zero time stamp means "never" in several places
};

/// Seconds since the Unix epoch; for `created` fields only.
int64_t unix_seconds();

}  // namespace takt
