// Budget: how rows are shared, that a choice keeps the milliseconds where it can, its floor and duty cycle, and the trim's steps.
#include "runtime/budget.h"

#include <numeric>
#include <random>

#include "catch.h"

using namespace takt;

namespace {

// 1 ms of weights a step, 10 us a row: cheap to do in one's head.
CostRoofline roofline() {
    CostRoofline r;
    r.bytes_per_second = 1e12;
    r.operations_per_second = 1e12;
    r.weight_bytes = 1e9;
    r.operations_per_row = 1e7;
    r.kv_bytes_per_token = 1e3;
    r.operations_per_pair = 1e2;
    return r;
}

std::vector<int32_t> ladder() { return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}; }

int32_t total_rows(const std::vector<PrefillNeed>& needs) {
    return std::accumulate(needs.begin(), needs.end(), 0, [](int32_t sum, const PrefillNeed& n) { return sum + n.rows; });
}

}  // namespace

TEST_CASE("rows go in order, but the oldest keeps a quarter") {
    std::vector<PrefillNeed> needs{{300, 0, 0}, {300, 0, kFloorShare}, {5, 0, 0}};
    share_rows(needs, 100);
    CHECK(needs[0].rows == 75);
    CHECK(needs[1].rows == 25);
    CHECK(needs[2].rows == 0);
    share_rows(needs, 401);
    CHECK(needs[0].rows == 300);
    CHECK(needs[1].rows == 101);
    share_rows(needs, 605);
    CHECK(needs[0].rows == 300);
    CHECK(needs[1].rows == 300);
    CHECK(needs[2].rows == 5);
    std::vector<PrefillNeed> small{{300, 0, 0}, {4, 0, kFloorShare}};
    share_rows(small, 100);   // it needs less than its quarter
    CHECK(small[0].rows == 96);
    CHECK(small[1].rows == 4);
}

TEST_CASE("sharing never gives more than is needed nor than there is") {
    std::mt19937 random(2);
    for (int round = 0; round < 2000; ++round) {
        std::vector<PrefillNeed> needs(1 + random() % 6);
        int32_t wanted = 0;
        for (PrefillNeed& n : needs) {
            n.remaining = static_cast<int32_t>(1 + random() % 200);
            wanted += n.remaining;
        }
        needs[random() % needs.size()].floor_share = kFloorShare;
        const auto total = static_cast<int32_t>(random() % 600);
        share_rows(needs, total);
        REQUIRE(total_rows(needs) == std::min(total, wanted));
        for (const PrefillNeed& n : needs) {
            REQUIRE(n.rows >= 0);
            REQUIRE(n.rows <= n.remaining);
            if (n.floor_share > 0) REQUIRE(n.rows >= std::min(n.remaining, (total + 3) / 4));
        }
    }
}

TEST_CASE("features count pairs by context and rows") {
    const CostModel cost(ladder(), true, roofline());
    std::vector<PrefillNeed> needs{{10, 100, kFloorShare}, {4, 0, 0}};
    const StepFeatures f = mixed_features(cost, {3, 500}, needs, 12);
    CHECK(f.decode_rows == 3);
    CHECK(f.rows == 15);
    CHECK(f.kv_read_tokens == 500);
    CHECK(f.prefill_segments == 2);
    CHECK(f.prefill_pairs == (10 * 100 + 55) + (0 + 3));
    CHECK(f.padded_rows == cost.padded_rows(15));
    const StepFeatures alone = mixed_features(cost, {3, 500}, needs, 0);
    CHECK(alone.rows == 3);
    CHECK(alone.prefill_pairs == 0);
}

TEST_CASE("a choice keeps the budget, and one row or shape more would not") {
    std::mt19937 random(3);
    for (const bool rows_are_data : {true, false}) {
        const CostModel cost(ladder(), rows_are_data, roofline());
        for (int round = 0; round < 500; ++round) {
            const DecodeLoad decode{static_cast<int32_t>(1 + random() % 32), static_cast<int64_t>(random() % 20000)};
            std::vector<PrefillNeed> needs{{static_cast<int32_t>(1 + random() % 2000), static_cast<int32_t>(random() % 4000), kFloorShare}};
            RowBudget budget;
            budget.budget_ns = 1'000'000 + random() % 9'000'000;
            budget.max_rows = 512;
            const RowChoice choice = choose_rows(cost, decode, needs, budget);
            REQUIRE(decode.rows + choice.prefill_rows <= budget.max_rows);
            REQUIRE(choice.prefill_rows <= needs[0].remaining);
            if (choice.infeasible || choice.at_floor || choice.prefill_rows == 0) continue;
            REQUIRE(cost.bound_ns(mixed_features(cost, decode, needs, choice.prefill_rows)) <= budget.budget_ns);
            if (!rows_are_data || choice.prefill_rows == needs[0].remaining ||
                decode.rows + choice.prefill_rows == budget.max_rows) {
                continue;
            }
            REQUIRE(cost.bound_ns(mixed_features(cost, decode, needs, choice.prefill_rows + 1)) > budget.budget_ns);
        }
    }
}

