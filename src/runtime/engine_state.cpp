// The engine thread: load, loop, idle policy, stop; and the doors' way in. See engine_state.h and cpp-async notes in docs.
#include "runtime/engine_state.h"

#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <boost/asio/append.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <algorithm>
#include <chrono>
#include <future>
#include <sstream>

#include <takt/short_turns.h>

#include "runtime/cost_cache.h"
#include "runtime/pause.h"
#include "runtime/reply_state.h"

namespace takt::detail {
namespace {

constexpr double kCalibrationSeconds = 3;
constexpr double kWarmUpSeconds = 0.2;
constexpr double kCheckSeconds = 0.3;
constexpr double kMostFactor = 2.5;   // that kept step times may be off: cores of a busy machine take up to twice as long
// After a stop nothing new is launched; a device that has not finished by then, and by ten times what was predicted, is taken for stuck.
constexpr uint64_t kStopGraceNs = 5'000'000'000;
constexpr uint64_t kStopGraceSteps = 10;
constexpr uint64_t kBooksNs = 1'000'000'000;   // the books are checked at most that often: it reads every block's count
constexpr double kPrepareRetryMs = 1000;   // a queue of texts is tokenised in about that time

template <class Handler>
net::any_completion_executor work_of(const Handler& handler, const net::any_io_executor& fallback) {
    return net::any_completion_executor(
        net::prefer(net::get_associated_executor(handler, fallback), net::execution::outstanding_work.tracked));
}

/// A submission on its way: user's thread -> pool -> engine thread -> handler's executor.
struct SubmitOperation {
    SubmitOperation(Engine::SubmitHandler h, const net::any_io_executor& executor, std::shared_ptr<Refusal> r)
        : work(work_of(h, executor)), handler(std::move(h)), io_executor(executor), refusal(std::move(r)) {}
    SubmitOperation(const SubmitOperation&) = delete;
    SubmitOperation& operator=(const SubmitOperation&) = delete;
    /// Dropped unanswered: the engine went away while its text waited for the tokeniser.
    ~SubmitOperation() {
        if (handler) complete(errc::cancelled, {});
    }

