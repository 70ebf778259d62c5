// Scheduler: who makes room for a class that weighs more, under which bounds, and that nobody cold is kept out by the cached.
#include <map>
#include <vector>

#include "catch.h"
#include "runtime/scheduler_rig.h"

namespace takt {
namespace {

/// [0] loose and light, [1] tight and heavy.
SchedulerConfig two_weights(int32_t max_running, double itl_ms = 40) {
    SchedulerConfig c = rig_config(itl_ms, max_running);
    c.classes[0].ttft_ns = 600'000 * kMs;
    c.classes[0].weight = 0.25;
    c.classes.push_back(c.classes[0]);
    c.classes[1].name = "gold";
    c.classes[1].ttft_ns = 500 * kMs;
    c.classes[1].weight = 1;
    return c;
}

}  // namespace

TEST_CASE("a class that weighs more gets a slot in time, and who gave way goes on with its text", "[scheduler]") {
    for (const double itl_ms : {40.0, 1000.0}) {
        SchedulerRig rig(two_weights(4, itl_ms));
        for (RequestId id = 1; id <= 4; ++id) rig.submit(id, 700, 2000);
        for (int i = 0; i < 100; ++i) rig.step();
        REQUIRE(rig.scheduler.counts().num_decoding == 4);
        const uint64_t arrival = rig.now;
        rig.submit(10, 600, 5, 1);
        int num_out = 0;
        uint64_t begun = 0;
        for (int i = 0; i < 20'000 && rig.has_work(); ++i) {
            rig.step();
            num_out += static_cast<int>(rig.plan.preempted.size());
            REQUIRE((rig.plan.preempted.empty() || rig.plan.admitted.empty()));
            REQUIRE(rig.scheduler.check_integrity() == "");
            if (begun == 0 && rig.emitted[10] > 0) begun = rig.now;
        }
        INFO("promise " << itl_ms);
        CHECK(num_out == 1);
        CHECK(begun - arrival <= 500 * kMs);
        CHECK(begun - arrival > 100 * kMs);   // until then a slot might have come by itself
        CHECK(rig.emitted[10] == 5);
        for (RequestId id = 1; id <= 4; ++id) CHECK(rig.emitted[id] == rig.most[id]);
    }
}

TEST_CASE("a class that weighs more gets blocks in time, and who gave way goes on with its text", "[scheduler]") {
    for (const int32_t heavy_prompt : {1500, 4000}) {   // what one of the others holds, and what two of them do
        SchedulerRig rig(two_weights(8), 480);
        for (RequestId id = 1; id <= 4; ++id) rig.submit(id, 1500, 400);
        for (int i = 0; i < 100; ++i) rig.step();
        REQUIRE(rig.scheduler.counts().num_decoding == 4);
        const uint64_t arrival = rig.now;
        rig.submit(10, heavy_prompt, 5, 1);
        std::map<RequestId, int> preemptions;
        uint64_t begun = 0;
        for (int i = 0; i < 20'000 && rig.has_work(); ++i) {
            rig.step();
            for (const RequestId id : rig.plan.preempted) ++preemptions[id];
            REQUIRE((rig.plan.preempted.empty() || rig.plan.admitted.empty()));
            REQUIRE(rig.scheduler.check_integrity() == "");
            if (begun == 0 && rig.emitted[10] > 0) begun = rig.now;
        }
        INFO("prompt " << heavy_prompt);
        CHECK(preemptions.size() == (heavy_prompt > 1500 ? 2 : 1));
        for (const auto& [id, count] : preemptions) CHECK((id <= 4 && count == 1));
        CHECK(begun - arrival <= 500 * kMs);
        CHECK(rig.emitted[10] == 5);
        for (RequestId id = 1; id <= 4; ++id) CHECK(rig.emitted[id] == rig.most[id]);
    }
}

TEST_CASE("nobody gives its blocks where all of the lighter would not be enough, or where they are free", "[scheduler]") {
    for (const bool is_free : {false, true}) {
        SchedulerRig rig(two_weights(8), is_free ? 900 : 520);
        for (RequestId id = 1; id <= 4; ++id) rig.submit(id, is_free ? 200 : 1500, 400, id == 1 ? 0 : 1);
        for (int i = 0; i < 100; ++i) rig.step();
        rig.submit(10, is_free ? 600 : 5000, 5, 1);
        for (int i = 0; i < 5000 && rig.has_work(); ++i) {
            rig.step();
            INFO("free " << is_free << ", step " << i);
            REQUIRE((i >= 200 || rig.plan.preempted.empty()));   // later one would be enough beside what has become free
        }
        CHECK(rig.emitted[10] == 5);
    }
}

TEST_CASE("nobody gives way to an equal, nor under the plain baseline", "[scheduler]") {
    for (const bool is_baseline : {false, true}) {
        SchedulerConfig c = two_weights(4);
        if (!is_baseline) c.classes[1].weight = c.classes[0].weight;
        c.fixed_chunk = c.first_come = is_baseline;
        SchedulerRig rig(c);
        for (RequestId id = 1; id <= 4; ++id) rig.submit(id, 100, 500);
        for (int i = 0; i < 20; ++i) rig.step();
        rig.submit(10, 100, 5, 1);
        for (int i = 0; i < 5000 && rig.has_work(); ++i) {
            rig.step();
            REQUIRE(rig.plan.preempted.empty());
        }
        CHECK(rig.emitted[10] == 5);
    }
}

TEST_CASE("who gives way for a heavier class is let in again before the next of them", "[scheduler]") {
    for (const double itl_ms : {40.0, 1000.0}) {
        SchedulerRig rig(two_weights(4, itl_ms));
        for (RequestId id = 1; id <= 4; ++id) rig.submit(id, 200, 600);
        for (int i = 0; i < 20; ++i) rig.step();
        std::map<RequestId, int> preemptions;
        RequestId next = 100;
        const auto is_done = [&] { return rig.emitted[1] + rig.emitted[2] + rig.emitted[3] + rig.emitted[4] == 4 * 600; };
        for (int i = 0; i < 10'000 && !is_done(); ++i) {
            while (rig.scheduler.counts().num_waiting < 6) rig.submit(next++, 300, 60, 1);   // more than there are slots for, for ever
            rig.step();
            for (const RequestId id : rig.plan.preempted) ++preemptions[id];
        }
        INFO("promise " << itl_ms);
        CHECK(rig.scheduler.check_integrity() == "");
        CHECK(is_done());
        CHECK(preemptions.size() == 4);
        for (const auto& [id, count] : preemptions) {
            CHECK(id <= 4);
            CHECK(count == 1);
        }
    }
}

TEST_CASE("prompts whose beginning is cached do not keep a cold one out", "[scheduler]") {
    SchedulerConfig c = rig_config(40, 8);
    c.classes[0].ttft_ns = 1000 * kMs;
    SchedulerRig rig(c);
    const std::vector<int32_t> shared(4000, 7), cold(4000, 8);
    const auto submit = [&](RequestId id, const std::vector<int32_t>& tokens) {
        SchedulerRequest r;
        r.id = id;
        r.prompt_tokens = static_cast<int32_t>(tokens.size());
        r.max_tokens = 4;
        r.tokens = tokens;
        rig.submit(r);
    };
    submit(1, shared);
    while (rig.has_work()) rig.step();
    RequestId next = 100;
    int num_served = 0;
    const auto feed = [&] {
        while (rig.scheduler.counts().num_waiting < 12) submit(next++, shared);
    };
    for (int i = 0; i < 50; ++i) feed(), rig.step();
    submit(2, cold);
    const uint64_t arrival = rig.now;
    while (rig.emitted[2] == 0 && rig.now - arrival < 20'000 * kMs) {
        feed();
        num_served += rig.step().num_samples;
    }
    CHECK(num_served > 20);                          // the others went on all the while
    CHECK(rig.now - arrival <= 1000 * kMs);
}

TEST_CASE("where slots lack the wait for one is by how answers run, not by how slow they may", "[scheduler]") {
    SchedulerConfig c = rig_config(400, 4);
    SchedulerClass refuse = c.classes[0];
    refuse.name = "refuse";
    refuse.ttft_ns = 500 * kMs;
    refuse.on_miss = SchedulerClass::OnMiss::refuse;
    c.classes.push_back(refuse);
    SchedulerRig rig(c);
    RequestId id = 1;
    for (; id <= 8; ++id) {   // answers of 50 tokens, 6 ms each: a slot is given up every 80 ms
        rig.submit(id, 100, 50);
        while (rig.has_work() && id % 4 == 0) rig.step();
    }
    for (; id <= 12; ++id) rig.submit(id, 100, 50);
    for (int i = 0; i < 10; ++i) rig.step();
    REQUIRE(rig.submit(id, 100, 50, 1).verdict == Admission::Verdict::accepted);
    const uint64_t from = rig.now;
    while (rig.emitted[id] == 0) rig.step();
    CHECK(rig.now - from < 500 * kMs);
}

}  // namespace takt
