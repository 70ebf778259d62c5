// CudaDevice: one GPU as a device. Owns its memory's books, the pool of events, the streams' register and the scratch of the linear
// layers; the streams are in stream.h, the operations in ops.h. Driven by one thread; knows no models and no clock but the GPU's.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "kernels/allocations.h"
#include "kernels/cuda/event_pool.h"
#include "kernels/cuda/linear.h"
#include "kernels/device.h"
#include "kernels/device_factory.h"

namespace takt::cuda {

class CudaStream;

class CudaDevice final : public Device {
public:
    /// Fails with a sentence where no driver or device answers, or this build has no code for it.
    static Result<std::unique_ptr<CudaDevice>> create(const CudaDeviceOptions& options);
    ~CudaDevice() override;

    [[nodiscard]] const DeviceCaps& caps() const override { return caps_; }
    void memory(uint64_t* free_bytes, uint64_t* total_bytes) override;
    Result<Buffer> alloc(size_t bytes, MemoryKind kind) override;
    void free(void* data, size_t bytes, MemoryKind kind) override;
    Result<std::unique_ptr<Stream>> stream(int priority) override;
    [[nodiscard]] const OpTable& ops() const override;
    [[nodiscard]] std::vector<int32_t> row_ladder(int32_t max_running, int32_t max_rows) const override;
    Result<std::unique_ptr<Linear>> make_linear(std::span<const HostTensor> parts, LinearKind kind) override;
    Result<std::unique_ptr<Embedding>> make_embedding(const HostTensor& table, const Linear* tied_head) override;
    Result<Buffer> make_vector(const HostTensor& vector) override;
    [[nodiscard]] size_t linear_scratch_bytes(int64_t widest_in, int64_t widest_out) const override;
    [[nodiscard]] size_t graph_bytes() const override;
    /// Nothing to run by hand: events are looked at by Stream::completed.
    bool poll(int) override { return false; }
    bool set_wakeup(void (*)(void*), void*) override { return false; }

    [[nodiscard]] const Allocations& allocations() const { return allocations_; }

private:
    friend class CudaStream;
    explicit CudaDevice(const CudaDeviceOptions& options) : options_(options) {}
    Status open();
    void read_caps();
    Status make_current() const;   // the calling thread's device
    [[nodiscard]] CudaStream* find_stream(uint32_t id) const;

    const CudaDeviceOptions options_;
    DeviceCaps caps_;
    Allocations allocations_;
    EventPool events_;
    std::unordered_set<uint64_t> written_;   // serials of pinned memory that operations write: not to be read ahead of them
    std::shared_ptr<LinearContext> linear_;
    std::vector<CudaStream*> streams_;
    uint32_t next_stream_id_ = 1;
    int num_capturing_ = 0;
};

}   // namespace takt::cuda
