// Scheduler: who gets a slot and blocks, who loses them, who is turned away, and what stays in the prefix cache.
#include <numeric>

#include "catch.h"
#include "runtime/scheduler_rig.h"

namespace takt {
namespace {

SchedulerConfig with_classes(std::vector<SchedulerClass> more) {
    SchedulerConfig c = rig_config();
    for (SchedulerClass& sla : more) c.classes.push_back(std::move(sla));
    return c;
}

std::vector<int32_t> numbers(int32_t count, int32_t from) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    std::iota(out.begin(), out.end(), from);
    return out;
}

}  // namespace

TEST_CASE("a prompt comes in whole: its blocks and a watermark must be free", "[scheduler]") {
    SchedulerRig rig(rig_config(), 101);   // 1,600 tokens
    rig.submit(1, 1000, 50);
    rig.step();
    CHECK(rig.rows_of(1) > 0);
    rig.submit(2, 700, 50);
    rig.look();
    CHECK(rig.rows_of(2) == 0);
    CHECK(rig.scheduler.counts().num_waiting == 1);
    CHECK(rig.scheduler.block_table(1).size() == 63);   // 1,001 positions
    rig.complete();
    while (rig.emitted[1] < 50) rig.step();
    rig.step();
    CHECK(rig.rows_of(2) > 0);
}

TEST_CASE("a prompt whose promise holds is not passed by a shorter one that would fit", "[scheduler]") {
    SchedulerRig rig(rig_config(), 101);
    rig.submit(1, 1000, 400);
    rig.step();
    rig.submit(2, 700, 5);
    rig.now += 500 * kMs;
    rig.submit(3, 100, 5);
    for (int i = 0; i < 50; ++i) rig.step();
    CHECK(rig.emitted[3] == 0);
    while (rig.emitted[2] == 0) rig.step();
    CHECK(rig.emitted[1] == 400);
}

TEST_CASE("the reserve for running answers is learned: up with a squeeze, slowly down without", "[scheduler]") {
    SchedulerRig rig(rig_config(), 121);
    const double first = rig.scheduler.reserve_factor();
    for (RequestId id = 1; id <= 6; ++id) rig.submit(id, 250, 400);
    int preemptions = 0;
    double highest = 0;
    for (int i = 0; i < 6000 && rig.has_work(); ++i) {
        rig.step();
        preemptions += static_cast<int>(rig.plan.preempted.size());
        highest = std::max(highest, rig.scheduler.reserve_factor());
    }
    REQUIRE(preemptions > 0);
    CHECK(highest > first);
    for (RequestId id = 100; id < 3000; ++id) {
        rig.submit(id, 20, 1);
        rig.step();
    }
    CHECK(rig.scheduler.reserve_factor() < first);
    CHECK(rig.scheduler.reserve_factor() >= 0.1);
}

TEST_CASE("learned long answers keep blocks free that short ones would not", "[scheduler]") {
    const auto running_after = [](int32_t answer) {
        SchedulerRig rig(rig_config(), 400);
        for (RequestId id = 1; id <= 150; ++id) {   // what answers are like here
            rig.submit(id, 16, answer);
            for (int i = 0; i < 2000 && rig.emitted[id] < answer; ++i) rig.step();
        }
        for (RequestId id = 1000; id < 1016; ++id) rig.submit(id, 500, 2000);
        rig.look();
        return rig.scheduler.counts().num_running;
    };
    const int32_t beside_short = running_after(4), beside_long = running_after(700);
    CHECK(beside_short > beside_long);
    CHECK(beside_long >= 1);
}

TEST_CASE("no request is preempted more than N_max times, and all are served", "[scheduler]") {
    SchedulerRig rig(rig_config(), 81);   // 1,280 tokens; alone each needs up to 1,000
    std::map<RequestId, int> preemptions;
    for (RequestId id = 1; id <= 10; ++id) rig.submit(id, 60 + static_cast<int32_t>(id), 900);
    int total = 0;
    for (int i = 0; i < 60'000 && rig.has_work(); ++i) {
        rig.step();
        for (const RequestId id : rig.plan.preempted) ++preemptions[id], ++total;
        REQUIRE(rig.scheduler.check_integrity() == "");
    }
    CHECK(total > 5);
    for (const auto& [id, count] : preemptions) CHECK(count <= rig.config.max_preemptions);
    for (RequestId id = 1; id <= 10; ++id) CHECK(rig.emitted[id] == 900);
}

