// RunDelay: how long the calling thread stood ready to run while something else had its core. Read from the kernel's scheduler
// statistics at the time of the call.
#pragma once

#include <cstdint>

namespace takt::cpu {

/// Nanoseconds since the calling thread began; -1 where the system does not say (no Linux, or no statistics in its kernel). About a
/// microsecond; the first call of a thread opens a file, which its end closes.
[[nodiscard]] int64_t run_delay_ns();

}  // namespace takt::cpu
