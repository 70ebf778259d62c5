// /debug/steps: how many are asked for, and the text of a step.
#include "server/debug_steps.h"

#include "catch.h"

using namespace takt;
using namespace takt::server;

TEST_CASE("how many steps a query asks for", "[debug_steps]") {
    CHECK(steps_asked("") == kUsualSteps);
    CHECK(steps_asked("last=7") == 7);
    CHECK(steps_asked("a=1&last=65536&b=2") == 65536);
    CHECK(steps_asked("past=7") == kUsualSteps);
    for (const char* wrong : {"last=", "last=0", "last=65537", "last=7x", "last=-1", "a&last=99999999999999999999"}) {
        INFO(wrong);
        CHECK(steps_asked(wrong) == 0);
    }
}

TEST_CASE("the last steps, oldest first, with what made a gap late", "[debug_steps]") {
    std::vector<StepRecord> steps(3);
    for (size_t i = 0; i < 3; ++i) steps[i].step = i + 1;
    steps[2].begin_ns = 2'000'000;
    steps[2].end_ns = 9'500'000;
    steps[2].num_decode_rows = 2;
    steps[2].num_prefill_rows = 126;
    steps[2].num_late = 2;
    steps[2].late_ms = 1.5;
    steps[2].late_cause = "prefill";
    CHECK(steps_json({}, 10) == "{\"steps\":[]}\n");
    CHECK(steps_json(steps, 10).find("{\"steps\":[{\"step\":1,") == 0);
    CHECK(steps_json(steps, 1) ==
          "{\"steps\":[{\"step\":3,\"begin_ms\":2,\"end_ms\":9.5,\"host_ms\":0,\"predicted_ms\":0,\"budget_ms\":0,\"decode_rows\":2,"
          "\"prefill_rows\":126,\"padded_rows\":0,\"running\":0,\"waiting\":0,\"preempted\":0,\"kv_blocks_used\":0,"
          "\"graph\":false,\"late\":2,\"late_ms\":1.5,\"late_cause\":\"prefill\"}]}\n");
}
