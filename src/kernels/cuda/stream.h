// CudaStream: a CUDA stream with takt's events, captures and sticky failure. Small copies from pinned memory are collected, since each
// transfer of its own would cost microseconds between two steps: they travel with the graph that comes next (input_fetch.h), else
// as one launch before whatever does. Engine thread only.
#pragma once

#include <deque>
#include <memory>

#include "kernels/cuda/graph.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/small_kernels.h"

namespace takt::cuda {

class CudaDevice;

class CudaStream final : public NativeStream {
public:
    /// Owns `native` from here on.
    CudaStream(CudaDevice& device, uint32_t id, cudaStream_t native);
    /// Waits for what was queued.
    ~CudaStream() override;

    [[nodiscard]] cudaStream_t native() const override { return native_; }
    Status begin_operation(const void* params, size_t bytes) override;
    Status end_operation(Status status) override;

    [[nodiscard]] uint32_t id() const override { return id_; }
    [[nodiscard]] Device& device() override;
    Status copy(void* dst, const void* src, size_t bytes) override;
    Status fill(void* dst, uint8_t value, size_t bytes) override;
    Event record() override;
    Status wait(Event event) override;
    Status stamp(uint64_t* base, const int32_t* index, size_t stride) override;
    /// Waits until the stream is idle: the linear layers may time their kernels on the step's buffers inside the capture.
    Status begin_capture() override;
    Result<std::unique_ptr<Graph>> end_capture() override;
    Status launch(Graph& graph) override;
    [[nodiscard]] uint64_t completed() override;
    [[nodiscard]] Status error() override;
    Status synchronize() override;

private:
    struct Outstanding {
        uint64_t value;
        cudaEvent_t event;
    };
    Status capture_failure(Status status);   // the first one is what end_capture reports
    Status failure(Status status);           // sticky: all events become ready
    Status check(cudaError_t e);
    [[nodiscard]] Status failed() const;
    /// Whether the copy was collected; flushes where it has to come after what is collected already.
    [[nodiscard]] bool collect(void* dst, const void* src, size_t bytes);
    Status flush();
    /// Pinned memory that operations write may not be read ahead of them.
    void note_written(const void* data);

    CudaDevice& device_;
    const uint32_t id_;
    const cudaStream_t native_;
    std::unique_ptr<CudaGraph> capture_;
    Status capture_status_;
    std::shared_ptr<InputFetch> fetch_;   // made at the first capture
    CopyPieces collected_;
    uint64_t collected_bytes_ = 0;
    std::deque<Outstanding> outstanding_;
    uint64_t recorded_ = 0, completed_ = 0;
    uint64_t slot_uses_[2] = {};   // of fetch_: the record behind which the launch that had the slot is over
    Status error_;
};

}   // namespace takt::cuda
