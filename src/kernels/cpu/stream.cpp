// The engine's side of a CPU stream: queueing, capturing, poisoning. The entries run in dispatch.cpp.
#include "kernels/cpu/stream.h"

#include <algorithm>
#include <cstring>

#include "kernels/assert.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/graph.h"

namespace takt::cpu {
namespace {

constexpr uint8_t kPoison = 0xA5;
// Copies from here on are shared by all compute threads; smaller ones are over sooner than a barrier is.
constexpr size_t kParallelCopyBytes = size_t{1} << 20;
constexpr size_t kCopyPieceBytes = 4096;

struct CopyParams {
    void* dst;
    const void* src;
    size_t bytes;
};

struct FillParams {
    void* dst;
    size_t bytes;
    uint8_t value;
};

struct StampParams {
    uint64_t* base;
    const int32_t* index;
    size_t stride;
    TimeSource time;
};

/// The part of `bytes` that a thread handles: whole pieces, in order.
struct Share {
    size_t begin, bytes;
};
Share share_of(size_t bytes, const TaskContext& context) {
    const size_t pieces = (bytes + kCopyPieceBytes - 1) / kCopyPieceBytes;
    const auto n = static_cast<size_t>(context.num_threads);
    const auto t = static_cast<size_t>(context.thread);
    const size_t begin = std::min(bytes, pieces * t / n * kCopyPieceBytes);
    const size_t end = std::min(bytes, pieces * (t + 1) / n * kCopyPieceBytes);
    return {begin, end - begin};
}

void run_copy(TaskContext& context, const void* params) {
    const auto& p = *static_cast<const CopyParams*>(params);
    const Share share = share_of(p.bytes, context);
    if (share.bytes > 0) {
        std::memmove(static_cast<uint8_t*>(p.dst) + share.begin, static_cast<const uint8_t*>(p.src) + share.begin, share.bytes);
    }
}

void run_fill(TaskContext& context, const void* params) {
    const auto& p = *static_cast<const FillParams*>(params);
    const Share share = share_of(p.bytes, context);
    if (share.bytes > 0) std::memset(static_cast<uint8_t*>(p.dst) + share.begin, p.value, share.bytes);
}

void run_stamp(TaskContext&, const void* params) {
    const auto& p = *static_cast<const StampParams*>(params);
    const size_t index = p.index == nullptr ? 0 : static_cast<size_t>(*p.index);
    p.base[index * p.stride] = p.time.now();
}

constexpr Status kForbiddenInCapture{kStatusNotInCapture, "not allowed while the stream is being captured"};
constexpr Status kPageableInCapture{kStatusNotInCapture, "a capture may name device and pinned memory only"};

}  // namespace

CpuStream::CpuStream(CpuDevice& device, uint32_t id, int priority) : device_(device), id_(id), priority_(priority) {
    device_.attach(this);
}

CpuStream::~CpuStream() {
    if (capture_ != nullptr) --device_.num_capturing_;
    device_.detach(this);
}

Device& CpuStream::device() { return device_; }

void CpuStream::Entry::set_params(const void* params, size_t bytes) {
    num_params = static_cast<uint32_t>(bytes);
    uint8_t* to = inline_params;
    if (bytes > sizeof(inline_params)) {
        heap_params = std::make_unique<uint8_t[]>(bytes);
        to = heap_params.get();
    }
    if (bytes > 0) std::memcpy(to, params, bytes);
}

Status CpuStream::add(Task run, const void* params, size_t bytes, bool single) {
    if (capture_ != nullptr) {
        capture_->add(run, params, bytes, single, device_.allocations());
        return {};
    }
    if (failed_.load(std::memory_order_acquire)) return {kStatusStreamFailed, "an earlier operation of the stream failed"};
    Entry entry;
    entry.run = run;
    entry.single = single;
    entry.set_params(params, bytes);
    device_.push(*this, std::move(entry));
    return {};
}

Status CpuStream::enqueue(Task run, const void* params, size_t bytes) { return add(run, params, bytes, false); }
Status CpuStream::enqueue_single(Task run, const void* params, size_t bytes) { return add(run, params, bytes, true); }

void CpuStream::note_rows(const int32_t* rows) {
    if (capture_ != nullptr) capture_->set_rows(rows);
}

Status CpuStream::capture_failure(Status status) {
    if (capture_ != nullptr && capture_status_.ok()) capture_status_ = status;
    return status;
}

bool CpuStream::is_queued(const void* data, size_t bytes) const {
    const std::optional<Allocation> found = device_.allocations().find(data, bytes);
    const uint8_t* begin = found.has_value() ? found->data : static_cast<const uint8_t*>(data);
    const uint8_t* end = begin + (found.has_value() ? found->bytes : bytes);
    const std::lock_guard lock(device_.mutex_);
    return std::any_of(queue_.begin(), queue_.end(), [&](const Entry& entry) {
        if (entry.graph != nullptr) return !found.has_value() || entry.graph->memory().names(*found);
        for (size_t at = 0; at + sizeof(void*) <= entry.num_params; at += sizeof(void*)) {
            const uint8_t* word = nullptr;
            std::memcpy(&word, entry.params() + at, sizeof(word));
            if (word >= begin && word < end) return true;
        }
        return false;
    });
}

void CpuStream::poison(void* data, size_t bytes) {
    // On a failed stream the operation will be refused: its output stays as it is.
    if (!device_.manual() || capture_ != nullptr || bytes == 0 || failed_.load(std::memory_order_acquire)) return;
    if (!is_queued(data, bytes)) std::memset(data, kPoison, bytes);
}

Status CpuStream::copy(void* dst, const void* src, size_t bytes) {
    if (bytes == 0) return {};
    const Allocations& all = device_.allocations();
    if (capture_ != nullptr && !(all.capturable(dst, bytes) && all.capturable(src, bytes))) {
        return capture_failure(kPageableInCapture);
    }
    poison(dst, bytes);
    const CopyParams params{dst, src, bytes};
    return add(run_copy, &params, sizeof(params), bytes < kParallelCopyBytes);
}

Status CpuStream::fill(void* dst, uint8_t value, size_t bytes) {
    if (bytes == 0) return {};
    if (capture_ != nullptr && !device_.allocations().capturable(dst, bytes)) return capture_failure(kPageableInCapture);
    poison(dst, bytes);
    const FillParams params{dst, bytes, value};
    return add(run_fill, &params, sizeof(params), bytes < kParallelCopyBytes);
}

Status CpuStream::stamp(uint64_t* base, const int32_t* index, size_t stride) {
    if (capture_ != nullptr && !device_.allocations().capturable(base, sizeof(*base))) {
        return capture_failure(kPageableInCapture);
    }
    const StampParams params{base, index, stride, device_.time()};
    return add(run_stamp, &params, sizeof(params), true);
}

Event CpuStream::record() {
    if (capture_ != nullptr) {
        static_cast<void>(capture_failure(kForbiddenInCapture));
        return {id_, recorded_};
    }
    Entry entry;
    entry.kind = Entry::Kind::record;
    entry.event = {id_, ++recorded_};
    const Event event = entry.event;
    device_.push(*this, std::move(entry));
    return event;
}

Status CpuStream::wait(Event event) {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    if (event.stream_id == id_) return {};
    Entry entry;
    entry.kind = Entry::Kind::wait;
    entry.event = event;
    device_.push(*this, std::move(entry));
    return {};
}

Status CpuStream::begin_capture() {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    capture_ = std::make_unique<CpuGraph>();
    capture_status_ = {};
    ++device_.num_capturing_;
    return {};
}

Result<std::unique_ptr<Graph>> CpuStream::end_capture() {
    if (capture_ == nullptr) return Error{"end_capture without begin_capture"};
    --device_.num_capturing_;
    std::unique_ptr<CpuGraph> graph = std::move(capture_);
    if (!capture_status_.ok()) return Error{std::string("the capture failed: ") + capture_status_.message};
    return std::unique_ptr<Graph>(std::move(graph));
}

Status CpuStream::launch(Graph& graph) {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    if (failed_.load(std::memory_order_acquire)) return {kStatusStreamFailed, "an earlier operation of the stream failed"};
    auto* own = dynamic_cast<CpuGraph*>(&graph);
    if (own == nullptr) return {kStatusBadArgument, "the graph was captured on another kind of device"};
    if (!own->memory().alive(device_.allocations())) {
        return {kStatusBadArgument, "the graph names memory that was freed after its capture"};
    }
    Entry entry;
    entry.kind = Entry::Kind::launch;
    entry.graph = own;
    device_.push(*this, std::move(entry));
    return {};
}

Status CpuStream::error() {
    if (!failed_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(device_.mutex_);
    return error_;
}

Status CpuStream::synchronize() {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    return device_.synchronize(*this);
}

}  // namespace takt::cpu
