// EngineCore: the single-threaded heart. It owns the requests, the scheduler and the runner, and turns one crank: posts and
// timers, device events, plan, launch. No threads of its own: the engine's thread or a simulation calls pump().
//
// stage      thread   direction    may block  touches
// admit      engine   host         no         scheduler, request map
// plan       engine   host         no         scheduler
// stage      engine   host->device no         pinned inputs of a step not in flight
// launch     engine   device       no         stream (graph replay), event
// complete   engine   device->host no         pinned results of the completed step
// resume     engine   host         no         one request each, in a posted turn of the loop, never while events are polled
// apply      engine   host         no         scheduler, cost model, KV retirement
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <takt/config.h>
#include <takt/engine.h>

#include "kernels/device.h"
#include "model/forward.h"
#include "model/tokenizer.h"
#include "runtime/clock.h"
#include "runtime/cost_model.h"
#include "runtime/delivery_queue.h"
#include "runtime/end_forecast.h"
#include "runtime/engine_metrics.h"
#include "runtime/event.h"
#include "runtime/flight_recorder.h"
#include "runtime/late_cause.h"
#include "runtime/forward_runner.h"
#include "runtime/gate.h"
#include "runtime/kv.h"
#include "runtime/request.h"
#include "runtime/scheduler.h"
#include "runtime/task.h"

namespace takt {

/// What the core is built from; all outlive it.
struct EngineParts {
    Clock* clock = nullptr;
    Device* device = nullptr;
    Model* model = nullptr;
    const Tokenizer* tokenizer = nullptr;
    net::io_context* io = nullptr;
    net::any_io_executor user_executor;     ///< where user handlers without an executor complete
};

struct CoreOptions {
    SchedulerConfig scheduler;
    RunnerOptions runner;
    CostRoofline roofline;
    std::string cost_table;                 ///< of an earlier run on this device and model; empty: none
    int32_t pipeline_depth = 1;
    bool prefix_cache = true;
    int32_t recorder_steps = 4096;
    uint64_t wake_margin_ns = 150'000;      ///< an event is awaited by spinning this long before its predicted end
};

/// An admitted or refused submission.
struct SubmitOutcome {
    errc error = errc::ok;
    std::string message;
    uint64_t retry_after_ns = 0;
    std::shared_ptr<TokenStream> stream;
    RequestId id = 0;
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
};

class EngineCore final : public StepSources {
public:
    static Result<std::unique_ptr<EngineCore>> create(const EngineParts& parts, CoreOptions options);
    ~EngineCore() override;
    EngineCore(const EngineCore&) = delete;
    EngineCore& operator=(const EngineCore&) = delete;

    // Doors, engine thread.
    /// `on_resume` is handed to the token stream: called on the reader's thread when a paused reader has caught up.
    SubmitOutcome submit(PreparedRequest prepared, std::function<void(RequestId)> on_resume);
    void cancel(RequestId id);
    void resume_reader(RequestId id);
    /// Refuses new requests; `on_empty` when the last one has left.
    void drain(std::function<void()> on_empty);
    void cancel_all();

    /// One turn of the crank. Returns whether anything happened.
    bool pump();
    /// When pump could next do something of itself (deadline, late planning), if known.
    [[nodiscard]] std::optional<uint64_t> next_wake_ns() const;
    /// A step is in flight: the earliest that the oldest is expected to end.
    [[nodiscard]] std::optional<uint64_t> predicted_end_ns() const;
    [[nodiscard]] uint64_t expected_step_ns() const { return expected_ns_.load(); }   // of the last launched one
    [[nodiscard]] bool idle() const { return requests_.empty() && inflight_.empty(); }
    [[nodiscard]] bool device_failed() const { return failed_; }
    [[nodiscard]] const char* failure() const { return failure_; }

