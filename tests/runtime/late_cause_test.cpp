// LateCause: what made a gap late, a row a cause.
#include "runtime/late_cause.h"

#include <string>
#include <vector>

#include "catch.h"

namespace takt {

TEST_CASE("a late gap has one cause", "[late_cause]") {
    struct Row {
        const char* name;
        LateFacts facts;
        LateCause cause;
    };
    const auto facts = [](double gap_ms, double device_ms, double predicted_ms, double padding_ms, int32_t prefill) {
        LateFacts f;
        f.promised_ns = 40'000'000;
        f.gap_ns = static_cast<uint64_t>(gap_ms * 1e6);
        f.device_ns = static_cast<uint64_t>(device_ms * 1e6);
        f.predicted_ns = static_cast<uint64_t>(predicted_ms * 1e6);
        f.padding_ns = static_cast<uint64_t>(padding_ms * 1e6);
        f.prefill_rows = prefill;
        return f;
    };
    LateFacts hopeless = facts(5.80, 5.78, 5.74, 0, 0), slow_host = facts(15.0, 5.78, 5.74, 0, 0);
    hopeless.promised_ns = slow_host.promised_ns = 1000;
    LateFacts paused = facts(90, 45, 45, 0, 500), preempted = paused;
    paused.was_paused = paused.was_preempted = preempted.was_preempted = true;
    const std::vector<Row> table = {
        {"a slice too large", facts(43, 42, 42, 0, 500), LateCause::prefill},
        {"the host stood still", facts(60, 30, 30, 0, 500), LateCause::host},
        {"an outlier of the device", facts(52, 51, 42, 0, 500), LateCause::device},
        {"padding alone", facts(41.5, 41, 41, 3, 0), LateCause::padding},
        {"a shape as dear as the rows in it", facts(41.5, 41, 41, 0, 0), LateCause::device},
        {"padding that is less than what is late", facts(44, 43.5, 43.5, 3, 0), LateCause::device},
        {"a promise that no step keeps, however quick the host", hopeless, LateCause::device},
        {"a host that takes longer than the step", slow_host, LateCause::host},
        {"a reader that did not read", paused, LateCause::reader},
        {"blocks taken away", preempted, LateCause::preemption},
    };
    for (const Row& row : table) {
        INFO(row.name);
        CHECK(kLateCauseNames[static_cast<size_t>(late_cause(row.facts))] == std::string(kLateCauseNames[static_cast<size_t>(row.cause)]));
    }
}

}  // namespace takt
