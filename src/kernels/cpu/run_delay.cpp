// The second number of /proc/thread-self/schedstat: time on a run queue, in nanoseconds.
#include "kernels/cpu/run_delay.h"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#endif

namespace takt::cpu {

#if defined(__linux__)

namespace {

struct StatisticsFile {
    int fd = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    StatisticsFile() = default;
    StatisticsFile(const StatisticsFile&) = delete;
    StatisticsFile& operator=(const StatisticsFile&) = delete;
    ~StatisticsFile() {
        if (fd >= 0) ::close(fd);
    }
};

}  // namespace

int64_t run_delay_ns() {
    static thread_local const StatisticsFile file;
    char text[96];
    const ssize_t length = file.fd < 0 ? -1 : ::pread(file.fd, text, sizeof(text), 0);
    if (length <= 0) return -1;
    const char* end = text + length;
    const auto* space = static_cast<const char*>(std::memchr(text, ' ', static_cast<size_t>(length)));   // time on the core before it
    int64_t delay_ns = -1;
    if (space == nullptr || std::from_chars(space + 1, end, delay_ns).ec != std::errc{}) return -1;
    return delay_ns;
}

#else

int64_t run_delay_ns() { return -1; }

#endif

}  // namespace takt::cpu
