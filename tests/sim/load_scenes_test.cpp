// Scenes of scheduling.md section 6 that are loads: a burst over capacity, conversations with and without the prefix cache, one
// tenant's documents beside many others; and that refusals are honest. The server's own scheduler on a virtual clock.
#include <algorithm>
#include <map>

#include "catch.h"
#include "runtime/fairness.h"
#include "runtime/sim/scene.h"

using namespace takt;
using namespace takt::sim;

namespace {

bool is_good(const SimOutcome& out, const SimRequest& r, double ttft_promise_ms) {
    if (out.end != SimEnd::finished || static_cast<double>(out.first_ns - r.arrival_ns) * 1e-6 > ttft_promise_ms) return false;
    return out.num_late * 100 <= out.num_tokens;
}

/// Lengths as in a code assistant's trace: prompts of 2,000 tokens, answers of 28, both in the mean. For 40 s, `load` times what the
/// device can do; 67 more arrive in the second from 20 s on.
std::vector<SimRequest> code_burst(double load) {
    Random random(11);
    std::vector<double> times;
    for (double at = 0; at < 40'000; at += random.exponential(50 / load)) times.push_back(at);
    for (int i = 0; i < 67; ++i) times.push_back(20'000 + 1000 * random.uniform());
    std::sort(times.begin(), times.end());
    std::vector<SimRequest> w;
    for (const double at : times) {
        const auto prompt = static_cast<int32_t>(100 + random.exponential(1900));
        w.push_back(request_at(at, std::min(prompt, 7400), 1 + static_cast<int32_t>(random.exponential(27))));
    }
    return w;
}

/// Conversations whose every turn repeats the ones before: 45 % of the prompts have 8,000 tokens or more.
std::vector<SimRequest> conversations(int count) {
    Random random(3);
    std::vector<SimRequest> w;
    for (int talk = 0; talk < count; ++talk) {
        int32_t length = 300 + static_cast<int32_t>(random.exponential(6500));
        double at = 1500.0 * talk;
        for (int turn = 0; turn < 4; ++turn) {
            SimRequest r = request_at(at, std::min(length, 60'000), 40 + static_cast<int32_t>(random.exponential(80)));
            for (int32_t i = 0; i < r.prompt_tokens / 512; ++i) {
                r.prefix_blocks.push_back(static_cast<uint64_t>(talk) * 1000 + static_cast<uint64_t>(i) + 1);
            }
            w.push_back(std::move(r));
            length += random.between(300, 1500);
            at += 8000 + random.exponential(4000);
        }
    }
    std::sort(w.begin(), w.end(), [](const SimRequest& a, const SimRequest& b) { return a.arrival_ns < b.arrival_ns; });
    return w;
}

}  // namespace

TEST_CASE("S5: a burst over capacity: goodput falls smoothly, and after it everything is as before", "[scenes]") {
    std::map<double, double> good_per_s, share;
    for (const double load : {0.7, 1.0, 1.5, 2.0}) {
        const std::vector<SimRequest> w = code_burst(load);
        SimOptions o = scene(40, 64, 30'000);
        o.check = false;
        o.scheduler.classes[0].on_miss = SchedulerClass::OnMiss::refuse;
        const SimReport report = run(o, w);
        REQUIRE(report.wrong.empty());
        int good = 0, before = 0, good_before = 0, after = 0, good_after = 0;
        for (size_t i = 0; i < w.size(); ++i) {
            const bool is = is_good(report.requests[i], w[i], 2000);
            const double at = static_cast<double>(w[i].arrival_ns) * 1e-9;
            good += is ? 1 : 0;
            before += at < 20 ? 1 : 0;
            good_before += is && at < 20 ? 1 : 0;
            after += at > 27 ? 1 : 0;
            good_after += is && at > 27 ? 1 : 0;
        }
        good_per_s[load] = good / 40.0;
        share[load] = good / static_cast<double>(w.size());
        INFO("load " << load << ": share " << share[load] << ", before " << good_before << " of " << before << ", after " << good_after
                     << " of " << after);
        // Over capacity the backlog stays; below it the burst leaves nothing behind.
        if (load < 1) CHECK(good_after / static_cast<double>(after) >= good_before / static_cast<double>(before) - 0.02);
        CHECK(good_after / static_cast<double>(after) >= 0.8 * good_before / static_cast<double>(before));
    }
    CHECK(share[0.7] > 0.9);
    CHECK(share[1.0] > 0.75);
    // No collapse: what is served well in a second does not fall when more is asked for.
    CHECK(good_per_s[1.5] >= 0.95 * good_per_s[1.0]);
    CHECK(good_per_s[2.0] >= 0.95 * good_per_s[1.5]);
}

TEST_CASE("S6: conversations: the cache never costs goodput, steps behind a cached prefix are predicted as well as others", "[scenes]") {
    const std::vector<SimRequest> w = conversations(40);
    const auto is_long = [](const SimRequest& r) { return r.prompt_tokens >= 8000; };
    REQUIRE(std::count_if(w.begin(), w.end(), is_long) * 100 >= 40 * static_cast<int64_t>(w.size()));
    for (const double sla : {20.0, 40.0, 80.0}) {
        std::map<bool, double> good;
        for (const bool cache : {false, true}) {
            SimOptions o = scene(sla, 64, 25'000);
            o.check = false;
            o.kv.prefix_cache = cache;
            bool is_behind_prefix = false;
            std::map<RequestId, bool> begun;
            double error = 0;
            int count = 0;
            o.on_plan = [&](const StepPlan& plan, uint64_t) {
                is_behind_prefix = false;
                for (const PlanSegment& s : plan.segments) {
                    if (s.is_decode || std::exchange(begun[s.request], true)) continue;
                    is_behind_prefix = is_behind_prefix || s.token_begin >= 4096;
                }
            };
            o.on_step = [&](const SimStep& s) {
                if (!is_behind_prefix) return;
                const auto truth = static_cast<double>(s.end_ns - s.begin_ns);
                error += std::abs(truth - static_cast<double>(s.predicted_ns)) / truth;
                ++count;
            };
            const SimReport report = run(o, w);
            REQUIRE(report.wrong.empty());
            for (size_t i = 0; i < w.size(); ++i) good[cache] += is_good(report.requests[i], w[i], 2000) ? 1 : 0;
            INFO("SLA " << sla << ", cache " << cache << ": " << good[cache] << " of " << w.size() << " good, " << report.hit_tokens
                        << " cached tokens");
            CHECK((report.hit_tokens > 0) == cache);
            if (cache) {
                REQUIRE(count > 20);
                CHECK(error / count < 0.03);
            }
        }
        CHECK(good[true] >= good[false]);
        CHECK(good[true] >= 0.9 * static_cast<double>(w.size()));
    }
}

TEST_CASE("S8: one tenant's documents beside 26 others: their first tokens come nearly as soon as without it", "[scenes]") {
    std::map<bool, double> mean;   // over all seeds: one seed's load is luck by a few hundredths
    for (const uint64_t seed : {5u, 6u, 7u, 8u}) {
        double gap = 0;
        for (const bool heavy : {false, true}) {
            Random random(seed);
            std::vector<SimRequest> w;
            for (double at = random.exponential(143); at < 40'000; at += random.exponential(143)) {   // nearly half of the device
                w.push_back(drawn_at(at, random, {200, 4000}, {5, 60}));
                w.back().tenant_index = random.between(0, 25);
            }
            const size_t count = w.size();
            for (double at = 0; heavy && at < 40'000; at += 475) {   // 10 / 27 of the device: ten times a fair share
                w.push_back(request_at(at, 8192, 20));
                w.back().tenant_index = 26;
            }
            SimOptions o = scene(40, 128, 30'000);
            o.check = seed == 6;   // every plan: no rows for who had more while one who had less waits
            o.seed = seed;
            o.scheduler.tenants.assign(27, {"t", 1.0, 0, 0});
            const SimReport report = run(o, w);
            INFO(report.wrong);
            REQUIRE(report.wrong.empty());
            for (size_t i = 0; i < count; ++i) mean[heavy] += ttft_ms(report, w, i) / static_cast<double>(count);
            gap = report.greatest_share_gap_ms;
        }
        INFO("seed " << seed);
        // What is equal, the credit of who comes back, and two steps in flight with the one that is charged.
        CHECK(gap <= kEqualSharesMs + kReturnCreditMs + 3 * 100);
    }
    INFO(mean[false] / 4 << " ms alone, " << mean[true] / 4 << " ms beside");
    CHECK(mean[true] <= 1.2 * mean[false]);
}

TEST_CASE("S8 on a device that is nearly idle: a step under way and the one that takes it, no more", "[scenes]") {
    std::map<bool, double> mean;
    for (const bool heavy : {false, true}) {
        Random random(5);
        std::vector<SimRequest> w;
        SimOptions o = scene(40, 64, 14'000);
        o.check = false;
        o.scheduler.tenants.assign(9, {"t", 1.0, 0, 0});
        for (int i = 0; i < 200; ++i) {
            const double ms = 100.0 * i + 50 * random.uniform();
            w.push_back(drawn_at(ms, random, {20, 400}, {20, 200}));
            w.back().tenant_index = random.between(0, 7);
        }
        for (int i = 0; heavy && i < 120; ++i) {   // 1.3 of the whole device by itself
            w.push_back(request_at(160.0 * i, 8192, 20));
            w.back().tenant_index = 8;
        }
        const SimReport report = run(o, w);
        REQUIRE(report.wrong.empty());
        for (size_t i = 0; i < 200; ++i) mean[heavy] += ttft_ms(report, w, i) / 200;
    }
    INFO(mean[false] << " ms alone, " << mean[true] << " ms beside");
    CHECK(mean[true] <= mean[false] + 40);
}

TEST_CASE("refusals are honest: nearly all of the refused would have missed", "[scenes]") {
    for (const bool slots_lack : {false, true}) {   // else the device's time
        const double promise_ms = slots_lack ? 300 : 600;
        int missed = 0, tried = 0;
        for (uint64_t seed = 9; seed < 25; ++seed) {
            Random random(seed);
            std::vector<SimRequest> w;
            double at = 0;
            for (int i = 0; i < 500; ++i) {
                at += random.exponential(slots_lack ? 160 : 52);
                w.push_back(slots_lack ? drawn_at(at, random, {20, 300}, {40, 200}) : drawn_at(at, random, {200, 6000}, {5, 60}));
            }
            SimOptions o = scene(40, slots_lack ? 4 : 32, 14'000);
            o.check = false;
            o.scheduler.classes[0].ttft_ns = static_cast<uint64_t>(promise_ms * 1e6);
            o.scheduler.classes.push_back(o.scheduler.classes[0]);   // of one who is let in, whatever the estimate says
            o.scheduler.classes[0].on_miss = SchedulerClass::OnMiss::refuse;
            const SimReport with = run(o, w);
            for (size_t i = 0; i < w.size(); ++i) {   // one at a time, admitted in an otherwise identical run
                if (with.requests[i].end != SimEnd::refused) continue;
                std::vector<SimRequest> v = w;
                v[i].class_index = 1;
                const SimReport report = run(o, v);
                ++tried;
                missed += ttft_ms(report, v, i) > promise_ms ? 1 : 0;
            }
        }
        INFO((slots_lack ? "slots" : "time") << " lacks: " << missed << " of " << tried << " would have missed");
        REQUIRE(tried >= 100);
        CHECK(missed * 100 >= tried * 95);
    }
}

TEST_CASE("who comes again after the time that a refusal named is let in more often than not", "[scenes]") {
    enum Load { slots_lack, work_lacks, burst, num_loads };
    int tried = 0, let_in = 0;
    for (int load = 0; load < num_loads; ++load) {
        for (uint64_t seed = 1; seed <= 8; ++seed) {
            Random random(seed);
            std::vector<SimRequest> w;
            double at = 0;
            for (int i = 0; i < 300; ++i) {
                const bool is_dense = load == burst && i >= 100 && i < 200;
                at += random.exponential(load == slots_lack ? 170 : load == work_lacks ? 52 : is_dense ? 15 : 260);
                w.push_back(load == work_lacks ? drawn_at(at, random, {200, 6000}, {5, 60}) : drawn_at(at, random, {50, 1500}, {50, 400}));
                w.back().class_index = load == burst && i % 2 == 0 ? 1 : 0;
            }
            SimOptions o = scene(40, load == work_lacks ? 32 : 8, 14'000);
            o.check = false;
            o.scheduler.classes[0].ttft_ns = 1'000'000'000;
            o.scheduler.classes.push_back(o.scheduler.classes[0]);
            o.scheduler.classes[0].on_miss = SchedulerClass::OnMiss::refuse;
            const SimReport with = run(o, w);
            std::vector<size_t> refused;
            for (size_t i = 0; i < w.size(); ++i) {
                if (with.requests[i].end == SimEnd::refused) refused.push_back(i);
            }
            for (size_t k = 0; k < refused.size(); k += std::max<size_t>(1, refused.size() / 6)) {   // some of them, one at a time
                const auto i = static_cast<std::ptrdiff_t>(refused[k]);
                std::vector<SimRequest> v = w;
                SimRequest again = w[refused[k]];
                again.arrival_ns += with.requests[refused[k]].retry_after_ns;
                v.erase(v.begin() + i);
                const auto later = [](const SimRequest& a, const SimRequest& b) { return a.arrival_ns < b.arrival_ns; };
                const auto place = v.insert(std::upper_bound(v.begin(), v.end(), again, later), again) - v.begin();
                ++tried;
                let_in += run(o, v).requests[static_cast<size_t>(place)].end == SimEnd::refused ? 0 : 1;
            }
        }
    }
    INFO(let_in << " of " << tried << " were let in");
    REQUIRE(tried >= 100);
    CHECK(let_in * 2 > tried);   // 0.43 where what keeps coming is left out
}
