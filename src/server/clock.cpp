// The server's clocks. Any thread.
#include "server/clock.h"

namespace takt::server {

std::chrono::steady_clock::time_point steady_now() { return std::chrono::steady_clock::now(); }

std::uint64_t steady_now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(steady_now().time_since_epoch()).count());
}

std::int64_t unix_milliseconds() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

std::int64_t unix_seconds() { return unix_milliseconds() / 1000; }

}  // namespace takt::server
