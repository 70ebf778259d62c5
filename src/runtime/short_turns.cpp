// sched_setattr(2) with the length of a turn in sched_runtime; the C library has no function for it yet.
#include <takt/short_turns.h>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace takt {

#if defined(__linux__) && defined(SYS_sched_setattr) && defined(SYS_sched_getattr)

namespace {

constexpr std::uint64_t kTurnNs = 100'000;   // the shortest that the kernel gives

// As the kernel lays it out, its first version.
struct Attributes {
    std::uint32_t size;
    std::uint32_t policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns;
    std::uint64_t deadline_ns;
    std::uint64_t period_ns;
};

bool read(Attributes& attributes) { return ::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) == 0; }

}  // namespace

bool ask_for_short_turns() {
    Attributes own{};
    if (!read(own) || (own.policy != SCHED_OTHER && own.policy != SCHED_BATCH)) return false;
    own.size = sizeof(own);
    own.runtime_ns = kTurnNs;
    // An older kernel takes the call and does nothing.
    return ::syscall(SYS_sched_setattr, 0, &own, 0) == 0 && read(own) && own.runtime_ns == kTurnNs;
}

#else

bool ask_for_short_turns() { return false; }

#endif

}  // namespace takt
