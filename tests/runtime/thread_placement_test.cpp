// ThreadPlacement: the other thread loses one core and keeps the rest.
#include "runtime/thread_placement.h"

#include "catch.h"

#if defined(__linux__)
#include <sched.h>

#include <future>
#include <thread>

namespace {

int num_cores(int64_t thread_id) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    REQUIRE(::sched_getaffinity(static_cast<pid_t>(thread_id), sizeof(cores), &cores) == 0);
    return CPU_COUNT(&cores);
}

}  // namespace

TEST_CASE("a thread is kept off one core, if it has others", "[runtime]") {
    std::promise<int64_t> started;
    std::promise<void> finished;
    std::thread other([&] {
        started.set_value(takt::this_thread_id());
        finished.get_future().wait();
    });
    const int64_t id = started.get_future().get();
    CHECK(id != takt::this_thread_id());
    const int before = num_cores(id);
    takt::ThreadPlacement placement;
    placement.keep_off_this_core(0);      // nobody
    CHECK(num_cores(id) == before);
    for (int i = 0; i < 3; ++i) {
        placement.keep_off_this_core(id);
        CHECK(num_cores(id) == (before > 1 ? before - 1 : 1));
    }
    placement.call_here();
    CHECK(num_cores(id) == before);
    CHECK(num_cores(0) == before);        // the caller's own
    finished.set_value();
    other.join();
}
#endif
