// The memory plan: the KV takes what the budget leaves, up to what could ever be used, and what does not fit is said with figures.
#include "catch.h"
#include "kernels/device_factory.h"
#include "model/sim_model.h"
#include "runtime/clock.h"
#include "runtime/engine_setup.h"

using namespace takt;

namespace {

/// The sim model with weights, which it has none of.
class WeightyModel final : public Model {
public:
    explicit WeightyModel(Device& device, size_t weight_bytes) : sim_(device, 1000, 4096, -1), weight_bytes_(weight_bytes) {}
    [[nodiscard]] const ModelConfig& config() const override { return sim_.config(); }
    [[nodiscard]] KvLayout kv_layout(DType type, int32_t block_tokens, int32_t num_blocks) const override {
        KvLayout kv = sim_.kv_layout(type, block_tokens, num_blocks);
        kv.type = type;
        kv.num_layers = 4;
        kv.num_kv_heads = 2;
        kv.head_dim = 64;
        return kv;
    }
    [[nodiscard]] size_t weight_bytes() const override { return weight_bytes_; }
    [[nodiscard]] size_t workspace_bytes(const StepCapacity& c, const KvLayout&) const override {
        return static_cast<size_t>(c.max_rows) * 4096;
    }
    [[nodiscard]] int32_t max_work(const StepCapacity&, const KvLayout&, int32_t) const override { return 1; }
    [[nodiscard]] ModelCosts costs() const override { return {}; }
    Status bind(const StepBuffers&) override { return {}; }
    Status plan(const StepView&, const StepCapacity&) const override { return {}; }
    Status enqueue(Stream&, StepShape) override { return {}; }

private:
    SimModel sim_;
    size_t weight_bytes_;
};

struct Fixture {
    VirtualClock clock;
    std::unique_ptr<Device> device = make_sim_device({}, clock.source()).value();
    WeightyModel model{*device, size_t{100} << 20};
    Config config;
    RunnerOptions options;

    Fixture() {
        options.row_ladder = {1, 2, 4, 8, 128};
        options.max_running = 8;
        options.max_context = 4096;
        options.block_tokens = 16;
    }
    MemoryPlan plan(int64_t budget_mib, int32_t max_context = 4096) {
        config.device.memory_budget_mib = budget_mib;
        options.max_context = max_context;
        return make_memory_plan(config, *device, model, max_context, options);
    }
};

}  // namespace

TEST_CASE("the KV takes what is left of the budget, in whole blocks") {
    Fixture f;
    const MemoryPlan plan = f.plan(160);
    CHECK(plan.fits);
    CHECK(plan.budget == int64_t{160} << 20);
    CHECK(plan.weights == int64_t{100} << 20);
    CHECK(plan.block_bytes == 4 * 2 * 2 * 16 * 64 * 2);   // layers, K and V, heads, tokens, head size, f16
    CHECK(plan.kv == plan.num_blocks * plan.block_bytes);
    CHECK(plan.total() <= plan.budget);
    CHECK(plan.budget - plan.total() < plan.block_bytes);   // not a block more would fit
    CHECK(f.options.num_blocks == plan.num_blocks);
}

TEST_CASE("no more blocks than every slot's full context could use") {
    Fixture f;
    const MemoryPlan plan = f.plan(100000);
    CHECK(plan.fits);
    CHECK(plan.num_blocks == 8 * (4096 / 16) + 1);
    CHECK(plan.note.empty());
}

TEST_CASE("a short context and one slot fit: what is least is never more than what is most") {
    for (const int32_t context : {1, 16, 17, 64, 100, 255, 256, 4096}) {
        Fixture f;
        f.options.max_running = 1;
        const MemoryPlan plan = f.plan(100000, context);
        INFO("context " << context);
        CHECK(plan.fits);
        CHECK(plan.note.empty());
        CHECK(plan.num_blocks * 16 >= context + 16);   // beside the dummy block
        CHECK(plan.num_blocks <= (context + 15) / 16 + 2);
    }
}

TEST_CASE("a wider KV type takes more bytes a block and so gives fewer blocks") {
    Fixture f;
    const MemoryPlan half = f.plan(140);
    f.options.kv_type = DType::f32;
    const MemoryPlan full = f.plan(140);
    CHECK(full.block_bytes == 2 * half.block_bytes);
    CHECK(full.num_blocks < half.num_blocks);
    f.options.kv_type = DType::i8;
    const MemoryPlan bytes = f.plan(140);
    CHECK(bytes.block_bytes == 4 * 2 * 2 * 16 * (64 + 4));   // layers, K and V, heads, tokens, head size and a float32 scale
    CHECK(bytes.num_blocks > half.num_blocks);
}

TEST_CASE("a pool below one full context is said, one below the least is refused with the figures") {
    Fixture f;
    f.options.max_running = 1;
    const MemoryPlan some = f.plan(104);
    REQUIRE(some.fits);
    CHECK(some.num_blocks < 4096 / 16);
    CHECK(some.note.find("4096 tokens does not fit") != std::string::npos);
    const MemoryPlan none = f.plan(90);
    CHECK_FALSE(none.fits);
    CHECK(none.num_blocks == 0);
    CHECK(none.note.find("100 MiB of weights") != std::string::npos);
    CHECK(none.note.find("the budget is 90 MiB") != std::string::npos);
    CHECK(none.note.find("device.memory_budget_mib") != std::string::npos);
}

TEST_CASE("without a budget the fraction of what is free decides, and the plan comes before the weights") {
    Fixture f;
    f.config.device.memory_fraction = 0.5;
    uint64_t free_bytes = 0, total_bytes = 0;
    f.device->memory(&free_bytes, &total_bytes);
    const MemoryPlan half = f.plan(0);
    CHECK(half.free_before == static_cast<int64_t>(free_bytes));
    CHECK(half.budget == static_cast<int64_t>(static_cast<double>(free_bytes) * 0.5));
    f.config.device.memory_fraction.reset();
    CHECK(f.plan(0).budget == static_cast<int64_t>(static_cast<double>(free_bytes) * 0.9));
}
