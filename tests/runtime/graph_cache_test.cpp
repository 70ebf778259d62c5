// GraphCache: a shape is recorded once and replayed over current contents, stamps are where the key says, failures leave nothing.
#include "runtime/graph_cache.h"

#include <cstring>

#include "catch.h"
#include "kernels/device_factory.h"
#include "kernels/ops.h"
#include "runtime/clock.h"

using namespace takt;

namespace {

/// Its step copies the header's step number to `seen`: a replay must see what stands there then, not at the recording.
class CopyingModel final : public Model {
public:
    [[nodiscard]] const ModelConfig& config() const override { return config_; }
    [[nodiscard]] KvLayout kv_layout(DType, int32_t, int32_t) const override { return {}; }
    [[nodiscard]] size_t weight_bytes() const override { return 0; }
    [[nodiscard]] size_t workspace_bytes(const StepCapacity&, const KvLayout&) const override { return 0; }
    [[nodiscard]] int32_t max_work(const StepCapacity&, const KvLayout&, int32_t) const override { return 0; }
    [[nodiscard]] ModelCosts costs() const override { return {}; }
    Status bind(const StepBuffers&) override { return {}; }
    Status plan(const StepView&, const StepCapacity&) const override { return {}; }
    Status enqueue(Stream& stream, StepShape shape) override {
        ++num_enqueued;
        last = shape;
        if (fails) return {kStatusUnsupported, "no such shape"};
        return stream.copy(seen, step, sizeof(uint64_t));
    }

    int num_enqueued = 0;
    bool fails = false;
    StepShape last;
    uint64_t* seen = nullptr;
    const uint64_t* step = nullptr;

private:
    ModelConfig config_;
};

struct Fixture {
    VirtualClock clock;
    std::unique_ptr<Device> device = make_sim_device({}, clock.source()).value();
    std::unique_ptr<Stream> stream = device->stream(0).value();
    StepInputLayout layout{StepCapacity{8, 8, 8, 8, 64, 8, 8}};
    Buffer input = device->alloc(layout.bytes(), MemoryKind::device).value();
    size_t stride = step_result_bytes(8);
    Buffer results = device->alloc(2 * stride, MemoryKind::pinned).value();
    Buffer seen = device->alloc(64, MemoryKind::pinned).value();
    CopyingModel model;

    Fixture() {
        std::memset(input.data(), 0, input.bytes());
        std::memset(results.data(), 0, results.bytes());
        model.seen = seen.as<uint64_t>();
        model.step = &view().header->step;
    }
    StepView view() { return layout.view(input.data()); }
    GraphCache cache(bool enabled) { return {model, view(), results.data(), stride, enabled}; }
    StepResultHeader& result(int index) {
        return *reinterpret_cast<StepResultHeader*>(results.as<uint8_t>() + static_cast<size_t>(index) * stride);
    }
    void finish() {
        const Event event = stream->record();
        while (!stream->ready(event)) {
            clock.advance_to(clock.now_ns() + 1'000'000);
            device->poll(-1);
        }
        REQUIRE(stream->error().ok());
    }
};

}  // namespace

TEST_CASE("a shape is recorded once and replayed over current contents") {
    Fixture f;
    GraphCache cache = f.cache(true);
    for (uint64_t step = 1; step <= 5; ++step) {
        f.view().header->step = step;
        bool replayed = false;
        REQUIRE(cache.launch(*f.stream, {4, 2, true, true, true}, replayed));
        CHECK(replayed);
        f.finish();
        CHECK(*f.model.seen == step);
    }
    CHECK(f.model.num_enqueued == 1);
    CHECK(f.model.last.rows == 4);
    CHECK(f.model.last.samples == 2);
    CHECK(cache.num_graphs() == 1);
}

TEST_CASE("every part of the key is a shape of its own") {
    Fixture f;
    GraphCache cache = f.cache(true);
    const GraphKey keys[] = {{4, 2, true, true, true},  {8, 2, true, true, true},  {4, 1, true, true, true},
                             {4, 2, false, true, true}, {4, 2, true, false, true}, {4, 2, true, true, false},
                             {4, 2, true, true, true, true}};
    for (int round = 0; round < 2; ++round) {
        for (const GraphKey& key : keys) {
            bool replayed = false;
            REQUIRE(cache.launch(*f.stream, key, replayed));
        }
    }
    f.finish();
    CHECK(f.model.num_enqueued == 7);
    CHECK(f.model.last.decodes);
    CHECK(cache.num_graphs() == 7);
}

TEST_CASE("without graphs every step is queued operation by operation") {
    Fixture f;
    GraphCache cache = f.cache(false);
    REQUIRE(cache.prepare(*f.stream, {4, 2, true, true, true}));
    CHECK(f.model.num_enqueued == 0);
    for (uint64_t step = 1; step <= 3; ++step) {
        f.view().header->step = step;
        bool replayed = true;
        REQUIRE(cache.launch(*f.stream, {4, 2, true, true, true}, replayed));
        CHECK_FALSE(replayed);
        f.finish();
        CHECK(*f.model.seen == step);
    }
    CHECK(f.model.num_enqueued == 3);
    CHECK(cache.num_graphs() == 0);
}

TEST_CASE("a prepared shape costs nothing at its first use") {
    Fixture f;
    GraphCache cache = f.cache(true);
    REQUIRE(cache.prepare(*f.stream, {2, 1, true, true, true}));
    REQUIRE(cache.prepare(*f.stream, {2, 1, true, true, true}));
    CHECK(f.model.num_enqueued == 1);
    *f.model.seen = 0;
    f.view().header->step = 9;
    f.finish();
    CHECK(*f.model.seen == 0);   // recorded, not run
    bool replayed = false;
    REQUIRE(cache.launch(*f.stream, {2, 1, true, true, true}, replayed));
    f.finish();
    CHECK(*f.model.seen == 9);
    CHECK(f.model.num_enqueued == 1);
}

TEST_CASE("the stamps are where the key says, in the result block that the header names") {
    Fixture f;
    GraphCache cache = f.cache(true);
    bool replayed = false;
    f.view().header->result_index = 1;
    REQUIRE(cache.launch(*f.stream, {1, 1, true, true, false}, replayed));
    f.finish();
    CHECK(f.result(1).begin_ns > 0);
    CHECK(f.result(1).end_ns == 0);
    CHECK(f.result(0).begin_ns == 0);
    f.view().header->result_index = 0;
    f.clock.advance_to(f.clock.now_ns() + 1000);
    REQUIRE(cache.launch(*f.stream, {1, 1, true, false, true}, replayed));
    f.finish();
    CHECK(f.result(0).begin_ns == 0);
    CHECK(f.result(0).end_ns > f.result(1).begin_ns);
}

TEST_CASE("a shape that cannot be recorded says why and leaves the stream usable") {
    Fixture f;
    GraphCache cache = f.cache(true);
    f.model.fails = true;
    bool replayed = false;
    const Status status = cache.launch(*f.stream, {4, 2, true, true, true}, replayed);
    CHECK(status.code == kStatusUnsupported);
    CHECK(cache.num_graphs() == 0);
    f.model.fails = false;
    f.view().header->step = 3;
    REQUIRE(cache.launch(*f.stream, {4, 2, true, true, true}, replayed));
    f.finish();
    CHECK(*f.model.seen == 3);
}
