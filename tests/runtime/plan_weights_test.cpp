// The memory plan against what an engine really holds, and refusal before anything is loaded.
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <thread>

#include <takt/takt.h>

#include "catch.h"
#include "model/synthetic_folder.h"
#include "model/synthetic_gguf.h"

namespace {

using namespace takt;
using namespace takt::test;

Config config_of(const std::string& path, const std::vector<std::string>& more = {}) {
    std::vector<std::string> set{"device.kind=cpu", "model.path=" + path, "scheduler.max_running=4"};
    set.insert(set.end(), more.begin(), more.end());
    return load_config("", set);
}

/// An io_context on a thread of its own, joined however the test ends.
struct Loop {
    ~Loop() {
        work.reset();
        thread.join();
    }
    boost::asio::io_context io;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
    std::thread thread{[this] { io.run(); }};
};

int64_t loaded_weights(const Config& config) {
    Loop loop;
    const Engine engine = Engine::async_load(loop.io.get_executor(), config, boost::asio::use_future).get();
    return engine.model().weight_bytes;
}

}  // namespace

TEST_CASE("the plan's weights are those that are held, though it loads none") {
    for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
        for (const bool tied : {false, true}) {
            SyntheticShape shape;
            shape.architecture = architecture;
            shape.tied = tied;
            shape.vocab = 333;   // no whole group of rows
            const TemporaryFolder folder;
            const std::string path = folder.write("model.gguf", synthetic_gguf(SyntheticModel(shape)));
            const MemoryPlan plan = plan_memory(config_of(path));
            CHECK(plan.fits);
            CHECK(plan.weights == loaded_weights(config_of(path)));
        }
    }
    SyntheticShape shape;
    shape.matrices = shape.tables = shape.vectors = DType::bf16;
    const TemporaryFolder folder;
    write_folder(SyntheticModel(shape), folder);
    CHECK(plan_memory(config_of(folder.path())).weights == loaded_weights(config_of(folder.path())));
}

TEST_CASE("the plan follows the cache's type and block size") {
    const TemporaryFolder folder;
    const std::string path = folder.write("model.gguf", synthetic_gguf(SyntheticModel(SyntheticShape{})));
    const MemoryPlan half = plan_memory(config_of(path));
    const MemoryPlan full = plan_memory(config_of(path, {"kv.dtype=f32", "kv.block_tokens=32"}));
    CHECK(full.block_tokens == 32);
    CHECK(full.block_bytes == 4 * half.block_bytes);
    const SyntheticShape shape;
    const MemoryPlan bytes = plan_memory(config_of(path, {"kv.dtype=int8"}));
    const int64_t elements = int64_t{2} * shape.layers * shape.kv_heads * bytes.block_tokens;
    CHECK(half.block_bytes == elements * shape.head_dim * 2);
    CHECK(bytes.block_bytes == elements * (shape.head_dim + 4));   // a float32 scale a token and head
}

TEST_CASE("what does not fit is refused in numbers before weights are read") {
    const TemporaryFolder folder;
    SyntheticShape shape;
    shape.vocab = 4096;
    shape.tables = DType::f32;   // 8 MiB each
    shape.hidden = 512;
    const std::string path = folder.write("model.gguf", synthetic_gguf(SyntheticModel(shape)));
    const Config config = config_of(path, {"device.memory_budget_mib=1"});
    const MemoryPlan plan = plan_memory(config);
    CHECK(!plan.fits);
    CHECK(plan.note.find("the budget is 1 MiB") != std::string::npos);
    Config watched = config;
    bool has_read = false;
    watched.on_progress = [&](const auto&) { has_read = true; };
    CHECK_THROWS_AS(loaded_weights(watched), load_error);
    CHECK(!has_read);
}
