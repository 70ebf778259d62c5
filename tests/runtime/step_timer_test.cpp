// StepTimer: a device's profile is found again by measuring it, and a calibrated model predicts the device.
#include "runtime/step_timer.h"

#include <sstream>

#include "catch.h"
#include "kernels/device_factory.h"
#include "kernels/sim/profile.h"
#include "model/model_file.h"
#include "model/sim_model.h"
#include "runtime/sim/step_time.h"

namespace takt {
namespace {

uint64_t no_time(void*) { return 1; }

struct Rig {
    explicit Rig(const std::string& profile = "h100-7b", int32_t num_blocks = 3000) {
        SimDeviceOptions sim;
        sim.noise = 0;
        sim.profile = profile;
        sim.profile_is_text = profile != "h100-7b";
        device = make_sim_device(sim, TimeSource{no_time, nullptr}).value();
        tokenizer.emplace(make_tokenizer(byte_tokenizer_spec()).value());
        model = std::make_unique<SimModel>(*device, tokenizer->vocab_size(), 32'768, -1);
        options.kv_type = DType::u8;
        options.num_blocks = num_blocks;
        options.max_running = 32;
        options.max_context = 32'768;
        options.row_ladder = sim::h100_ladder(32);
        options.max_plan_rows = options.row_ladder.back();
        runner = ForwardRunner::create(*device, *model, options).value();
    }
    std::unique_ptr<Device> device;
    std::optional<Tokenizer> tokenizer;
    std::unique_ptr<SimModel> model;
    RunnerOptions options;
    std::unique_ptr<ForwardRunner> runner;
};

}  // namespace

TEST_CASE("the profile of a device that runs by a profile is that profile", "[step_timer]") {
    Rig rig;
    StepTimer timer(*rig.runner, *rig.tokenizer);
    const std::string text = profile_text(timer, rig.options);
    const auto found = sim::Profile::parse(text), own = sim::Profile::built_in("h100-7b");
    REQUIRE(found);
    for (const int32_t rows : rig.options.row_ladder) {
        for (const int64_t context : {0, 8000}) {
            StepHeader decode, prefill;
            decode.kv_read_tokens = rows * (context + 1);
            prefill.prefill_pairs = rows * context + int64_t{rows} * (rows + 1) / 2;
            INFO(rows << " rows behind " << context);
            if (rows <= 16) CHECK(found.value().step_ns(rows, decode) == Approx(own.value().step_ns(rows, decode)).epsilon(0.005));
            CHECK(found.value().step_ns(rows, prefill) == Approx(own.value().step_ns(rows, prefill)).epsilon(0.005));
        }
    }
    // Measured again on a device that runs by what was measured: the same within rounding.
    Rig again(text);
    StepTimer second(*again.runner, *again.tokenizer);
    const auto twice = sim::Profile::parse(profile_text(second, again.options));
    REQUIRE(twice);
    StepHeader step;
    step.prefill_pairs = 512 * 10'000;
    CHECK(twice.value().step_ns(512, step) == Approx(own.value().step_ns(512, step)).epsilon(0.01));
}

TEST_CASE("a calibrated model predicts the device before its first request", "[step_timer]") {
    Rig rig;
    StepTimer timer(*rig.runner, *rig.tokenizer);
    CostModel cost(rig.options.row_ladder, false, sim::h100_roofline());
    const sim::StepTime truth = sim::StepTime::h100();
    REQUIRE(calibrate(timer, cost, 60));
    for (const int32_t rows : {1, 16, 128, 512, 2048, 4096}) {
        StepFeatures f;
        f.rows = f.padded_rows = rows;
        f.prefill_segments = 1;
        f.prefill_pairs = int64_t{rows} * 6000;
        CHECK(static_cast<double>(cost.predict_ns(f)) == Approx(truth.ns(f)).epsilon(0.08));
    }
    CostModel hasty(rig.options.row_ladder, false, sim::h100_roofline());
    REQUIRE(calibrate(timer, hasty, 0.05));
    CHECK(hasty.snapshot().num_observed < cost.snapshot().num_observed / 4);
}

TEST_CASE("a kept table is compared with a few steps, and what is off by more than others is told", "[step_timer]") {
    Rig rig;
    StepTimer timer(*rig.runner, *rig.tokenizer);
    CostModel cost(rig.options.row_ladder, false, sim::h100_roofline());
    REQUIRE(calibrate(timer, cost, 60));
    const double own = prediction_factor(timer, cost, 60);
    CHECK(own >= 1);
    CHECK(own < 1.2);
    const uint64_t seen = cost.snapshot().num_observed;
    for (const double scale : {5.0, 0.2}) {   // of the table over the device
        std::istringstream table(cost.save());
        std::ostringstream poisoned;
        std::string line;
        std::getline(table, line);
        poisoned << line << '\n';
        for (size_t i = 0; i < rig.options.row_ladder.size(); ++i) {
            double rows = 0, ns = 0, count = 0;
            table >> rows >> ns >> count;
            poisoned << rows << ' ' << ns * scale << ' ' << count << '\n';
        }
        std::getline(table, line);
        std::getline(table, line);
        poisoned << line << '\n';
        CostModel wrong(rig.options.row_ladder, false, sim::h100_roofline());
        REQUIRE(wrong.load(poisoned.str()));
        CHECK(prediction_factor(timer, wrong, 60) == Approx(5).epsilon(0.15));
    }
    CHECK(cost.snapshot().num_observed == seen);
}

TEST_CASE("what does not fit the pool is cut, and said", "[step_timer]") {
    Rig rig("h100-7b", 40);
    StepTimer timer(*rig.runner, *rig.tokenizer);
    StepFeatures f;
    REQUIRE(timer.run(8, 4000, 0, 0, f));
    CHECK(f.decode_rows == 8);
    CHECK(f.kv_read_tokens <= 39 * 16);
    REQUIRE(timer.run(2, 100, 5000, 100, f));
    CHECK(f.rows <= 40 * 16);
    CHECK(f.prefill_segments == 1);
}

TEST_CASE("a warmed-up model knows small steps, and takes no longer than it may", "[step_timer]") {
    Rig rig;
    StepTimer timer(*rig.runner, *rig.tokenizer);
    CostModel cost(rig.options.row_ladder, true, sim::h100_roofline()), hasty = cost;
    REQUIRE(warm_up(timer, cost, 60));
    const sim::StepTime truth = sim::StepTime::h100();
    for (const int32_t rows : {1, 8, 32}) {
        StepFeatures f;
        if (rows == 1) f.add_decode(64);
        if (rows > 1) f.add_slice(rows, 0);
        f.padded_rows = cost.padded_rows(rows);
        INFO(rows << " rows");
        CHECK(static_cast<double>(cost.predict_ns(f)) == Approx(truth.ns(f)).epsilon(0.15));
    }
    REQUIRE(warm_up(timer, hasty, 0));
    CHECK(hasty.snapshot().num_observed == 2);   // decodes alone, the very first aside
}

TEST_CASE("what ran before the first request leaves none behind under its number", "[step_timer]") {
    struct Sources final : StepSources {
        explicit Sources(const RequestState& r) : state(r) {}
        const RequestState& request(RequestId) const override {
            ++num_asked;
            return state;
        }
        std::span<const int32_t> block_table(RequestId, int32_t) const override { return table; }
        const RequestState& state;
        std::vector<int32_t> table{1};
        mutable int num_asked = 0;
    };
    Rig rig;
    StepTimer real(*rig.runner, *rig.tokenizer);   // its request stands for the first that comes
    {
        StepTimer timer(*rig.runner, *rig.tokenizer);
        StepFeatures f;
        REQUIRE(timer.run(1, 0, 0, 0, f));
    }
    const Sources sources(real.request(1));
    StepPlan plan;
    plan.step = 9;
    plan.num_samples = plan.padded_samples = 1;
    plan.segments.push_back({1, 0, 0, 1, true, false});
    plan.features.add_slice(1, 0);
    Ticket ticket;
    REQUIRE(rig.runner->launch(plan, sources, ticket));
    CHECK(sources.num_asked > 0);
}

}  // namespace takt
