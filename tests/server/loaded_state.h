// A server's state with an engine over the sim device, on an io_context that the test turns by hand.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include <takt/takt.h>

#include "server/server_state.h"

namespace takt::server {

class LoadedState {
public:
    explicit LoadedState(std::vector<std::string> more = {}) : state(io, config_of(std::move(more)), {}) {
        bool loaded = false;
        Engine::async_load(io.get_executor(), state.config, [&](std::exception_ptr problem, Engine engine) {
            if (problem) std::rethrow_exception(problem);
            state.engine = std::move(engine);
            state.model_name = state.engine.model().name;
            loaded = true;
        });
        run_until([&] { return loaded; });
    }
    ~LoadedState() {
        release_worker();
        state.worker.join();
    }

    /// Runs handlers until `done`; false if two minutes do not bring it.
    template <class Done>
    bool run_until(Done done) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
        while (!done()) {
            if (std::chrono::steady_clock::now() > end) return false;
            io.run_one_for(std::chrono::milliseconds(10));
        }
        return true;
    }
    /// Runs handlers until a quarter of a second has brought no change of `count`.
    template <class Count>
    void run_until_still(Count count) {
        for (auto before = count();; before = count()) {
            io.run_for(std::chrono::milliseconds(250));
            if (count() == before) return;
        }
    }
    /// The worker is busy until release_worker().
    void hold_worker() {
        asio::post(state.worker, [free = released_.get_future().share()] { free.wait(); });
        is_held_ = true;
    }
    void release_worker() {
        if (std::exchange(is_held_, false)) released_.set_value();
    }

    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
    ServerState state;

private:
    static Config config_of(std::vector<std::string> more) {
        std::vector<std::string> set{"device.kind=sim", "sim.scale=0"};
        set.insert(set.end(), more.begin(), more.end());
        return load_config("", set);
    }
    std::promise<void> released_;
    bool is_held_ = false;
};

}  // namespace takt::server
