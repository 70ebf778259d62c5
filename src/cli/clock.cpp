// The program's clocks. Any thread.
#include "cli/clock.h"

#include <cstdio>
#include <ctime>

namespace takt::cli {

std::chrono::steady_clock::time_point steady_now() { return std::chrono::steady_clock::now(); }

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(steady_now().time_since_epoch()).count());
}

std::string timestamp() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    const std::time_t seconds = static_cast<std::time_t>(milliseconds / 1000);
    std::tm parts{};
    gmtime_r(&seconds, &parts);
    char buffer[40];
    const std::size_t length = std::strftime(buffer, sizeof(buffer), "%Y-%m-%dT%H:%M:%S", &parts);
    std::string out(buffer, length);
    std::snprintf(buffer, sizeof(buffer), ".%03dZ", static_cast<int>(milliseconds % 1000));
    return out + buffer;
}

}  // namespace takt::cli
