// RowCosts: prices of rows and context learned from one error. Pure; the "device" is a formula with noise.
#include "runtime/row_costs.h"

#include <algorithm>
#include <cmath>

#include "catch.h"
#include "runtime/cost_model.h"
#include "runtime/sim/random.h"

namespace takt {
namespace {

const std::vector<int32_t> kLadder{1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

// A model of 135M parameters on two cores; attention is four times as dear as the roofline's peak says.
CostRoofline roofline() {
    CostRoofline r;
    r.bytes_per_second = 4e10;
    r.operations_per_second = 6e11;
    r.weight_bytes = 9e7;
    r.operations_per_row = 2.1e8;
    r.kv_bytes_per_token = 23'040;
    r.operations_per_pair = 69'000;
    return r;
}

double usual_ns(const StepFeatures& f) {
    const std::array<double, 3> load = RowCosts::loads(f);
    return 2.3e6 + 0.63e6 * f.rows + 550 * load[0] + 430 * load[1] + 90 * load[2];
}

StepFeatures features(int32_t slice, int32_t context, int32_t history) {
    StepFeatures f;
    f.add_decode(context);
    if (slice > 0) f.add_slice(slice, history);
    f.padded_rows = f.rows;
    return f;
}

/// A document of 6,000 tokens as a tight promise has it: slices of 12 rows, then fewer, thousands of single rows and of steps without
/// prompt rows behind them, one slice of many rows in 64 steps. Returns the mean error of those, told before each.
double read_document(CostModel& cost, sim::Random& random, double spell) {
    const auto observe = [&](const StepFeatures& f) {
        const double slow = random.chance(0.01) ? spell : 1.0;
        const double ns = usual_ns(f) * slow * std::exp(0.05 * random.normal());
        const double error = std::abs(static_cast<double>(cost.predict_ns(f)) - ns) / ns;
        cost.observe(f, static_cast<uint64_t>(ns));
        return error;
    };
    int32_t context = 16;
    for (; context < 80; ++context) observe(features(0, context, 0));
    double error = 0;
    int num_late = 0;
    for (int32_t history = 0, i = 0; history < 6000; ++context, ++i) {
        int32_t slice = std::max(1, 12 - history / 100);
        if (history > 1500) slice = i % 64 == 0 ? 30 : i % 3 == 0 ? 1 : 0;
        const double one = observe(features(slice, context, history));
        history += slice;
        if (slice != 30 || history < 2500) continue;
        error += one;
        ++num_late;
    }
    REQUIRE(num_late > 20);
    return error / num_late;
}

}  // namespace

TEST_CASE("a slice of one row counts as a decode row does, and leaves the price of pairs alone", "[row_costs]") {
    StepFeatures f;
    f.add_decode(99);
    f.add_slice(1, 999);
    CHECK(RowCosts::loads(f) == std::array<double, 3>{1100, 0, 0});
    f.add_slice(4, 10);
    CHECK(RowCosts::loads(f) == std::array<double, 3>{1100, 50, 14});
    RowCosts costs(kLadder, roofline());
    const std::array<double, 3> before = costs.slopes_ns();
    for (int i = 0; i < 5000; ++i) costs.observe(features(1, 300 + i, 3000), usual_ns(features(1, 300 + i, 3000)));
    CHECK(costs.slopes_ns()[1] == Approx(before[1]).epsilon(0.01));
    CHECK(costs.slopes_ns()[0] == Approx(550).epsilon(0.1));
}

TEST_CASE("slices deep in a document are predicted from few of their like among single rows", "[row_costs]") {
    for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
        for (const double spell : {1.0, 1.6, 4.0}) {
            CostModel cost(kLadder, true, roofline());
            sim::Random random(seed);
            INFO("seed " << seed << ", one step in a hundred " << spell << " times as long");
            CHECK(read_document(cost, random, spell) < 0.12);
        }
    }
}

TEST_CASE("behind a deep document the next prompt's steps cost what they did before it", "[row_costs]") {
    for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
        CostModel cost(kLadder, true, roofline());
        sim::Random random(seed);
        for (int turn = 0; turn < 2; ++turn) read_document(cost, random, 1.6);
        for (const int32_t rows : {0, 1, 4, 12, 30, 64}) {
            const StepFeatures f = features(rows, 40, 0);
            const double told = static_cast<double>(cost.predict_ns(f)) / cost.snapshot().pace / usual_ns(f);
            INFO("seed " << seed << ", " << rows << " rows: " << told << " of the truth");
            CHECK(told > 0.8);
            CHECK(told < 1.35);
        }
    }
}

TEST_CASE("prices stay in bounds over a million steps of one kind, and still learn", "[row_costs]") {
    RowCosts costs(kLadder, roofline());
    const StepFeatures same = features(0, 400, 0);
    for (int i = 0; i < 1'000'000; ++i) costs.observe(same, usual_ns(same));
    const std::array<double, 3> slopes = costs.slopes_ns();
    CHECK(slopes[1] == Approx(115).epsilon(0.01));   // nothing was heard of it
    sim::Random random(5);
    for (int i = 0; i < 2000; ++i) {
        const int32_t rows = random.between(0, 60), context = random.between(0, 5000);
        const StepFeatures f = features(rows, context, random.between(0, 5000));
        costs.observe(f, usual_ns(f));
    }
    CHECK(costs.slopes_ns()[0] == Approx(550).epsilon(0.15));
    CHECK(costs.slopes_ns()[1] == Approx(430).epsilon(0.05));
    for (size_t i = 1; i < kLadder.size(); ++i) CHECK(costs.base_ns(i) >= costs.base_ns(i - 1));
}

TEST_CASE("a stall of a hundred times a step's length moves no price far, a device ten times slower is known soon", "[row_costs]") {
    CostModel cost(kLadder, true, roofline());
    const StepFeatures f = features(8, 100, 100);
    for (int i = 0; i < 200; ++i) cost.observe(f, static_cast<uint64_t>(usual_ns(f)));
    cost.observe(f, static_cast<uint64_t>(100 * usual_ns(f)));
    for (int i = 0; i < 10; ++i) cost.observe(f, static_cast<uint64_t>(usual_ns(f)));
    CHECK(static_cast<double>(cost.predict_ns(f)) == Approx(usual_ns(f)).epsilon(0.05));
    CostModel slow(kLadder, true, roofline());
    for (int i = 0; i < 60; ++i) {
        const StepFeatures one = features(i % 12, 100 + i, 100);
        slow.observe(one, static_cast<uint64_t>(10 * usual_ns(one)));
    }
    CHECK(static_cast<double>(slow.predict_ns(f)) == Approx(10 * usual_ns(f)).epsilon(0.25));
}

TEST_CASE("another day's prices are believed as they are, and moved by what is seen", "[row_costs]") {
    CostModel cost(kLadder, true, roofline());
    sim::Random random(3);
    read_document(cost, random, 1.0);
    CostModel again(kLadder, true, roofline());
    REQUIRE(again.load(cost.save()));
    for (const int32_t rows : {0, 3, 30, 200}) {
        const StepFeatures f = features(rows, 700, 2000);
        const double of_first = static_cast<double>(cost.predict_ns(f)) / cost.snapshot().pace;
        CHECK(static_cast<double>(again.predict_ns(f)) == Approx(of_first).epsilon(0.001));
    }
}

}  // namespace takt
