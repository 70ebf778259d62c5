// FlightRecorder: the last steps in order, whatever the capacity, while another thread copies them.
#include "runtime/flight_recorder.h"

#include <atomic>
#include <thread>

#include "catch.h"

using namespace takt;

namespace {

StepRecord step(uint64_t number) {
    StepRecord r;
    r.step = number;
    return r;
}

}  // namespace

TEST_CASE("a ring keeps the newest, oldest first") {
    for (const size_t capacity : {size_t{1}, size_t{3}, size_t{8}}) {
        FlightRecorder recorder(capacity);
        CHECK(recorder.snapshot().empty());
        for (uint64_t n = 1; n <= 20; ++n) {
            recorder.add(step(n));
            const auto kept = recorder.snapshot();
            REQUIRE(kept.size() == std::min<size_t>(capacity, n));
            for (size_t i = 0; i < kept.size(); ++i) CHECK(kept[i].step == n - kept.size() + 1 + i);
        }
    }
}

TEST_CASE("a capacity of 0 records nothing") {
    FlightRecorder recorder(0);
    recorder.add(step(1));
    CHECK(recorder.snapshot().empty());
}

TEST_CASE("a copy taken while steps are added is consecutive") {
    FlightRecorder recorder(16);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        for (uint64_t n = 1; !stop; ++n) recorder.add(step(n));
    });
    bool consecutive = true;
    for (int i = 0; i < 2000; ++i) {
        const auto kept = recorder.snapshot();
        for (size_t k = 1; k < kept.size(); ++k) consecutive = consecutive && kept[k].step == kept[k - 1].step + 1;
    }
    stop = true;
    writer.join();
    CHECK(consecutive);
}
