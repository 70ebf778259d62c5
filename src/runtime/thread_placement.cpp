// Affinity of threads; see thread_placement.h.
#include "runtime/thread_placement.h"

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace takt {

#if defined(__linux__)

int64_t this_thread_id() {
    static thread_local const int64_t id = ::gettid();
    return id;
}

void ThreadPlacement::keep_off_this_core(int64_t thread_id) {
    const int core = ::sched_getcpu();
    if (thread_id == 0 || core < 0 || (core == core_ && thread_id == thread_id_)) return;
    core_ = core;
    thread_id_ = thread_id;
    // The calling thread has the process's cores; the other one may have lost some here before.
    cpu_set_t cores;
    if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return;
    CPU_CLR(static_cast<size_t>(core), &cores);
    if (CPU_COUNT(&cores) == 0) return;
    (void)::sched_setaffinity(static_cast<pid_t>(thread_id), sizeof(cores), &cores);   // fails if it has ended
}

void ThreadPlacement::call_here() {
    cpu_set_t cores, here;
    CPU_ZERO(&here);
    if (core_ < 0 || ::sched_getaffinity(0, sizeof(cores), &cores) != 0) return;
    CPU_SET(static_cast<size_t>(::sched_getcpu()), &here);
    (void)::sched_setaffinity(static_cast<pid_t>(thread_id_), sizeof(here), &here);
    (void)::sched_setaffinity(static_cast<pid_t>(thread_id_), sizeof(cores), &cores);
    core_ = -1;
}

#else

int64_t this_thread_id() { return 0; }
void ThreadPlacement::keep_off_this_core(int64_t) {}
void ThreadPlacement::call_here() {}

#endif

}  // namespace takt
