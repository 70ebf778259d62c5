// CostModel: prediction, learning, outliers, margin, the saved table. Pure; the "device" is a formula.
#include "runtime/cost_model.h"

#include <cmath>

#include "catch.h"
#include "runtime/sim/random.h"
#include "runtime/sim/step_time.h"

namespace takt {
namespace {

StepFeatures step(const CostModel& cost, int32_t decode_rows, int32_t prefill_rows, int64_t kv, int32_t history) {
    StepFeatures f;
    f.decode_rows = decode_rows;
    f.rows = decode_rows + prefill_rows;
    f.prefill_segments = prefill_rows > 0 ? 1 : 0;
    f.kv_read_tokens = kv;
    f.prefill_pairs = int64_t{prefill_rows} * history + int64_t{prefill_rows} * (prefill_rows + 1) / 2;
    f.padded_rows = cost.padded_rows(f.rows);
    return f;
}

CostModel h100() { return CostModel(sim::h100_ladder(64), false, sim::h100_roofline()); }

double true_ns(const StepFeatures& f) {
    static const sim::StepTime time = sim::StepTime::h100();
    return time.ns(f);
}

void train(CostModel& cost, sim::Random& random, int num_steps, double speed) {
    for (int i = 0; i < num_steps; ++i) {
        const int32_t decode = random.between(1, 64);
        const int32_t prefill = random.chance(0.5) ? random.between(16, 1500) : 0;
        const int64_t context = int64_t{decode} * random.between(100, 4000);
        const StepFeatures f = step(cost, decode, prefill, context, random.between(0, 30000));
        const double ns = speed * true_ns(f) * std::exp(0.015 * random.normal());
        cost.observe(f, static_cast<uint64_t>(ns));
    }
}

double mean_error(const CostModel& cost, double speed) {
    sim::Random random(99);
    double sum = 0;
    for (int i = 0; i < 300; ++i) {
        const int32_t decode = random.between(1, 64);
        const int32_t prefill = random.between(0, 1500);
        const StepFeatures f = step(cost, decode, prefill, int64_t{decode} * 1000, random.between(0, 30000));
        const double truth = speed * true_ns(f);
        sum += std::abs(static_cast<double>(cost.predict_ns(f)) - truth) / truth;
    }
    return sum / 300;
}

}  // namespace

TEST_CASE("shapes round up, rows beyond the ladder are launches in a row", "[cost_model]") {
    const CostModel cost({1, 4, 16}, false, {});
    CHECK(cost.padded_rows(1) == 1);
    CHECK(cost.padded_rows(5) == 16);
    CHECK(cost.padded_rows(16) == 16);
    CHECK(cost.padded_rows(17) == 17);    // 16 and 1
    CHECK(cost.padded_rows(36) == 36);    // 16, 16 and 4
    CHECK(cost.padded_rows(38) == 48);
}

TEST_CASE("it learns an unknown device to a few percent", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(1);
    const double before = mean_error(cost, 1.0);
    train(cost, random, 3000, 1.0);
    const double after = mean_error(cost, 1.0);
    CHECK(before > 0.1);
    CHECK(after < 0.01);
}

TEST_CASE("it follows a device that became slower", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(2);
    train(cost, random, 3000, 1.0);
    CHECK(mean_error(cost, 1.15) > 0.08);
    train(cost, random, 3000, 1.15);
    CHECK(mean_error(cost, 1.15) < 0.05);
}

TEST_CASE("one outlier moves nothing, many in a row are the truth", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(3);
    train(cost, random, 2000, 1.0);
    const StepFeatures f = step(cost, 8, 0, 8000, 0);
    const auto truth = static_cast<uint64_t>(true_ns(f));
    for (int i = 0; i < 50; ++i) cost.observe(f, truth);
    const auto before = static_cast<double>(cost.predict_ns(f));
    CHECK(cost.observe(f, truth * 10) == CostVerdict::outlier);
    CHECK(std::abs(static_cast<double>(cost.predict_ns(f)) / before - 1) < 0.05);
    CHECK(cost.snapshot().num_outliers > 0);
    for (int i = 0; i < 60; ++i) cost.observe(f, truth * 3);
    CHECK(static_cast<double>(cost.predict_ns(f)) > 2.5 * static_cast<double>(truth));
}

TEST_CASE("a million equal steps leave the slopes able to learn and unhurt", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(4);
    train(cost, random, 3000, 1.0);
    const double ka = cost.snapshot().ka_ns;
    const StepFeatures f = step(cost, 16, 0, 32000, 0);
    for (int i = 0; i < 1'000'000; ++i) {
        cost.observe(f, static_cast<uint64_t>(true_ns(f) * (1 + 0.01 * (random.uniform() - 0.5))));
    }
    const StepFeatures document = step(cost, 16, 112, 32000, 20000);
    cost.observe(document, static_cast<uint64_t>(true_ns(document) * 1.1));
    CHECK(cost.snapshot().ka_ns > 0.5 * ka);
    CHECK(cost.snapshot().ka_ns < 2.0 * ka);
    CHECK(std::isfinite(cost.snapshot().kd_ns));
}

TEST_CASE("slopes and table stay true over hundreds of thousands of steps of a server's load", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(10);
    double sum = 0;
    const int num_steps = 400'000;
    for (int i = 0; i < num_steps; ++i) {
        // Mostly a few streams; now and then a burst of prompts whose number and pairs hang together.
        const int32_t decode = random.between(1, 12);
        StepFeatures f = step(cost, decode, 0, int64_t{decode} * random.between(1000, 3000), 0);
        if (random.chance(0.1)) {
            const int32_t prompts = random.between(1, 4), rows = random.between(100, 1500);
            f = step(cost, decode, rows, f.kv_read_tokens, 3000 / prompts);
            f.prefill_segments = prompts;
        }
        const double noise = std::exp(0.015 * random.normal());
        const double ns = true_ns(f) * noise * (random.uniform() < 0.003 ? 1.2 : 1.0);
        if (i >= num_steps - 20'000) sum += std::abs(ns - static_cast<double>(cost.predict_ns(f))) / ns;
        cost.observe(f, static_cast<uint64_t>(ns));
    }
    CHECK(sum / 20'000 < 0.02);   // the noise alone is 0.012
    CHECK(cost.snapshot().kd_ns == Approx(47).epsilon(0.2));
    CHECK(cost.snapshot().ka_ns == Approx(1.5).epsilon(0.2));
    CHECK(cost.snapshot().num_outliers < 10);
}

TEST_CASE("the margin is a quantile: about one step in a hundred lies above it", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(5);
    train(cost, random, 3000, 1.0);
    const StepFeatures f = step(cost, 16, 0, 32000, 0);
    int num_over = 0;
    for (int i = 0; i < 8000; ++i) {
        const auto ns = static_cast<uint64_t>(true_ns(f) * std::exp(0.02 * random.normal()));
        num_over += ns > cost.bound_ns(f) ? 1 : 0;
        cost.observe(f, ns);
        REQUIRE(cost.margin(f) >= 1.0);
        REQUIRE(cost.margin(f) <= 2.0);
    }
    CHECK(num_over > 8);
    CHECK(num_over < 200);
}

TEST_CASE("where rows are data the cost runs straight between shapes and never falls", "[cost_model]") {
    CostModel cost({1, 8, 64, 512}, true, {50e9, 1e11, 1e-4, 1e8, 2.7e8, 0, 0});
    sim::Random random(6);
    for (int i = 0; i < 4000; ++i) {
        StepFeatures f = step(cost, 0, random.between(1, 512), 0, 0);
        f.prefill_pairs = 0;
        cost.observe(f, static_cast<uint64_t>(2e6 + 3e5 * f.rows));
    }
    uint64_t last = 0;
    for (int32_t rows = 1; rows <= 512; ++rows) {
        StepFeatures f = step(cost, 0, rows, 0, 0);
        f.prefill_pairs = 0;
        const uint64_t ns = cost.predict_ns(f);
        REQUIRE(ns >= last);
        last = ns;
        if (rows >= 64) REQUIRE(static_cast<double>(ns) == Approx(2e6 + 3e5 * rows).epsilon(0.1));
    }
}

TEST_CASE("where rows are data a step costs its true rows, its slices' K and V, and the machine's pace", "[cost_model]") {
    // A device without shapes that other programs slow down for some hundred steps at a time.
    CostRoofline roofline;
    roofline.weight_bytes = 1e8;
    roofline.operations_per_row = 2e8;
    roofline.kv_bytes_per_token = 23'040;
    roofline.operations_per_pair = 69'000;
    roofline.bytes_per_second = 4e10;
    roofline.operations_per_second = 6e11;
    CostModel cost({1, 2, 4, 8, 16, 32, 64}, true, roofline);
    const auto usual_ns = [](const StepFeatures& f) {
        return 2e6 + 0.7e6 * f.rows + 1000.0 * static_cast<double>(f.kv_read_tokens + f.prefill_kv_tokens) +
               450.0 * static_cast<double>(f.prefill_pairs);
    };
    const auto features = [&](int32_t slice, int32_t history) {
        StepFeatures f = step(cost, 1, slice, 300, history);
        f.prefill_kv_tokens = slice > 0 ? history + slice : 0;
        return f;
    };
    sim::Random random(4);
    double pace = 1;
    const auto run = [&](int num_steps) {
        double sum = 0;
        for (int i = 0; i < num_steps; ++i) {
            const int32_t slice = random.between(0, 12), context = random.between(0, 2000);
            const StepFeatures f = features(slice, context);
            const double ns = pace * usual_ns(f) * std::exp(0.02 * random.normal());
            sum += std::abs(static_cast<double>(cost.predict_ns(f)) - ns) / ns;
            cost.observe(f, static_cast<uint64_t>(ns));
        }
        return sum / num_steps;
    };
    run(2000);
    CHECK(run(500) < 0.05);
    for (int32_t slice = 1; slice < 12; ++slice) {
        CAPTURE(slice);   // between the entries too, and no jump behind one
        CHECK(static_cast<double>(cost.predict_ns(features(slice, 1000))) == Approx(usual_ns(features(slice, 1000))).epsilon(0.1));
        CHECK(cost.predict_ns(features(slice + 1, 1000)) > cost.predict_ns(features(slice, 1000)));
    }
    pace = 1.3;
    run(10);
    CHECK(run(30) < 0.07);
    pace = 1.0;
    run(10);
    CHECK(run(30) < 0.07);
    const double margin = cost.margin(features(4, 100));
    const double before = cost.snapshot().pace;
    const StepFeatures stalled = features(4, 100);
    cost.observe(stalled, static_cast<uint64_t>(4 * usual_ns(stalled)));
    CHECK(cost.margin(stalled) == margin);   // a stall is no property of the step
    CHECK(cost.snapshot().pace < 1.4 * before);
    for (int i = 0; i < 4; ++i) cost.observe(stalled, static_cast<uint64_t>(usual_ns(stalled)));
    CHECK(cost.snapshot().pace < 1.05 * before);   // and soon forgotten

    CostModel padded({1, 2, 4, 8, 16, 32, 64}, false, roofline);
    for (int i = 0; i < 100; ++i) padded.observe(stalled, static_cast<uint64_t>(1.2 * usual_ns(stalled)));
    CHECK(padded.snapshot().pace == 1.0);
}

TEST_CASE("where rows are data a burst of late steps moves the margin little, and what lasts moves it on", "[cost_model]") {
    CostRoofline roofline;
    roofline.weight_bytes = 1e8;
    roofline.operations_per_row = 2e8;
    CostModel cost({1, 2, 4, 8, 16, 32, 64}, true, roofline);
    StepFeatures f;
    f.add_slice(4, 100);
    f.padded_rows = 4;
    int at = 0;
    const auto usual = [&at] { return uint64_t{3'000'000} + (++at % 2 == 0 ? 30'000 : 0); };
    for (int i = 0; i < 4000; ++i) cost.observe(f, usual());
    const double calm = cost.margin(f);
    CHECK(calm < 1.05);
    // Each is half as long again as the model says by then: the pace follows, the next one is longer still.
    const auto late = [&] { return static_cast<uint64_t>(1.5 * static_cast<double>(cost.predict_ns(f))); };
    for (int i = 0; i < 20; ++i) {
        cost.observe(f, late());
        cost.observe(f, usual());
    }
    const double behind = cost.margin(f);
    CHECK(behind > calm + 0.1);    // three of them at once,
    CHECK(behind < calm + 0.22);   // and two that forty steps allow; all twenty would be 0.5, up to where they lie
    for (int i = 0; i < 600; ++i) {
        cost.observe(f, late());
        for (int k = 0; k < 9; ++k) cost.observe(f, usual());
    }
    CHECK(cost.margin(f) > 1.4);
}

TEST_CASE("where rows are data a shape costs no more a row than a smaller one, whatever its first step took", "[cost_model]") {
    CostRoofline roofline;
    roofline.weight_bytes = 1e8;
    roofline.operations_per_row = 2e8;
    roofline.bytes_per_second = 4e10;
    roofline.operations_per_second = 6e11;
    CostModel cost({1, 2, 4, 8, 16, 32, 64}, true, roofline);
    const auto features = [&](int32_t rows) {
        StepFeatures f = step(cost, 1, rows - 1, 0, 0);
        f.prefill_pairs = 0;
        return f;
    };
    cost.observe(features(16), 400'000'000);   // a process's first step faults its memory in
    CHECK(cost.predict_ns(features(8)) < 20'000'000);
    for (int i = 0; i < 3; ++i) cost.observe(features(1), 3'000'000);
    for (const int32_t rows : {2, 4, 8, 16, 32, 64}) {
        CAPTURE(rows);
        CHECK(cost.predict_ns(features(rows)) <= static_cast<uint64_t>(1.3 * 3e6 * rows));
    }
    for (int i = 0; i < 3; ++i) cost.observe(features(8), 6'000'000);
    CHECK(cost.predict_ns(features(16)) <= 15'500'000);
    // A count just above a shape is told by that shape: it is no stranger to the model, and the pace follows it.
    for (int i = 0; i < 3; ++i) cost.observe(features(16), 9'000'000);
    const double before = cost.snapshot().pace;
    cost.observe(features(17), 14'000'000);
    CHECK(cost.snapshot().pace > 1.05 * before);
}

TEST_CASE("where rows are data the nearer measured shape answers for a step, and only one that was measured often moves the pace") {
    CostRoofline roofline;
    roofline.weight_bytes = 1e8;
    roofline.operations_per_row = 2e8;
    roofline.bytes_per_second = 4e10;
    roofline.operations_per_second = 6e11;
    const auto features = [](int32_t rows) {
        StepFeatures f;
        f.rows = f.decode_rows = f.padded_rows = rows;
        return f;
    };
    // How far a step of so many rows, a fifth longer than predicted, moves the pace of a model that knows one shape.
    const auto moved = [&](int32_t known, int32_t rows) {
        CostModel cost({8, 16, 32}, true, roofline);
        for (int i = 0; i < 3; ++i) cost.observe(features(known), 500'000ULL * static_cast<uint64_t>(known));
        const double before = cost.snapshot().pace;
        cost.observe(features(rows), cost.predict_ns(features(rows)) * 6 / 5);
        return cost.snapshot().pace / before;
    };
    CHECK(moved(8, 3) > 1.05);     // there is none below the smallest
    CHECK(moved(8, 11) > 1.05);
    CHECK(moved(8, 12) == 1.0);    // as near: the larger answers, and is new
    CHECK(moved(8, 13) == 1.0);
    CHECK(moved(16, 11) > 1.05);   // the nearer one was never seen
    CHECK(moved(16, 13) > 1.05);
    CHECK(moved(16, 23) > 1.05);
    CHECK(moved(16, 24) == 1.0);
    CHECK(moved(32, 23) > 1.05);
}

TEST_CASE("where rows are data a document is predicted to its end, though its loads grow together and its slices shrink", "[cost_model]") {
    CostRoofline roofline;
    roofline.weight_bytes = 8e7;
    roofline.operations_per_row = 2.7e8;
    roofline.kv_bytes_per_token = 23'040;
    roofline.operations_per_pair = 69'000;
    roofline.bytes_per_second = 3e10;
    roofline.operations_per_second = 4e11;
    const auto usual_ns = [](const StepFeatures& f) {
        return 2.2e6 + 0.72e6 * f.rows + 1100.0 * static_cast<double>(f.kv_read_tokens + f.prefill_kv_tokens) +
               300.0 * static_cast<double>(f.prefill_pairs);
    };
    for (const uint64_t seed : {1u, 2u, 3u, 4u}) {
        for (const double budget_ns : {14.8e6, 29.6e6}) {
            CostModel cost({1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, true, roofline);
            sim::Random random(seed);
            const auto observe = [&](const StepFeatures& f) {
                const double spell = random.chance(0.02) ? 1.5 : 1.0;
                const double ns = usual_ns(f) * std::exp(0.05 * random.normal()) * spell;
                const double error = std::abs(static_cast<double>(cost.predict_ns(f)) - ns) / ns;
                cost.observe(f, static_cast<uint64_t>(ns));
                return error;
            };
            const auto features = [&](int32_t slice, int32_t context, int32_t history) {
                StepFeatures f;
                f.add_decode(context);
                if (slice > 0) f.add_slice(slice, history);
                f.padded_rows = cost.padded_rows(f.rows);
                return f;
            };
            for (int32_t context = 16; context < 80; ++context) observe(features(0, context, 0));
            observe(features(64, 80, 0));
            double error = 0;
            int32_t context = 80, num_steps = 0;
            for (int32_t history = 0; history < 6000; ++context) {
                int32_t slice = 1;
                while (slice < 64 && static_cast<double>(cost.bound_ns(features(slice + 1, context, history))) <= budget_ns) ++slice;
                const double one = observe(features(slice, context, history));
                history += slice;
                if (history < 1000) continue;
                error += one;
                ++num_steps;
            }
            INFO("seed " << seed << ", budget " << budget_ns << ", " << num_steps << " steps");
            CHECK(error / num_steps < 0.08);
        }
    }
}

TEST_CASE("empty rows cost what the shape takes over the rows in it, and nothing where it is flat", "[cost_model]") {
    CostModel cost({1, 4, 16, 64}, false, {});
    const auto learn = [&](int32_t rows, double ms) {
        for (int i = 0; i < 5; ++i) cost.observe(step(cost, rows, 0, 0, 0), static_cast<uint64_t>(ms * 1e6));
    };
    learn(1, 5);
    learn(4, 5);
    learn(16, 5);
    learn(64, 9);
    const auto padding_ms = [&](int32_t rows) { return static_cast<double>(cost.padding_ns(step(cost, rows, 0, 0, 0))) * 1e-6; };
    CHECK(padding_ms(9) == Approx(0).margin(0.01));
    CHECK(padding_ms(64) == 0);
    CHECK(padding_ms(40) == Approx(2).margin(0.1));
    CHECK(padding_ms(17) == Approx(4 * 47.0 / 48).margin(0.1));
    CHECK(padding_ms(64 + 40) == padding_ms(40));   // only the last launch is not full
    const CostModel data({1, 4, 16, 64}, true, {});
    CHECK(data.padding_ns(step(data, 40, 0, 0, 0)) == 0);
}

TEST_CASE("the flat part ends where a shape costs 15 percent more", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(7);
    train(cost, random, 6000, 1.0);
    CHECK(cost.floor_rows(16) == 128);
    CHECK(cost.floor_rows(200) >= 200);
}

TEST_CASE("a saved table comes back, one for other shapes or a broken one does not", "[cost_model]") {
    CostModel cost = h100();
    sim::Random random(8);
    train(cost, random, 2000, 1.0);
    CostModel again = h100();
    const std::string text = cost.save();
    REQUIRE(again.load(text));
    CHECK(mean_error(again, 1.0) < 0.05);
    CostModel other({1, 2, 3}, false, {});
    CHECK_FALSE(other.load(text));
    CHECK_FALSE(again.load(""));
    CHECK_FALSE(again.load(text.substr(0, text.size() / 2)));
    std::string negative = text;
    negative.replace(negative.find('\n') + 1, 1, "-");
    CHECK_FALSE(again.load(negative));
}

}  // namespace takt
