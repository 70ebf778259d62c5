// Order, events, captures and failure of a CUDA stream; see stream.h.
#include "kernels/cuda/stream.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/device.h"
#include "kernels/cuda/ops_launch.h"

namespace takt::cuda {
namespace {

// Together they fit a fetch's slot; larger copies are transfers of their own.
constexpr size_t kMostCollectedBytes = kFetchSlotBytes - kFetchHeaderBytes - 16 * kMaxPieces;

constexpr Status kForbiddenInCapture{kStatusNotInCapture, "not allowed while the stream is being captured"};
constexpr Status kPageableInCapture{kStatusNotInCapture, "a capture may name device and pinned memory only"};

bool is_pinned(const std::optional<Allocation>& a) { return a.has_value() && a->kind == MemoryKind::pinned; }
bool is_device(const std::optional<Allocation>& a) { return a.has_value() && a->kind == MemoryKind::device; }

}   // namespace

CudaStream::CudaStream(CudaDevice& device, uint32_t id, cudaStream_t native)
    : device_(device), id_(id), native_(native) {
    device_.streams_.push_back(this);
}

CudaStream::~CudaStream() {
    if (capture_ != nullptr) (void)end_capture();
    (void)synchronize();
    if (fetch_ != nullptr) fetch_->release_owner();
    for (const Outstanding& o : outstanding_) device_.events_.give_back(o.event);
    auto& all = device_.streams_;
    all.erase(std::find(all.begin(), all.end(), this));
    cudaStreamDestroy(native_);
}

Device& CudaStream::device() { return device_; }

Status CudaStream::capture_failure(Status status) {
    if (capture_status_.ok()) capture_status_ = status;
    return status;
}

Status CudaStream::failed() const {
    return error_.ok() ? Status{} : Status{kStatusStreamFailed, "an earlier operation of the stream failed"};
}

Status CudaStream::failure(Status status) {
    if (error_.ok()) error_ = status;
    cudaGetLastError();
    for (const Outstanding& o : outstanding_) device_.events_.give_back(o.event);
    outstanding_.clear();
    collected_.num_pieces = 0;
    collected_bytes_ = 0;
    completed_ = recorded_;
    return status;
}

Status CudaStream::check(cudaError_t e) {
    if (e == cudaSuccess) return {};
    return capture_ != nullptr ? capture_failure(status_of(e)) : failure(status_of(e));
}

void CudaStream::note_written(const void* data) {
    const auto found = device_.allocations().find(data, 1);
    if (is_pinned(found)) device_.written_.insert(found->serial);
}

Status CudaStream::begin_operation(const void* params, size_t bytes) {
    const auto* words = static_cast<const uint8_t*>(params);
    for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
        const void* word = nullptr;
        std::memcpy(&word, words + at, sizeof(word));
        if (word != nullptr) note_written(word);   // which of its parameters it writes is the operation's own affair
    }
    if (capture_ != nullptr) {
        capture_->memory().scan(device_.allocations(), params, bytes);
        return {};
    }
    if (const Status s = failed(); !s.ok()) return s;
    return flush();
}

Status CudaStream::end_operation(Status status) {
    if (status.ok()) return status;
    return capture_ != nullptr ? capture_failure(status) : failure(status);
}

bool CudaStream::collect(void* dst, const void* src, size_t bytes) {
    const Allocations& all = device_.allocations();
    const std::optional<Allocation> source = all.find(src, bytes);
    if (bytes > kMostCollectedBytes || !is_pinned(source) || device_.written_.contains(source->serial)) return false;
    if (!is_device(all.find(dst, bytes))) return false;
    auto* to = static_cast<uint8_t*>(dst);
    const auto* begin = collected_.pieces;
    const bool overlaps = std::any_of(begin, begin + collected_.num_pieces, [&](const CopyPieces::Piece& p) {
        return to < p.dst + p.bytes && p.dst < to + bytes;
    });
    if (overlaps || collected_.num_pieces == kMaxPieces || collected_bytes_ + bytes > kMostCollectedBytes) {
        if (!flush().ok()) return true;   // the stream has failed: nothing has an effect any more
    }
    collected_.pieces[collected_.num_pieces++] = {to, static_cast<const uint8_t*>(src), bytes};
    collected_bytes_ += bytes;
    return true;
}