TEST_CASE("a pinned request comes back with all the blocks it can ever need", "[scheduler]") {
    SchedulerConfig c = rig_config();
    c.max_preemptions = 1;
    SchedulerRig rig(c, 81);
    rig.submit(1, 100, 700);
    rig.submit(2, 100, 700);
    RequestId victim = 0;
    for (int i = 0; i < 5000 && victim == 0; ++i) {
        rig.step();
        if (!rig.plan.preempted.empty()) victim = rig.plan.preempted.front();
    }
    REQUIRE(victim == 2);   // the oldest is never another's victim
    for (int i = 0; i < 5000 && rig.scheduler.block_table(victim).empty(); ++i) rig.step();
    CHECK(rig.scheduler.block_table(victim).size() == 50);
    while (rig.has_work()) {
        rig.step();
        CHECK(rig.plan.preempted.empty());
    }
}

TEST_CASE("KV waits in the host's memory where its way there and back is shorter than to compute it again", "[scheduler]") {
    struct Swap {
        int64_t tokens;
        double ns_per_token;
        bool happens;
    };
    for (const Swap& swap : {Swap{0, 0, false}, Swap{100'000, 2600, true}, Swap{100'000, 1e6, false}, Swap{64, 2600, false}}) {
        SchedulerConfig c = rig_config();
        c.swap_tokens = swap.tokens;
        c.swap_ns_per_token = swap.ns_per_token;
        SchedulerRig rig(c, 81);
        for (RequestId id = 1; id <= 4; ++id) rig.submit(id, 100, 700);
        int num_preempted = 0, num_out = 0, num_in = 0;
        std::map<RequestId, int32_t> waits;
        for (int i = 0; i < 20'000 && rig.has_work(); ++i) {
            rig.step();
            REQUIRE(rig.scheduler.check_integrity() == "");
            num_preempted += static_cast<int>(rig.plan.preempted.size());
            for (const KvCopy& copy : rig.plan.copies) {
                (copy.is_out ? num_out : num_in) += 1;
                CHECK(static_cast<int32_t>(copy.blocks.size()) * 16 >= copy.first_token + copy.num_tokens);
                if (copy.is_out) {
                    waits[copy.request] = copy.num_tokens;
                    continue;
                }
                CHECK(copy.first_token + copy.num_tokens == waits[copy.request]);
                CHECK(rig.plan.features.one_off_ns > 0);   // the step's time is told with the copy in it
                for (const PlanSegment& s : rig.plan.segments) {
                    if (s.request == copy.request) CHECK(s.token_begin == waits[copy.request]);   // and only what is new is computed
                }
            }
        }
        INFO(swap.tokens << " tokens at " << swap.ns_per_token << " ns");
        CHECK(num_preempted > 0);
        CHECK((num_out > 0) == swap.happens);
        CHECK(num_in == num_out);
        for (RequestId id = 1; id <= 4; ++id) CHECK(rig.emitted[id] == 700);
    }
}

TEST_CASE("a cancelled request's place in the host's memory is free again", "[scheduler]") {
    SchedulerConfig c = rig_config();
    c.swap_tokens = 1000;
    c.swap_ns_per_token = 2600;
    SchedulerRig rig(c, 81);
    for (RequestId id = 1; id <= 4; ++id) rig.submit(id, 100, 700);
    RequestId out = 0;
    for (int i = 0; i < 5000 && out == 0; ++i) {
        rig.step();
        if (!rig.plan.copies.empty()) out = rig.plan.copies.front().request;
    }
    REQUIRE(out != 0);
    rig.scheduler.finish(out);
    CHECK(rig.scheduler.check_integrity() == "");
}

TEST_CASE("victims: paused readers, then the lowest class, then prompts, then who has least to compute again", "[scheduler]") {
    SchedulerClass low;
    low.name = "low";
    low.weight = 0.5;
    const auto first_victim = [&](const auto& arrange) {
        SchedulerRig rig(with_classes({low}), 200);
        rig.submit(1, 300, 2000);   // the oldest: nobody's victim
        rig.step();
        arrange(rig);
        for (int i = 0; i < 5000; ++i) {
            rig.step();
            if (!rig.plan.preempted.empty()) return rig.plan.preempted.front();
        }
        return RequestId{0};
    };
    CHECK(first_victim([](SchedulerRig& rig) {
              rig.submit(2, 200, 2000, 1);
              rig.submit(3, 900, 2000, 0);
              for (int i = 0; i < 5; ++i) rig.step();
              rig.scheduler.set_paused(3, true);
          }) == 3);
    CHECK(first_victim([](SchedulerRig& rig) {
              rig.submit(2, 900, 2000, 1);
              rig.submit(3, 200, 2000, 0);
          }) == 2);
    CHECK(first_victim([](SchedulerRig& rig) {
              rig.submit(2, 900, 2000, 0);
              rig.submit(3, 400, 2000, 0);
          }) == 3);
}

