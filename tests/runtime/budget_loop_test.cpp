// Budget: floors in a row, the trim's loop, the host's part, the largest shape that fits. Single rules are in budget_test.cpp.
#include "runtime/budget.h"

#include <algorithm>

#include "catch.h"
#include "runtime/sim/random.h"
#include "runtime/sim/step_time.h"

namespace takt {
namespace {

PrefillNeed need(int32_t remaining, double floor_share = 0, bool is_stalled = false) {
    PrefillNeed n;
    n.remaining = remaining;
    n.floor_share = floor_share;
    n.is_stalled = is_stalled;
    return n;
}

}  // namespace

TEST_CASE("rows go to the first in line, floors aside", "[budget]") {
    struct Row {
        const char* name;
        std::vector<PrefillNeed> needs;
        int32_t total;
        std::vector<int32_t> rows;
    };
    const std::vector<Row> table = {
        {"the first takes what it needs", {need(100), need(900)}, 512, {100, 412}},
        {"the first takes all", {need(900), need(900)}, 512, {512, 0}},
        {"the oldest keeps a quarter", {need(900), need(900, 0.25)}, 512, {384, 128}},
        {"a floor is no more than what is left to do", {need(900), need(30, 0.25)}, 512, {482, 30}},
        {"where there is one row the stalled one has it, and not the oldest", {need(900, 0.25), need(900, 0, true)}, 1, {0, 1}},
        {"a stalled one gets the least slice", {need(900), need(900), need(900, 0, true)}, 512, {496, 0, 16}},
        {"both floors", {need(900), need(900, 0.25), need(900, 0, true)}, 512, {368, 128, 16}},
        {"less than the floors", {need(9), need(9, 0.25), need(9, 0, true)}, 8, {0, 2, 6}},
        {"more than all need", {need(9), need(9)}, 100, {9, 9}},
    };
    for (const Row& row : table) {
        INFO(row.name);
        std::vector<PrefillNeed> needs = row.needs;
        share_rows(needs, row.total);
        for (size_t i = 0; i < needs.size(); ++i) CHECK(needs[i].rows == row.rows[i]);
    }
}

TEST_CASE("the trim falls when the device's part is late, rises slowly, and holds still when it has no say", "[budget]") {
    BudgetTrim trim;
    const auto run = [&](int steps, double ratio, bool prefill, bool constrained) {
        for (int i = 0; i < steps; ++i) {
            for (int k = 0; k < 8; ++k) trim.gap(ratio, prefill);
            trim.step(prefill, constrained, false);
        }
    };
    run(640, 1.3, true, false);
    const double low = trim.trim();
    CHECK(low < 0.75);
    CHECK(low >= 0.5);
    run(640, 1.3, false, false);      // no prefill ran: the budget had no say
    CHECK(trim.trim() == low);
    run(640, 1.3, true, true);        // the floor decided
    CHECK(trim.trim() == low);
    run(640, 0.8, true, false);
    const double higher = trim.trim();
    CHECK(higher > low);
    CHECK(higher < low * 1.2);        // up a tenth as fast as down
    run(64'000, 0.8, true, false);
    CHECK(trim.trim() == 1.0);
}

TEST_CASE("the trim answers late gaps once, not in each update until they leave the window", "[budget]") {
    BudgetTrim trim;
    const auto run = [&](int steps, double ratio) {
        for (int i = 0; i < steps; ++i) {
            trim.gap(ratio, true);
            trim.step(true, false, false);
        }
    };
    run(512, 0.8);
    run(10, 1.4);
    run(64, 0.6);    // the cut worked
    const double cut = trim.trim();
    CHECK(cut < 0.95);
    CHECK(cut > 0.8);
    run(512, 0.6);
    CHECK(trim.trim() >= cut);
}

TEST_CASE("one gap far over its promise halves the budget for a few steps", "[budget]") {
    BudgetTrim trim;
    trim.gap(1.6, false);
    CHECK(trim.factor() == 1.0);      // no prefill in it: smaller slices would not have helped
    trim.gap(1.6, true);
    CHECK(trim.factor() == 0.5);
    for (int i = 0; i < 4; ++i) trim.step(true, false, false);
    CHECK(trim.factor() == 1.0);
}

TEST_CASE("the trim settles without a limit cycle on a device that is slower than believed", "[budget]") {
    BudgetTrim trim;
    sim::Random random(3);
    std::vector<double> updates{trim.trim()};
    for (int i = 0; i < 64 * 200; ++i) {
        const double used = 1.12 * trim.factor() * (1 + 0.01 * random.normal());   // the gap follows the budget
        for (int k = 0; k < 8; ++k) trim.gap(used, true);
        trim.step(true, false, false);
        if (trim.trim() != updates.back()) updates.push_back(trim.trim());
    }
    REQUIRE(updates.size() > 60);
    const auto [low, high] = std::minmax_element(updates.end() - 50, updates.end());
    CHECK(*high - *low < 0.03);
    CHECK(1.12 * trim.trim() == Approx(1.0).margin(0.05));
}

TEST_CASE("the host's part is a 95th percentile, and one stall does not move it far", "[budget]") {
    HostPart host;
    sim::Random random(4);
    int above = 0;
    for (int i = 0; i < 20'000; ++i) {
        const double ns = 100'000 + 200'000 * random.uniform();
        above += i >= 4000 && ns > host.ns() ? 1 : 0;
        host.observe(ns);
    }
    CHECK(host.ns() == Approx(290'000).epsilon(0.05));
    CHECK(above > 16'000 / 40);
    CHECK(above < 16'000 / 10);
    const double before = host.ns();
    host.observe(50e6);
    CHECK(host.ns() < before * 1.05);
}

TEST_CASE("what a budget buys is what moves the prompt fastest of all that fits", "[budget]") {
    const sim::StepTime time = sim::StepTime::h100();
    CostModel cost(sim::h100_ladder(64), false, sim::h100_roofline());
    for (int pass = 0; pass < 20; ++pass) {
        for (const int32_t rows : cost.row_ladder()) {
            StepFeatures f;
            f.rows = f.padded_rows = rows;
            f.prefill_segments = 1;
            f.prefill_pairs = int64_t{rows} * (rows + 1) / 2;
            cost.observe(f, static_cast<uint64_t>(time.ns(f)));
        }
    }
    for (const int32_t context : {0, 8000, 60'000}) {
        for (const uint64_t ms : {7u, 10u, 15u, 40u, 90u}) {
            std::vector<PrefillNeed> needs{need(100'000)};
            needs[0].context = context;
            const DecodeLoad decode{4, 4000};
            const RowChoice choice = choose_rows(cost, decode, needs, {ms * 1'000'000, 4096, 0});
            if (choice.at_floor || choice.prefill_rows == 0) continue;
            INFO("context " << context << ", " << ms << " ms: " << choice.prefill_rows << " rows");
            CHECK(cost.bound_ns(mixed_features(cost, decode, needs, choice.prefill_rows)) <= ms * 1'000'000);
            const auto pace = [&](int32_t rows) {
                return rows / static_cast<double>(cost.predict_ns(mixed_features(cost, decode, needs, rows)));
            };
            const double own = pace(choice.prefill_rows);
            for (int32_t rows = 16; rows < 4096; rows += rows < 512 ? 1 : 64) {   // wherever the curve dips
                if (cost.bound_ns(mixed_features(cost, decode, needs, rows)) > ms * 1'000'000) continue;
                CHECK(pace(rows) <= own * (rows < choice.prefill_rows ? 1.06 : 1.001));   // fewer rows must be worth more steps
            }
        }
    }
}

}  // namespace takt