Status CudaStream::flush() {
    if (collected_.num_pieces == 0) return {};
    const Status s = run_copy_pieces(native_, collected_);
    collected_.num_pieces = 0;
    collected_bytes_ = 0;
    return s.ok() ? s : failure(s);
}

Status CudaStream::copy(void* dst, const void* src, size_t bytes) {
    if (bytes == 0) return {};
    const Allocations& all = device_.allocations();
    note_written(dst);
    if (capture_ != nullptr) {
        if (!all.capturable(dst, bytes) || !all.capturable(src, bytes)) return capture_failure(kPageableInCapture);
        capture_->memory().add(all, dst);
        capture_->memory().add(all, src);
    } else {
        if (const Status s = failed(); !s.ok()) return s;
        if (collect(dst, src, bytes)) return failed();
        if (const Status s = flush(); !s.ok()) return s;
    }
    if (is_pinned(all.find(dst, bytes)) && is_pinned(all.find(src, bytes))) {
        // The library would copy from host to host at once, before what is queued.
        CopyPieces one;
        one.pieces[one.num_pieces++] = {static_cast<uint8_t*>(dst), static_cast<const uint8_t*>(src), bytes};
        return end_operation(run_copy_pieces(native_, one));
    }
    return check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, native_));
}

Status CudaStream::fill(void* dst, uint8_t value, size_t bytes) {
    if (bytes == 0) return {};
    const Allocations& all = device_.allocations();
    const bool reachable = all.capturable(dst, bytes);
    note_written(dst);
    if (capture_ != nullptr) {
        if (!reachable) return capture_failure(kPageableInCapture);
        capture_->memory().add(all, dst);
    } else {
        if (const Status s = failed(); !s.ok()) return s;
        if (!reachable) return {kStatusBadArgument, "CUDA: only device and pinned memory can be filled"};
        if (const Status s = flush(); !s.ok()) return s;
    }
    return check(cudaMemsetAsync(dst, value, bytes, native_));
}

Status CudaStream::stamp(uint64_t* base, const int32_t* index, size_t stride) {
    const Allocations& all = device_.allocations();
    if (!all.capturable(base, sizeof(*base))) {
        const Status refused = capture_ != nullptr
                                   ? kPageableInCapture
                                   : Status{kStatusBadArgument, "CUDA: stamps go to device and pinned memory"};
        return capture_ != nullptr ? capture_failure(refused) : refused;
    }
    const void* named[] = {base, index};
    if (const Status s = begin_operation(named, sizeof(named)); !s.ok()) return s;
    return end_operation(run_stamp(native_, base, index, stride));
}

Event CudaStream::record() {
    if (capture_ != nullptr) {
        (void)capture_failure(kForbiddenInCapture);
        return {id_, recorded_};
    }
    (void)flush();
    const uint64_t value = ++recorded_;
    cudaEvent_t event = error_.ok() ? device_.events_.take() : nullptr;
    if (event == nullptr) {
        // A failed stream's events are ready at once; one that has no event to give fails here.
        (void)failure({kStatusDeviceLost, "CUDA: no event could be made"});
        return {id_, value};
    }
    outstanding_.push_back({value, event});
    (void)check(cudaEventRecord(event, native_));
    return {id_, value};
}