TEST_CASE("more time never buys fewer rows") {
    for (const bool rows_are_data : {true, false}) {
        const CostModel cost(ladder(), rows_are_data, roofline());
        std::vector<PrefillNeed> needs{{1000, 0, kFloorShare}};
        int32_t before = 0;
        for (uint64_t ms = 2; ms <= 40; ++ms) {
            const RowChoice choice = choose_rows(cost, {4, 1000}, needs, {ms * 1'000'000, 512, 0});
            if (choice.at_floor || choice.infeasible) continue;
            CHECK(choice.prefill_rows >= before);
            before = choice.prefill_rows;
        }
        CHECK(before > 0);
    }
}

TEST_CASE("where the rows are data, a budget of a few rows buys a few rows each step") {
    CostRoofline dear = roofline();
    dear.operations_per_row = 1e9;   // 1 ms a row: a laptop
    const CostModel cost(ladder(), true, dear);
    std::vector<PrefillNeed> needs{{1000, 0, kFloorShare}};
    const RowChoice choice = choose_rows(cost, {4, 1000}, needs, {10'000'000, 512, 0});
    CHECK_FALSE(choice.at_floor);
    CHECK(choice.prefill_rows > 0);
    CHECK(choice.prefill_rows < kMinSlice);
    const CostModel padded(ladder(), false, dear);
    CHECK(choose_rows(padded, {4, 1000}, needs, {10'000'000, 512, 0}).prefill_rows == 0);
}

// A step of r rows takes r + 1 ms: nothing is flat.
CostModel a_millisecond_a_row() {
    CostModel cost({1, 2, 4, 8, 16, 32}, true, {});
    for (int i = 0; i < 400; ++i) {
        StepFeatures f;
        f.rows = f.padded_rows = 1 + i % 32;
        cost.observe(f, static_cast<uint64_t>((1 + f.rows) * 1'000'000));
    }
    return cost;
}

TEST_CASE("where the rows are data and none fits, one gap in 64 is given up for a slice that moves the prompt") {
    const CostModel cost = a_millisecond_a_row();
    std::vector<PrefillNeed> needs(1);
    needs[0].remaining = 1000;
    const DecodeLoad decode{1, 0};
    int32_t since = 0, num_slices = 0, num_rows = 0;
    for (int step = 0; step < 3 * kLateSliceSteps; ++step) {
        const RowChoice choice = choose_rows(cost, decode, needs, {2'500'000, 32, since});
        CHECK(choice.at_floor == (choice.prefill_rows > 0));
        CHECK(choice.saves_up == (choice.prefill_rows == 0));
        since = choice.prefill_rows > 0 ? 0 : since + 1;
        num_slices += choice.at_floor ? 1 : 0;
        num_rows += choice.prefill_rows;
    }
    CHECK(num_slices == 3);
    const double most_ms = kLateSliceGaps * 2.5;      // a step of r + 1 rows takes r + 2 ms, and the margin more
    CHECK(num_rows <= 3 * (most_ms - 2));
    CHECK(num_rows > 3 * (most_ms - 2) / 2);
}