    [[nodiscard]] HealthSnapshot health(uint64_t now_ns) const;   // any thread
    /// What is added comes behind the chunks and ends that the readers were given before.
    [[nodiscard]] DeliveryQueue& deliveries() { return *deliveries_; }
    EngineMetrics& metrics() { return metrics_; }
    [[nodiscard]] const FlightRecorder& recorder() const { return recorder_; }
    /// Before the first request: shows the cost model its first steps, for so many seconds at most. False: the device failed.
    bool calibrate_costs(double seconds);
    /// Before the first request, with a cost table of an earlier run: by what factor it is off for a few steps, of so many seconds at most.
    /// Over `most` it is discarded. 0: there is none, or nothing could be measured.
    double check_costs(double most, double seconds);
    [[nodiscard]] bool has_cost_table() const { return has_cost_table_; }   ///< of an earlier run, and believed
    /// Before the first request, on a host device: small steps, for so many seconds at most but for the first, take the memory that the
    /// first request's would else fault in and show the cost model what they take. False: the device failed.
    bool warm_up(double seconds);
    [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
    [[nodiscard]] const KvManager& kv() const { return *kv_; }
    [[nodiscard]] ForwardRunner& runner() { return *runner_; }
    [[nodiscard]] const CostModel& cost() const { return *cost_; }
    [[nodiscard]] Clock& clock() { return *parts_.clock; }
    [[nodiscard]] const Tokenizer& tokenizer() const { return *parts_.tokenizer; }
    [[nodiscard]] size_t num_requests() const { return requests_.size(); }

    /// A request ended by an exception: it alone, with errc::internal. Set before the first request.
    std::function<void(RequestId, const std::exception_ptr&)> on_exception;

    // Hooks of the simulation: before a token is counted; after a plan was launched (or only took blocks away and has no rows); after
    // a step was applied.
    std::function<void(const RequestState&)> on_token;
    std::function<void(const StepPlan&)> on_plan;
    std::function<void(const StepPlan&, const StepOutcome&)> on_applied;

    // For request_task.cpp only.
    void note_token(RequestState& request, const Turn& turn);
    void emit(RequestState& request, Chunk chunk);
    void leave(RequestState& request);

    // StepSources
    [[nodiscard]] const RequestState& request(RequestId id) const override;
    [[nodiscard]] std::span<const int32_t> block_table(RequestId id, int32_t slot) const override;
    [[nodiscard]] uint64_t table_number(int32_t slot) const override { return kv_->table_number(slot); }

private:
    struct InFlight {
        StepPlan plan;
        Ticket ticket;
        uint64_t launched_ns = 0;
        uint64_t host_ns = 0, plan_ns = 0;
        uint64_t predicted_end_ns = 0;
        int32_t num_late = 0;              // gaps that its tokens ended
        uint64_t late_ns = 0, latest_ns = 0;
        LateCause latest_cause = LateCause::device;
        bool is_untried = false;           // larger by far than every step that has ended
    };

    EngineCore(const EngineParts& parts, CoreOptions options);
    bool try_launch();
    [[nodiscard]] uint64_t earliest_end_ns(const InFlight& step) const;
    [[nodiscard]] uint64_t plan_due_ns() const;
    void launched(std::unique_ptr<InFlight> step, uint64_t plan_begin_ns);
    void take_slot(int32_t slot, RequestId id, uint64_t now_ns);
    [[nodiscard]] RequestState* find(const PlanSegment& segment) const;
    void prefetch(const PlanSegment& segment, void (RequestState::*part)() const) const;
    [[nodiscard]] uint64_t last_launched_step(const RequestState& state) const;
    void await_front();
    void complete(InFlight& step, Status status);
    void deliver(const InFlight& step, uint64_t now_ns);
    void resume_woken();
    void apply(InFlight& step, uint64_t now_ns);
    void record(const InFlight& step, uint64_t now_ns, uint64_t device_ns);
    [[nodiscard]] bool is_untried(const StepFeatures& step) const;
    void note_untried();
    void fail_device(const char* why);
    bool check_deadlines(uint64_t now_ns);
    void end_request(RequestState& request, errc error);
    void count_late(RequestState& request, const Turn& turn, uint64_t gap_ns, uint64_t promised_ns);
    void update_gauges();

    EngineParts parts_;
    CoreOptions options_;
    EngineMetrics metrics_;
    FlightRecorder recorder_;
    std::unique_ptr<CostModel> cost_;
    std::unique_ptr<KvManager> kv_;
    std::unique_ptr<Scheduler> scheduler_;
    std::unique_ptr<ForwardRunner> runner_;
    EventQueue events_;
    Gate gate_;
    const std::shared_ptr<DeliveryQueue> deliveries_;   // also held by the streams

    std::unordered_map<RequestId, std::shared_ptr<RequestState>> requests_;   // looked up, never iterated for decisions
    /// Who was last launched in a slot: what a step needs of its requests without a look-up each.
    struct SlotUse {
        RequestId id = 0;
        RequestState* state = nullptr;   // null where that request has left
        uint64_t last_step = 0;
    };
    std::vector<SlotUse> slots_;           // [max_running]
    std::vector<RequestState::Waiter> woken_;   // have a turn, to be resumed next
    std::set<std::pair<uint64_t, RequestId>> deadlines_;   // of live requests that have one
    std::deque<std::unique_ptr<InFlight>> inflight_;
    std::vector<std::unique_ptr<InFlight>> spare_;      // plans keep their memory
    RequestId next_id_ = 1;
    bool dirty_ = true;                    // something changed since the last empty plan
    bool has_cost_table_ = false;
    bool failed_ = false;
    double host_ns_ = 100'000;             // EMA: plan + stage + launch
    EndForecast forecast_;
    StepOutcome outcome_;                  // reused
    const char* failure_ = "";
    struct Freeing {
        uint64_t step;
        uint64_t cancel_ns;
    };
    std::deque<Freeing> freeing_;          // cancelled requests whose blocks a launched step still names

    int32_t tried_rows_ = 0;               // the most of a step that has ended
    int64_t tried_context_ = 0;

    // Read by health() from any thread.
    std::atomic<uint64_t> progress_ns_{0};
    std::atomic<uint64_t> inflight_since_ns_{0};   // 0: nothing in flight
    std::atomic<uint64_t> expected_ns_{0};
    std::atomic<bool> is_untried_{false};          // of what is in flight
    std::atomic<bool> lost_{false};
    std::atomic<bool> draining_{false};
};

/// The life of one request, from admission to its last chunk. In request_task.cpp.
Task<void> run_request(EngineCore& core, std::shared_ptr<RequestState> request);

}  // namespace takt
