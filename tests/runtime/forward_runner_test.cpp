// ForwardRunner over the sim device: the shapes that are recorded before the first request.
#include "runtime/forward_runner.h"

#include "catch.h"
#include "kernels/device_factory.h"
#include "model/sim_model.h"

namespace {

using namespace takt;

uint64_t no_time(void*) { return 1; }

}  // namespace

TEST_CASE("every shape that one launch can have is recorded ahead, once") {
    SimDeviceOptions sim;
    sim.scale = 0;
    const auto device = make_sim_device(sim, TimeSource{no_time, nullptr}).value();
    SimModel model(*device, 1000, 256, -1);
    RunnerOptions options;
    options.kv_type = DType::u8;
    options.num_blocks = 16;
    options.max_running = 6;
    options.max_context = 256;
    options.row_ladder = {1, 2, 6, 16};
    options.max_plan_rows = 16;
    const auto runner = ForwardRunner::create(*device, model, options).value();
    // Samples are padded to 0, 1, 2, 4 and 6; what is sampled is recorded for plain argmax and in full.
    // Decodes alone have as many samples as rows: 1; 2; 3 or 4 and 5 or 6 in six rows; never in 16.
    constexpr size_t kDecodes = 2 * (1 + 1 + 2);
    constexpr size_t kShapes = (1 + 2 * 1) + (1 + 2 * 2) + (1 + 2 * 4) + (1 + 2 * 4) + kDecodes;
    REQUIRE(runner->prepare_graphs().ok());
    CHECK(runner->num_graphs() == kShapes);
    REQUIRE(runner->prepare_graphs().ok());
    CHECK(runner->num_graphs() == kShapes);
}

TEST_CASE("without graphs nothing is recorded") {
    SimDeviceOptions sim;
    const auto device = make_sim_device(sim, TimeSource{no_time, nullptr}).value();
    SimModel model(*device, 1000, 256, -1);
    RunnerOptions options;
    options.kv_type = DType::u8;
    options.num_blocks = 16;
    options.max_running = 2;
    options.max_context = 256;
    options.row_ladder = {1, 2};
    options.max_plan_rows = 2;
    options.graphs = false;
    const auto runner = ForwardRunner::create(*device, model, options).value();
    REQUIRE(runner->prepare_graphs().ok());
    CHECK(runner->num_graphs() == 0);
}
