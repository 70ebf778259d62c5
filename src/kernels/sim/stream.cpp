// The sim device's FIFO: what has come to its time takes effect, in order. See device.h.
#include <algorithm>
#include <cstring>

#include "kernels/sim/device.h"

namespace takt::sim {

SimStream::~SimStream() {
    if (capture_) --device_.num_capturing_;
    auto& all = device_.streams_;
    all.erase(std::find(all.begin(), all.end(), this));
}

Device& SimStream::device() { return device_; }

Status SimStream::add(SimOperation operation) {
    if (capture_) {
        capture_->push_back(std::move(operation));
        return {};
    }
    operation.issued_ns = device_.time_.now();
    queue_.push_back(std::move(operation));
    return {};
}

Status SimStream::forbid(const char* what) {
    if (capture_status_.ok()) capture_status_ = {kStatusNotInCapture, what};
    return capture_status_;
}

bool SimStream::may_name(const void* data, size_t bytes) const {
    return !capture_ || device_.allocations_.capturable(data, bytes);
}

Status SimStream::copy(void* dst, const void* src, size_t bytes) {
    if (bytes == 0) return {};
    if (!may_name(dst, bytes) || !may_name(src, bytes)) return forbid("a copy of pageable memory inside a capture");
    SimOperation o;
    o.kind = SimOperation::Kind::copy;
    o.dst = dst;
    o.src = src;
    o.bytes = bytes;
    return add(std::move(o));
}

Status SimStream::fill(void* dst, uint8_t value, size_t bytes) {
    if (bytes == 0) return {};
    if (!may_name(dst, bytes)) return forbid("pageable memory filled inside a capture");
    SimOperation o;
    o.kind = SimOperation::Kind::fill;
    o.dst = dst;
    o.value = value;
    o.bytes = bytes;
    return add(std::move(o));
}

Event SimStream::record() {
    if (capture_) {
        (void)forbid("an event recorded inside a capture");
        return {id_, recorded_};
    }
    SimOperation o;
    o.kind = SimOperation::Kind::record;
    o.event = {id_, ++recorded_};
    (void)add(std::move(o));
    return {id_, recorded_};
}

Status SimStream::wait(Event event) {
    if (capture_) return forbid("a wait inside a capture");
    SimOperation o;
    o.kind = SimOperation::Kind::wait;
    o.event = event;
    return add(std::move(o));
}

Status SimStream::stamp(uint64_t* base, const int32_t* index, size_t stride) {
    if (!may_name(base, sizeof(*base))) return forbid("pageable memory stamped inside a capture");
    SimOperation o;
    o.kind = SimOperation::Kind::stamp;
    o.dst = base;
    o.src = index;
    o.bytes = stride;
    return add(std::move(o));
}

Status SimStream::enqueue_step(const SimStepParams& params) {
    SimOperation o;
    o.kind = SimOperation::Kind::step;
    o.step = std::make_shared<const SimStepParams>(params);
    return add(std::move(o));
}

Status SimStream::begin_capture() {
    if (capture_) return forbid("a capture is running already");
    capture_.emplace();
    capture_status_ = {};
    ++device_.num_capturing_;
    return {};
}

Result<std::unique_ptr<Graph>> SimStream::end_capture() {
    if (!capture_) return Error{"no capture is running"};
    std::vector<SimOperation> operations = std::move(*capture_);
    capture_.reset();
    --device_.num_capturing_;
    if (!capture_status_) return Error{capture_status_.message};
    auto graph = std::make_unique<SimGraph>(std::move(operations));
    for (const SimOperation& o : graph->operations()) {
        if (o.dst != nullptr) graph->memory().add(device_.allocations_, o.dst);
        if (o.src != nullptr) graph->memory().add(device_.allocations_, o.src);
        if (o.step) graph->memory().scan(device_.allocations_, o.step.get(), sizeof(SimStepParams));
    }
    return std::unique_ptr<Graph>(std::move(graph));
}

Status SimStream::launch(Graph& graph) {
    if (capture_) return forbid("a graph launched inside a capture");
    auto* own = dynamic_cast<SimGraph*>(&graph);
    if (own == nullptr) return {kStatusBadArgument, "the graph was captured on another kind of device"};
    SimGraph& recorded = *own;
    if (!recorded.memory().alive(device_.allocations_)) return {kStatusBadArgument, "memory that the graph names was freed"};
    for (const SimOperation& o : recorded.operations()) (void)add(o);
    return {};
}

uint64_t SimStream::completed() {
    advance(device_.time_.now());
    return completed_;
}

Status SimStream::synchronize() {
    if (capture_) return forbid("a synchronisation inside a capture");
    // Teardown and load only: time is not waited for.
    for (bool again = true; again && !queue_.empty();) {
        again = false;
        for (SimStream* s : device_.streams_) again |= s->advance(UINT64_MAX - 1);
    }
    if (!queue_.empty()) return {kStatusDeviceLost, "the stream is stuck"};
    return error_;
}

void SimStream::execute(const SimOperation& o) {
    switch (o.kind) {
        case SimOperation::Kind::copy: std::memcpy(o.dst, o.src, o.bytes); break;
        case SimOperation::Kind::fill: std::memset(o.dst, o.value, o.bytes); break;
        case SimOperation::Kind::stamp: {
            const auto* index = static_cast<const int32_t*>(o.src);
            const size_t at = index == nullptr ? 0 : static_cast<size_t>(*index) * o.bytes;
            static_cast<uint64_t*>(o.dst)[at] = time_ns_;
            break;
        }
        case SimOperation::Kind::step:
            run_step(*o.step);
            device_.spoil_samples(*o.step);
            break;
        default: break;
    }
}

/// The front operation, if its time has come. Returns whether the next one may be looked at.
bool SimStream::finish_front(uint64_t now_ns, bool& progressed) {
    const SimOperation& o = queue_.front();
    time_ns_ = std::max(time_ns_, o.issued_ns);
    if (o.kind == SimOperation::Kind::wait) {
        for (const SimStream* s : device_.streams_) {
            if (s->id_ != o.event.stream_id || s->completed_ >= o.event.value) continue;
            return false;
        }
    } else if (o.kind == SimOperation::Kind::record) {
        completed_ = o.event.value;   // also on a failed stream: nobody waits for ever
    } else if (error_.ok() && o.kind == SimOperation::Kind::step) {
        if (stalled_) return false;
        if (!front_end_ns_) {
            const std::optional<uint64_t> duration = device_.step_duration_ns(*o.step);
            if (!duration) {
                error_ = {kStatusInjectedFault, "the sim device failed as it was told to"};
                queue_.pop_front();
                return true;
            }
            stalled_ = *duration == UINT64_MAX;
            if (stalled_) return false;
            front_end_ns_ = time_ns_ + *duration;
        }
        if (*front_end_ns_ > now_ns) return false;
        time_ns_ = *front_end_ns_;
        front_end_ns_.reset();
        execute(o);
    } else if (error_.ok()) {
        execute(o);
    }
    queue_.pop_front();
    progressed = true;
    return true;
}

bool SimStream::advance(uint64_t now_ns) {
    bool progressed = false;
    while (!queue_.empty() && finish_front(now_ns, progressed)) {
    }
    return progressed;
}

}  // namespace takt::sim