Status CudaStream::wait(Event event) {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    if (const Status s = failed(); !s.ok()) return s;
    if (event.stream_id == id_) return {};
    if (const Status s = flush(); !s.ok()) return s;
    const CudaStream* other = device_.find_stream(event.stream_id);
    if (other == nullptr || other->completed_ >= event.value) return {};
    const auto& open = other->outstanding_;
    const auto at = std::find_if(open.begin(), open.end(), [&](const Outstanding& o) { return o.value == event.value; });
    if (at == open.end()) return {kStatusBadArgument, "CUDA: the event to wait for was never recorded"};
    return check(cudaStreamWaitEvent(native_, at->event, 0));
}

Status CudaStream::begin_capture() {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    if (const Status s = synchronize(); !s.ok()) return s;
    if (fetch_ == nullptr) fetch_ = InputFetch::create(native_);
    // Relaxed: the linear layers may time their kernels on a stream of their own meanwhile; what a capture may not do is
    // refused above and in CudaDevice::alloc.
    if (const cudaError_t e = cudaStreamBeginCapture(native_, cudaStreamCaptureModeRelaxed); e != cudaSuccess) {
        return failure(status_of(e));
    }
    capture_ = std::make_unique<CudaGraph>(fetch_);
    capture_status_ = {};
    ++device_.num_capturing_;
    if (fetch_ != nullptr) (void)end_operation(fetch_->record(native_));
    return {};
}

Result<std::unique_ptr<Graph>> CudaStream::end_capture() {
    if (capture_ == nullptr) return Error{"end_capture without begin_capture"};
    --device_.num_capturing_;
    std::unique_ptr<CudaGraph> graph = std::move(capture_);
    cudaGraph_t recorded = nullptr;
    cudaError_t e = cudaStreamEndCapture(native_, &recorded);
    if (e == cudaSuccess && capture_status_.ok()) e = graph->instantiate(recorded, native_);
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    if (e != cudaSuccess) {
        cudaGetLastError();
        (void)capture_failure(status_of(e));
    }
    if (!capture_status_.ok()) return Error{std::string("the capture failed: ") + capture_status_.message};
    return std::unique_ptr<Graph>(std::move(graph));
}

Status CudaStream::launch(Graph& graph) {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    if (const Status s = failed(); !s.ok()) return s;
    auto* own = dynamic_cast<CudaGraph*>(&graph);
    if (own == nullptr) return {kStatusBadArgument, "the graph was captured on another kind of device"};
    if (!own->memory().alive(device_.allocations())) {
        return {kStatusBadArgument, "the graph names memory that was freed after its capture"};
    }
    if (own->fetch() == nullptr || !InputFetch::fits(collected_)) {
        if (const Status s = flush(); !s.ok()) return s;
    }
    if (own->fetch() == nullptr) return check(cudaGraphLaunch(own->exec(), native_));
    const bool is_mine = own->fetch() == fetch_.get();
    uint64_t& use = slot_uses_[own->fetch()->next_slot()];
    const cudaError_t e = own->fetch()->launch(native_, collected_, own->exec(), is_mine && completed_ >= use);
    if (is_mine) use = recorded_ + 1;
    collected_.num_pieces = 0;
    collected_bytes_ = 0;
    return check(e);
}

uint64_t CudaStream::completed() {
    while (!outstanding_.empty()) {
        const cudaError_t e = cudaEventQuery(outstanding_.front().event);
        if (e == cudaErrorNotReady) {
            cudaGetLastError();   // that it is not ready is no error
            break;
        }
        if (e != cudaSuccess) {
            (void)failure(status_of(e));
            break;
        }
        completed_ = outstanding_.front().value;
        device_.events_.give_back(outstanding_.front().event);
        outstanding_.pop_front();
    }
    return completed_;
}

Status CudaStream::error() { return error_; }

Status CudaStream::synchronize() {
    if (capture_ != nullptr) return capture_failure(kForbiddenInCapture);
    if (error_.ok()) (void)flush();
    if (error_.ok()) {
        if (const cudaError_t e = cudaStreamSynchronize(native_); e != cudaSuccess) (void)failure(status_of(e));
    }
    (void)completed();
    return error_;
}

}   // namespace takt::cuda