TEST_CASE("where the rows are data and decoding alone breaks the promise, steps are even and prompts have half of each") {
    const CostModel cost = a_millisecond_a_row();
    std::vector<PrefillNeed> needs(1);
    needs[0].remaining = 1000;
    const RowChoice even = choose_rows(cost, {7, 0}, needs, {1'000'000, 32, 0});   // 8 ms alone
    CHECK((even.infeasible && even.at_floor));
    CHECK(even.prefill_rows >= 7);
    CHECK(even.prefill_rows <= 8);
    // Another stream's promise can be kept: it bounds the step.
    const RowChoice kept = choose_rows(cost, {7, 0}, needs, {1'000'000, 32, 0, true, false, 12'000'000});
    CHECK(kept.prefill_rows >= 2);
    CHECK(kept.prefill_rows <= 4);
    // Not one row within that: every eighth step a late slice.
    const RowChoice waits = choose_rows(cost, {7, 0}, needs, {1'000'000, 32, kMaxDutySteps - 2, true, false, 8'000'000});
    CHECK((waits.infeasible && waits.saves_up && waits.prefill_rows == 0));
    const RowChoice late = choose_rows(cost, {7, 0}, needs, {1'000'000, 32, kMaxDutySteps - 1, true, false, 8'000'000});
    CHECK((late.infeasible && late.at_floor));
    CHECK(late.prefill_rows > 15);
    const CostModel padded(ladder(), false, roofline());
    CHECK(floor_slice(padded, {1, 0}, 1000) >= kMinSlice);
}

TEST_CASE("where decode alone breaks the budget, prefill still gets a step now and then") {
    const CostModel cost(ladder(), true, roofline());
    std::vector<PrefillNeed> needs{{1000, 0, kFloorShare}};
    int32_t num_with_prefill = 0;
    int32_t since = 0;
    for (int step = 0; step < 4 * kMaxDutySteps; ++step) {
        const RowChoice choice = choose_rows(cost, {32, 10000}, needs, {1, 512, since});
        CHECK(choice.infeasible);
        since = choice.prefill_rows > 0 ? 0 : since + 1;
        num_with_prefill += choice.prefill_rows > 0 ? 1 : 0;
        REQUIRE(since <= kMaxDutySteps);
    }
    CHECK(num_with_prefill >= 3);
}

TEST_CASE("the trim cuts when gaps are late, recovers when they are not, and stays within its bounds") {
    BudgetTrim trim;
    CHECK(trim.factor() == 1.0);
    const auto window = [&](double ratio) {
        for (int i = 0; i < 64; ++i) {
            for (int g = 0; g < 8; ++g) trim.gap(ratio, true);
            trim.step(true, false, false);
        }
    };
    for (int i = 0; i < 20; ++i) window(1.5);
    const double low = trim.trim();
    CHECK(low < 0.9);
    CHECK(low >= 0.5);
    for (int i = 0; i < 2000; ++i) window(0.5);
    CHECK(trim.trim() == Approx(1.0));
    CHECK(trim.factor() <= 1.0);
}

TEST_CASE("the trim does not wind up while the floor or infeasibility decides") {
    BudgetTrim trim;
    for (int i = 0; i < 640; ++i) {
        for (int g = 0; g < 8; ++g) trim.gap(1.02, true);
        trim.step(true, true, false);
    }
    CHECK(trim.trim() == 1.0);
    CHECK_FALSE(trim.infeasible());
    for (int i = 0; i < 128; ++i) trim.step(true, true, true);
    CHECK(trim.infeasible());
    for (int i = 0; i < 64; ++i) trim.step(true, false, false);
    CHECK_FALSE(trim.infeasible());
}

TEST_CASE("a shape filled in part is taken where it does more rows in its time than the full one below it") {
    const CostModel cost(ladder(), false, roofline());
    const auto bound_of = [&](DecodeLoad decode, std::vector<PrefillNeed> needs, int32_t rows) {
        return cost.bound_ns(mixed_features(cost, decode, needs, rows));
    };
    // Deep in a document, beside decode rows that cost 5 ms: the fixed part is paid over more rows.
    const DecodeLoad costly{1, 5'000'000};
    std::vector<PrefillNeed> deep{{2000, 1'000'000, 0}};
    const uint64_t room = bound_of(costly, deep, 400);
    REQUIRE(bound_of(costly, deep, 255) < room);
    const RowChoice part = choose_rows(cost, costly, deep, {room, 512, 0});
    CHECK(part.prefill_rows == 400);
    // At the beginning of one, 400 rows in the shape of 512 cost what 511 do: the full shape below is the better buy.
    const DecodeLoad cheap{1, 1000};
    std::vector<PrefillNeed> shallow{{2000, 0, 0}};
    const uint64_t less = bound_of(cheap, shallow, 400);
    REQUIRE(less < bound_of(cheap, shallow, 511));
    CHECK(choose_rows(cost, cheap, shallow, {less, 512, 0}).prefill_rows == 255);
}