TEST_CASE("no newcomer in a step that threw somebody out, and none before there is room for a whole one", "[scheduler]") {
    SchedulerRig rig(rig_config(), 121);
    for (RequestId id = 1; id <= 8; ++id) rig.submit(id, 200, 500);
    int preempting = 0;
    for (int i = 0; i < 20'000 && rig.has_work(); ++i) {
        rig.look();
        if (!rig.plan.preempted.empty()) {
            ++preempting;
            CHECK(rig.plan.admitted.empty());
        }
        if (!rig.plan.empty()) rig.complete();
    }
    CHECK(preempting > 0);
}

TEST_CASE("readers that do not read make room for who waits, as often as it takes", "[scheduler]") {
    SchedulerConfig c = rig_config(40, 2);
    SchedulerRig rig(c, 101);
    rig.submit(1, 500, 400);
    rig.submit(2, 600, 400);
    for (int i = 0; i < 5; ++i) rig.step();
    rig.scheduler.set_paused(1, true);
    rig.scheduler.set_paused(2, true);
    CHECK(rig.look().empty());
    for (RequestId id = 3; id < 8; ++id) {   // neither slot nor blocks are free
        rig.submit(id, 900, 20);
        for (int i = 0; i < 100 && rig.emitted[id] < 20; ++i) rig.step();
        CHECK(rig.emitted[id] == 20);
    }
    rig.scheduler.set_paused(1, false);
    rig.scheduler.set_paused(2, false);
    for (int i = 0; i < 2000 && rig.has_work(); ++i) rig.step();
    CHECK(rig.emitted[1] == 400);
    CHECK(rig.emitted[2] == 400);
}

