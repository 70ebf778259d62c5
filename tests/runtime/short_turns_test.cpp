// Short turns: who asks keeps its priority, and what it begins later takes them too.
#include <sys/resource.h>
#include <takt/short_turns.h>

#include <thread>

#include "catch.h"

using namespace takt;

TEST_CASE("a thread that asks for short turns keeps its priority, and may ask again") {
    std::thread([] {
        const int before = getpriority(PRIO_PROCESS, 0);
        const bool asked = ask_for_short_turns();
        CHECK(getpriority(PRIO_PROCESS, 0) == before);
        CHECK(ask_for_short_turns() == asked);
        if (!asked) WARN("skipped: this kernel has no turns of a length of one's own");
        std::thread([asked] { CHECK(ask_for_short_turns() == asked); }).join();
        CHECK(getpriority(PRIO_PROCESS, 0) == before);
    }).join();
}
