// The one file of the runtime that reads clocks.
#include "runtime/clock.h"

#include <chrono>

namespace takt {

uint64_t RealClock::now_ns() const {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

int64_t unix_seconds() {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

}  // namespace takt