    void complete(error_code error, Reply reply) {
        net::post(io_executor, net::append(std::move(handler), error, std::move(reply)));
        work = {};
    }
    net::any_completion_executor work;
    Engine::SubmitHandler handler;
    net::any_io_executor io_executor;
    std::shared_ptr<Refusal> refusal;
    std::atomic<bool> cancelled{false};
};

void admit(EngineCore& core, const std::shared_ptr<Door>& door, SubmitOperation& op, PreparedRequest prepared) {
    if (op.cancelled.load()) return op.complete(errc::cancelled, {});
    auto on_resume = [weak = std::weak_ptr<Door>(door)](RequestId id) {
        if (auto d = weak.lock()) d->post([id](EngineCore& c) { c.resume_reader(id); });
    };
    SubmitOutcome out = core.submit(std::move(prepared), std::move(on_resume));
    if (out.error != errc::ok) {
        if (op.refusal) *op.refusal = {out.message, static_cast<double>(out.retry_after_ns) * 1e-6};
        return op.complete(out.error, {});
    }
    auto state = std::make_shared<ReplyState>(door, std::move(out.stream), out.id, out.prompt_tokens, out.cached_tokens);
    op.complete({}, Reply(std::move(state)));
}

}  // namespace

EngineState::EngineState(net::any_io_executor executor, Config config)
    : executor_(std::move(executor)), config_(std::move(config)), log_(config_.log) {}

EngineState::~EngineState() {
    if (pool_) {
        pool_->stop();
        pool_->join();
    }
    net::post(io_, [this] {
        stopping_ = true;
        if (core_) core_->cancel_all();
    });
    if (thread_.joinable()) thread_.join();
    door_->close();
    drains_.clear();
    keep_costs();
    if (is_stuck_) abandon();
    core_.reset();
}

/// Nothing that a running step names may be freed, and waiting for its end could take for ever.
void EngineState::abandon() {
    log_.write(LogLevel::error, "engine", "the device did not end its step: its memory is not given back");
    (void)core_.release();
    (void)loaded_.release();
    (void)held_clock_.release();
}

void EngineState::start(std::shared_ptr<EngineState> self, Engine::LoadHandler handler) {
    EngineState* state = self.get();
    std::promise<void> named;
    // The thread must not own the state it belongs to: it hands it to the completion. It waits until `thread_` names it, because
    // whoever gets the state may destroy it, and so join, before the assignment here has ended.
    state->thread_ = std::thread([state, named_soon = named.get_future(), self = std::move(self),
                                  handler = std::move(handler)]() mutable {
        named_soon.wait();
        const net::any_io_executor executor = state->executor_;
        net::any_completion_executor work = work_of(handler, executor);   // while loading only
        std::exception_ptr error;
        try {
            state->load();
        } catch (...) {
            error = std::current_exception();
        }
        if (error) {
            net::post(executor, [owner = std::move(self)] {});   // joined there
            net::post(executor, net::append(std::move(handler), error, Engine()));
            return;
        }
        net::post(executor, net::append(std::move(handler), error, Engine(std::move(self))));
        work = {};
        state->run_loop();
    });
    named.set_value();
}

std::string EngineState::cost_key() const {
    const DeviceCaps& caps = loaded_->device->caps();
    std::string model = loaded_->info.name;
    const DType kv_type = loaded_->core_options.runner.kv_type;
    if (kv_type != caps.kv_type) model += ", KV " + std::string(dtype_info(kv_type).name);   // another cost of context
    return cost_cache_key(caps.name, caps.num_threads, model, loaded_->info.weight_bytes);
}

/// What the cost model has learned serves the next start on this device with this model.
void EngineState::keep_costs() {
    constexpr uint64_t kWorthKeeping = 100;   // steps
    const std::string& path = config_.scheduler.profile_cache;
    if (path.empty() || !core_ || core_->device_failed() || core_->cost().snapshot().num_observed < kWorthKeeping) return;
    if (!write_cost_cache(path, cost_key(), core_->cost().save())) log_.write(LogLevel::warning, "engine", path + ": cannot be written");
}

/// Step times kept by an earlier run are compared with a few steps of this one.
void EngineState::check_kept_costs() {
    const double factor = core_->check_costs(kMostFactor, kCheckSeconds);
    if (factor <= kMostFactor) return;
    std::ostringstream message;
    message.precision(2);
    message << config_.scheduler.profile_cache << ": the step times kept for this device and model are off by a factor of " << factor
            << ", over " << kMostFactor << ": they are discarded";
    log_.write(LogLevel::warning, "engine", message.str());
}

void EngineState::load() {
    loaded_ = load_everything(config_, clock_, log_);
    const std::string& costs = config_.scheduler.profile_cache;
    if (!costs.empty()) loaded_->core_options.cost_table = read_cost_cache(costs, cost_key());
    preparer_ = std::make_unique<Preparer>(*loaded_, config_, clock_);
    EngineParts parts;
    parts.clock = &clock_;
    parts.device = loaded_->device.get();
    parts.model = loaded_->model.get();
    parts.tokenizer = &*loaded_->tokenizer;
    parts.io = &io_;
    parts.user_executor = executor_;
    Result<std::unique_ptr<EngineCore>> core = EngineCore::create(parts, loaded_->core_options);
    if (!core) throw load_error(errc::internal, config_.model.path + ": " + core.error());
    core_ = std::move(core).value();
    core_->on_exception = [this](RequestId id, const std::exception_ptr& problem) { log_exception(id, problem); };
    if (loaded_->device->caps().kind == DeviceKind::cuda && config_.device.graphs) {
        if (Status s = core_->runner().prepare_graphs(); !s) throw load_error(errc::internal, s.message);
        log_.write(LogLevel::info, "engine", std::to_string(core_->runner().num_graphs()) + " graphs recorded, " +
                                                 std::to_string(core_->runner().graph_bytes() >> 20) + " MiB");
    }
    check_kept_costs();
    // Each shape has its price there, and a guess may be half of it: the CPU's rows have theirs, which its own steps teach soon. Only
    // where it is kept for the next start.
    if (loaded_->device->caps().kind == DeviceKind::cuda && !costs.empty() && !core_->has_cost_table()) {
        const uint64_t begin_ns = clock_.now_ns();
        const bool done = core_->calibrate_costs(kCalibrationSeconds);
        log_.write(done ? LogLevel::info : LogLevel::warning, "engine",
                   done ? "step times measured in " + std::to_string((clock_.now_ns() - begin_ns) / 1'000'000) + " ms"
                        : std::string("step times could not be measured: they are learned as steps run"));
    }
    if (loaded_->device->caps().kind == DeviceKind::cpu) {
        const uint64_t begin_ns = clock_.now_ns();
        if (!core_->warm_up(kWarmUpSeconds)) throw load_error(errc::device_lost, "the first step failed");
        log_.write(LogLevel::info, "engine", "warmed up in " + std::to_string((clock_.now_ns() - begin_ns) / 1'000'000) + " ms");
    }
    uint64_t free_bytes = 0, total_bytes = 0;
    loaded_->device->memory(&free_bytes, &total_bytes);
    loaded_->plan.used = loaded_->plan.free_before - static_cast<int64_t>(free_bytes);
    has_wakeup_ = loaded_->device->set_wakeup(
        [](void* io) { net::post(*static_cast<net::io_context*>(io), [] {}); }, &io_);
    pool_ = std::make_unique<net::thread_pool>(1);
    door_->open(*core_);
    log_.write(LogLevel::info, "engine", "ready: " + loaded_->info.name + " on " + loaded_->info.device);
}

void EngineState::log_exception(RequestId id, const std::exception_ptr& problem) const {
    std::string what = "an exception of unknown type";
    try {
        std::rethrow_exception(problem);
    } catch (const std::exception& e) {
        what = e.what();
    } catch (...) {   // named above
    }
    log_.write(LogLevel::error, "engine", "request " + std::to_string(id) + " failed: " + what);
}

void EngineState::run_loop() {
#if defined(__linux__)
    // A sleep for the device ends when it is meant to, and not up to the 50 us later that the kernel allows itself otherwise.
    (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
#endif
    if (config_.device.placement == "apart") ask_for_short_turns();   // the device's threads are there, and do not take after this one
    uint64_t stop_ns = 0;
    bool reported = false;
    for (;;) {
        const bool progressed = core_->pump();
        if (core_->device_failed() && !reported) {
            reported = true;
            log_.write(LogLevel::error, "engine", std::string("device lost: ") + core_->failure());
        }
        if (stopping_) {
            const uint64_t now = clock_.now_ns();
            if (stop_ns == 0) stop_ns = now + std::max(kStopGraceNs, kStopGraceSteps * core_->expected_step_ns());
            if (core_->num_requests() == 0 && (core_->idle() || now > stop_ns)) break;
        }
        if (!progressed) idle();
    }
    watch(false);   // or the readers' thread would look out for ever
    is_stuck_ = !core_->idle();
    loaded_->device->set_wakeup(nullptr, nullptr);
}

/// In idle, once the requests of a while have left. A wrong count is a bug of ours and says so; it ends nobody's request.
void EngineState::check_books(std::optional<uint64_t>& wake_ns) {
    const uint64_t accepted = core_->metrics().accepted.load();
    if (accepted == books_accepted_) return;
    const uint64_t now = clock_.now_ns();
    if (now < books_due_ns_) {
        wake_ns = std::min(wake_ns.value_or(UINT64_MAX), books_due_ns_);
        return;
    }
    books_accepted_ = accepted;
    books_due_ns_ = now + kBooksNs;
    const std::string wrong = core_->scheduler().check_integrity();
    log_.write(wrong.empty() ? LogLevel::debug : LogLevel::error, "engine", "books " + (wrong.empty() ? "sound" : "wrong: " + wrong));
}

void EngineState::idle() {
    std::optional<uint64_t> wake = core_->next_wake_ns();
    if (core_->idle() && !stopping_) check_books(wake);
    if (stopping_) wake = std::min(wake.value_or(UINT64_MAX), clock_.now_ns() + 1'000'000);
    const std::optional<uint64_t> end = core_->predicted_end_ns();
    if (!end || core_->device_failed() || has_wakeup_) {
        watch(false);
        return wait_until(wake);
    }
    const uint64_t now = clock_.now_ns();
    // A device that knows when its next completion comes says so; else the plan's prediction stands in.
    const std::optional<uint64_t> completion = loaded_->device->next_completion_ns();
    if (config_.device.wait == "block") return wait_until(std::min(wake.value_or(UINT64_MAX), completion.value_or(now + 50'000)));
    const uint64_t due = completion.value_or(*end);
    const uint64_t margin = loaded_->core_options.wake_margin_ns;
    const uint64_t spin_from = due > margin ? due - margin : 0;
    watch(now >= spin_from && now < due + margin);
    if (config_.device.wait == "spin" || now >= spin_from) return pause_thread();
    wait_until(std::min(wake.value_or(UINT64_MAX), spin_from));
}

/// While the engine looks out for the end of a step, so does the thread that its tokens go to.
void EngineState::watch(bool on) {
    if (std::exchange(is_watching_, on) == on) return;
    DeliveryQueue& deliveries = core_->deliveries();
    if (config_.device.placement == "apart") {
        if (on) placement_.keep_off_this_core(deliveries.thread_id());
        if (!on && deliveries.is_awaited()) placement_.call_here();
    }
    deliveries.watch(on);
}

void EngineState::wait_until(std::optional<uint64_t> wake_ns) {
    if (!wake_ns) {
        io_.run_one();
        return;
    }
    const uint64_t now = clock_.now_ns();
    if (*wake_ns <= now) return;
    io_.run_one_for(std::chrono::nanoseconds(std::min<uint64_t>(*wake_ns - now, 1'000'000'000)));
}

void EngineState::submit(Request request, std::shared_ptr<Refusal> refusal, Engine::SubmitHandler handler) {
    auto op = std::make_shared<SubmitOperation>(std::move(handler), executor_, std::move(refusal));
    auto slot = net::get_associated_cancellation_slot(op->handler);
    if (slot.is_connected()) {
        slot.assign([weak = std::weak_ptr<SubmitOperation>(op)](net::cancellation_type) {
            if (auto o = weak.lock()) o->cancelled.store(true);
        });
    }
    const uint64_t arrival_ns = clock_.now_ns();
    // Texts wait for the tokeniser too: as many at most as could then run and wait.
    const int64_t bound = int64_t{config_.scheduler.max_waiting} + config_.scheduler.max_running;
    if (num_preparing_.fetch_add(1) >= bound) {
        num_preparing_.fetch_sub(1);
        core_->metrics().refused[static_cast<size_t>(errc::queue_full)].fetch_add(1, std::memory_order_relaxed);
        if (op->refusal) *op->refusal = {"the queue for tokenising is full", kPrepareRetryMs};
        return op->complete(errc::queue_full, {});
    }
    net::post(*pool_, [this, op, arrival_ns, request = std::move(request)]() mutable {
        auto prepared = std::make_shared<PreparedRequest>();
        if (!op->cancelled.load()) *prepared = preparer_->prepare(std::move(request), arrival_ns);
        num_preparing_.fetch_sub(1);
        const bool open = door_->post([door = door_, op, prepared](EngineCore& core) {
            admit(core, door, *op, std::move(*prepared));
        });
        if (!open) op->complete(errc::cancelled, {});
    });
}

void EngineState::drain(std::chrono::steady_clock::time_point deadline, Engine::DrainHandler handler) {
    auto held = std::make_shared<Engine::DrainHandler>(std::move(handler));
    auto work = std::make_shared<net::any_completion_executor>(work_of(*held, executor_));
    door_->post([this, deadline, held, work](EngineCore& core) {
        drains_.emplace_back(std::move(*held), std::move(*work));
        drain_timer_ = std::make_unique<net::steady_timer>(io_, deadline);
        drain_timer_->async_wait([this](error_code error) {
            if (error || core_->num_requests() == 0) return;
            drain_cut_ = true;
            core_->cancel_all();
        });
        // Called when the last request has left; the step it may still be in is nobody's.
        core.drain([this] { finish_drain(); });
    });
}

void EngineState::finish_drain() {
    if (drain_timer_) drain_timer_->cancel();
    const error_code error = drain_cut_ ? make_error_code(errc::deadline_exceeded) : error_code();
    // The last ends reach their readers before the word that all have ended.
    auto ended = std::make_shared<std::vector<Drain>>(std::exchange(drains_, {}));
    core_->deliveries().add_action([executor = executor_, ended, error] {
        for (auto& [handler, work] : *ended) net::post(executor, net::append(std::move(handler), error));
    });
}

}  // namespace takt::detail
