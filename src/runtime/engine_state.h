// EngineState: what an Engine handle owns: configuration, device, model, the engine thread and its core, and a small pool for
// chat templates and tokenising. Any thread may call the snapshot functions; the rest says its thread.
#pragma once

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <takt/engine.h>

#include "runtime/clock.h"
#include "runtime/door.h"
#include "runtime/engine_core.h"
#include "runtime/engine_setup.h"
#include "runtime/log.h"
#include "runtime/prepare.h"
#include "runtime/thread_placement.h"

namespace takt::detail {

class EngineState {
public:
    EngineState(net::any_io_executor executor, Config config);
    EngineState(const EngineState&) = delete;
    EngineState& operator=(const EngineState&) = delete;
    /// Stops, joins. Not on the engine thread. Ends within seconds: a device that never ends its step keeps its memory, for good.
    ~EngineState();

    /// Starts the engine thread: it loads, completes `handler` with an Engine that owns `self`, then runs until stopped.
    static void start(std::shared_ptr<EngineState> self, Engine::LoadHandler handler);

    void submit(Request request, std::shared_ptr<Refusal> refusal, Engine::SubmitHandler handler);
    void drain(std::chrono::steady_clock::time_point deadline, Engine::DrainHandler handler);

    [[nodiscard]] const Preparer& preparer() const { return *preparer_; }
    [[nodiscard]] const LoadedModel& loaded() const { return *loaded_; }
    [[nodiscard]] EngineCore& core() const { return *core_; }
    [[nodiscard]] const Clock& clock() const { return clock_; }
    [[nodiscard]] net::any_io_executor executor() const { return executor_; }

private:
    void load();
    [[nodiscard]] std::string cost_key() const;
    void keep_costs();
    void check_kept_costs();
    void abandon();
    void log_exception(RequestId id, const std::exception_ptr& problem) const;
    void run_loop();
    void idle();
    void wait_until(std::optional<uint64_t> wake_ns);
    void watch(bool on);
    void finish_drain();
    void check_books(std::optional<uint64_t>& wake_ns);

    const net::any_io_executor executor_;
    Config config_;
    Logger log_;
    std::unique_ptr<RealClock> held_clock_ = std::make_unique<RealClock>();   // the device reads it too
    RealClock& clock_ = *held_clock_;
    net::io_context io_{1};
    net::executor_work_guard<net::io_context::executor_type> work_{io_.get_executor()};
    std::shared_ptr<Door> door_ = std::make_shared<Door>(io_);
    std::unique_ptr<LoadedModel> loaded_;       // device and model; outlives the core
    std::unique_ptr<Preparer> preparer_;
    std::unique_ptr<EngineCore> core_;
    std::unique_ptr<net::thread_pool> pool_;
    std::atomic<int64_t> num_preparing_{0};     // submissions that the pool has not tokenised
    bool has_wakeup_ = false;                   // the device announces completions itself

    // Engine thread.
    bool stopping_ = false;
    bool is_watching_ = false;                  // the readers' thread looks out for tokens
    ThreadPlacement placement_;
    bool is_stuck_ = false;                     // stopped, and a launched step has not ended
    bool drain_cut_ = false;                    // the drain's deadline had to cancel requests
    uint64_t books_accepted_ = 0;               // accepted requests when the books were last checked
    uint64_t books_due_ns_ = 0;
    using Drain = std::pair<Engine::DrainHandler, net::any_completion_executor>;   // and the work that keeps its executor running
    std::vector<Drain> drains_;
    std::unique_ptr<net::steady_timer> drain_timer_;

    std::thread thread_;
};

}  // namespace takt::detail