TEST_CASE("one stream more must leave room for a slice within the tightest promise", "[scheduler]") {
    SchedulerConfig c = rig_config(12, 64);
    SchedulerRig rig(c, 60'000);
    for (RequestId id = 1; id <= 20; ++id) rig.submit(id, 12'000, 3000);   // 0.6 ms of context a step each
    for (int i = 0; i < 3000; ++i) {
        rig.step();
        REQUIRE(rig.plan.features.decode_rows <= 10);
    }
    CHECK(rig.scheduler.counts().num_decoding >= 4);
    CHECK(rig.scheduler.counts().num_waiting > 5);
    CHECK_FALSE(rig.scheduler.infeasible());
}

TEST_CASE("who waited ten times its promise for room beside others gets it: nobody passes it any more", "[scheduler]") {
    SchedulerConfig c = rig_config(12, 64);
    c.classes[0].ttft_ns = 200 * kMs;
    SchedulerRig rig(c, 60'000);
    RequestId next = 100;
    const auto feed = [&] {
        while (rig.scheduler.counts().num_waiting < 3) rig.submit(next++, 6000, 100);
    };
    feed();
    for (int i = 0; i < 40; ++i) rig.step();
    rig.submit(1, 50'000, 10);   // 2.4 ms of context
    int i = 0;
    for (; i < 20'000 && rig.emitted[1] == 0; ++i) {
        feed();
        rig.step();
    }
    CHECK(rig.emitted[1] > 0);
}

TEST_CASE("on_miss: refuse names a time after which it would do, demote serves later", "[scheduler]") {
    SchedulerClass refuse, demote;
    refuse.ttft_ns = demote.ttft_ns = 500 * kMs;
    refuse.on_miss = SchedulerClass::OnMiss::refuse;
    demote.on_miss = SchedulerClass::OnMiss::demote;
    SchedulerRig rig(with_classes({refuse, demote}));
    CHECK(rig.submit(1, 2000, 10, 1).verdict == Admission::Verdict::accepted);
    const Admission never = rig.submit(2, 40'000, 10, 1);   // not even alone: no time is told
    CHECK(never.verdict == Admission::Verdict::deadline_unreachable);
    CHECK(never.retry_after_ns == 0);
    for (RequestId id = 3; id < 23; ++id) {
        SchedulerRequest r;
        r.id = id;
        r.prompt_tokens = 3000;
        r.max_tokens = 10;
        r.ttft_ns = 490 * kMs;   // before the class's own; who cannot be served by then goes behind
        rig.submit(r);
    }
    const Admission refused = rig.submit(50, 12'000, 10, 1);
    REQUIRE(refused.verdict == Admission::Verdict::deadline_unreachable);
    CHECK(refused.retry_after_ns > 50 * kMs);
    CHECK(refused.retry_after_ns < 5000 * kMs);
    CHECK(rig.submit(51, 3000, 10, 2).verdict == Admission::Verdict::accepted);
    const uint64_t until = rig.now + 3 * refused.retry_after_ns;   // others came and began to decode meanwhile
    Admission again = refused;
    for (RequestId id = 52; rig.now < until && again.verdict != Admission::Verdict::accepted; ++id) {
        rig.step();
        again = rig.submit(id, 12'000, 10, 1);
    }
    CHECK(again.verdict == Admission::Verdict::accepted);
    while (rig.has_work()) rig.step();
    CHECK(rig.emitted[51] == 10);
}

TEST_CASE("a full queue says when to come again; a request that could start at once is never told so", "[scheduler]") {
    SchedulerConfig c = rig_config(40, 2);
    c.max_waiting = 2;
    SchedulerRig rig(c);
    for (RequestId id = 1; id <= 4; ++id) {
        CHECK(rig.submit(id, 100, 50).verdict == Admission::Verdict::accepted);
        if (id <= 2) rig.step();
    }
    const Admission full = rig.submit(5, 100, 50);
    CHECK(full.verdict == Admission::Verdict::queue_full);
    CHECK(full.retry_after_ns > 0);
    CHECK(rig.submit(6, 30'000, 400'000).verdict == Admission::Verdict::too_long_for_kv);
}

TEST_CASE("what a full queue says of the time to come again is near the truth once answers have ended", "[scheduler]") {
    SchedulerConfig c = rig_config(400, 2);
    c.max_waiting = 2;
    SchedulerRig rig(c);
    RequestId id = 1;
    for (; id <= 8; ++id) {
        CHECK(rig.submit(id, 100, 50).verdict == Admission::Verdict::accepted);
        while (rig.has_work() && id % 2 == 0) rig.step();
    }
    for (; id <= 12; ++id) {
        CHECK(rig.submit(id, 100, 50).verdict == Admission::Verdict::accepted);
        if (id <= 10) rig.step();
    }
    const Admission full = rig.submit(id, 100, 50);
    REQUIRE(full.verdict == Admission::Verdict::queue_full);
    const uint64_t from = rig.now;
    do {
        rig.step();
    } while (rig.submit(++id, 100, 50).verdict == Admission::Verdict::queue_full);
    const double truth = static_cast<double>(rig.now - from);
    CHECK(static_cast<double>(full.retry_after_ns) > 0.3 * truth);
    CHECK(static_cast<double>(full.retry_after_ns) < 3 * truth);
}

TEST_CASE("an answer's blocks serve the next turn of the conversation", "[scheduler]") {
    SchedulerRig rig(rig_config());
    std::vector<int32_t> tokens = numbers(100, 7);
    tokens.reserve(400);
    SchedulerRequest first;
    first.id = 1;
    first.prompt_tokens = 100;
    first.max_tokens = 200;
    first.tokens = tokens;
    first.cache_domain = 1;
    rig.submit(first);
    for (int i = 0; i < 150; ++i) {
        rig.look();
        rig.now += 6 * kMs;
        rig.outcome.step = rig.plan.step;
        rig.outcome.device_ns = 6 * kMs;
        tokens.push_back(5000 + i);
        rig.scheduler.emitted(1, rig.now, tokens);
        if (i == 149) rig.scheduler.finish(1);
        rig.scheduler.apply(rig.outcome, rig.now);
    }
    SchedulerRequest second = first;
    second.id = 2;
    std::vector<int32_t> longer = tokens;   // 250 known tokens, of which 249 had their rows
    for (int32_t t : numbers(60, 90'000)) longer.push_back(t);
    second.tokens = longer;
    second.prompt_tokens = static_cast<int32_t>(longer.size());
    CHECK(rig.submit(second).cached_tokens == 240);
    rig.look();
    CHECK(rig.scheduler.cached_tokens(2) == 240);
    SchedulerRequest other = second;
    other.id = 3;
    other.cache_domain = 2;
    CHECK(rig.submit(other).cached_tokens == 0);   // another's domain
}

TEST_CASE("what a cancelled prompt has computed stays for others", "[scheduler]") {
    SchedulerRig rig(rig_config(20));
    rig.start_streams(2, 100);
    const std::vector<int32_t> tokens = numbers(20'000, 1);
    SchedulerRequest r;
    r.id = 1;
    r.prompt_tokens = 20'000;
    r.max_tokens = 5;
    r.tokens = tokens;
    r.cache_domain = 1;
    rig.submit(r);
    for (int i = 0; i < 5; ++i) rig.step();
    rig.scheduler.finish(1);
    r.id = 2;
    const int32_t cached = rig.submit(r).cached_tokens;
    CHECK(cached > 1000);
    CHECK(cached < 10'000);
}

TEST_CASE("cancelled while it is computed again, a request leaves no block to others that it has not written", "[scheduler]") {
    SchedulerRig rig(rig_config(8), 1000);
    rig.start_streams(1, 16);
    std::vector<int32_t> tokens = numbers(6400, 1);
    tokens.reserve(7000);   // the scheduler looks into it
    const auto complete = [&] {
        rig.now += 6 * kMs;
        rig.outcome.step = rig.plan.step;
        rig.outcome.device_ns = 6 * kMs;
        for (const PlanSegment& s : rig.plan.segments) {
            if (!s.samples) continue;
            ++rig.emitted[s.request];
            if (s.request == 1) tokens.push_back(5000 + rig.emitted[1]);
            rig.scheduler.emitted(s.request, rig.now, s.request == 1 ? std::span<const int32_t>(tokens) : std::span<const int32_t>());
        }
        rig.scheduler.apply(rig.outcome, rig.now);
    };
    SchedulerRequest victim;
    victim.id = 1;
    victim.prompt_tokens = 6400;
    victim.max_tokens = 500;
    victim.tokens = tokens;
    victim.cache_domain = 1;
    rig.submit(victim);
    for (int i = 0; i < 400 && rig.emitted[1] < 20; ++i) rig.look(), complete();
    REQUIRE(rig.emitted[1] == 20);
    rig.scheduler.set_paused(1, true);   // its reader sleeps, so that it makes room
    rig.submit(2, 14'000, 50);
    bool preempted = false;
    for (int i = 0; i < 600 && rig.emitted[2] < 2; ++i) {
        rig.look();
        preempted = preempted || !rig.plan.preempted.empty();
        complete();
    }
    REQUIRE(preempted);
    REQUIRE(rig.emitted[2] == 2);
    rig.scheduler.finish(2);
    rig.scheduler.set_paused(1, false);
    for (int i = 0; i < 600 && rig.rows_of(1) == 0; ++i) {
        rig.look();
        if (rig.rows_of(1) == 0) complete();
    }
    const int32_t written = rig.scheduler.cached_tokens(1) + rig.rows_of(1);
    REQUIRE(rig.rows_of(1) > 0);
    REQUIRE(written < 6000);
    rig.scheduler.finish(1);
    complete();
    SchedulerRequest again = victim;
    again.id = 3;
    again.tokens = tokens;
    again.prompt_tokens = static_cast<int32_t>(tokens.size());
    CHECK(rig.submit(again).cached_tokens <= written);
}

TEST_CASE("cached tokens cost the tenant nothing", "[scheduler]") {
    SchedulerConfig c = rig_config();
    c.tenants = {{"", 1, 0, 0}, {"a", 1, 0, 0}, {"b", 1, 0, 0}};
    SchedulerRig rig(c);
    const std::vector<int32_t> tokens = numbers(8000, 1);
    SchedulerRequest r;
    r.prompt_tokens = 8000;
    r.max_tokens = 1;
    r.tokens = tokens;
    r.cache_domain = 9;
    r.tenant_index = 1;
    r.id = 1;
    rig.submit(r);
    rig.submit(3, 100, 1000, 0, 2);
    while (rig.emitted[1] == 0) rig.step();
    const auto gap = [&](RequestId probe) {   // with work of both: counters are compared of those who wait
        rig.submit(probe, 100, 1, 0, 1);
        rig.submit(probe + 1, 100, 1, 0, 2);
        const double found = rig.scheduler.share_gap_ms();
        while (rig.emitted[probe] == 0 || rig.emitted[probe + 1] == 0) rig.step();
        return found;
    };
    const double before = gap(10);
    r.id = 2;
    rig.submit(r);
    while (rig.emitted[2] == 0) rig.step();
    CHECK(before > 50);
    CHECK(std::abs(gap(20) - before) < before / 2);
}

}  // namespace takt
