// SimDevice: a device without arithmetic. Operations of a stream take effect in order at their time on the time source; a step's
// time comes from a profile with seeded noise and faults. Nothing is visible before its time. One thread (the engine's) drives it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/allocations.h"
#include "kernels/device.h"
#include "kernels/device_factory.h"
#include "kernels/ops.h"
#include "kernels/sim/profile.h"

namespace takt::sim {

class SimDevice;

/// One queued operation.
struct SimOperation {
    enum class Kind : uint8_t { copy, fill, stamp, record, wait, step, fail } kind = Kind::copy;
    uint64_t issued_ns = 0;
    void* dst = nullptr;
    const void* src = nullptr;
    size_t bytes = 0;          // copy, fill; stride of a stamp
    uint8_t value = 0;         // fill
    Event event;               // record, wait
    std::shared_ptr<const SimStepParams> step;
};

class SimGraph final : public Graph {
public:
    explicit SimGraph(std::vector<SimOperation> operations) : operations_(std::move(operations)) {}
    [[nodiscard]] int num_operations() const override { return static_cast<int>(operations_.size()); }
    [[nodiscard]] const std::vector<SimOperation>& operations() const { return operations_; }
    [[nodiscard]] CapturedMemory& memory() { return memory_; }

private:
    std::vector<SimOperation> operations_;
    CapturedMemory memory_;
};

class SimStream final : public Stream {
public:
    SimStream(SimDevice& device, uint32_t id) : device_(device), id_(id) {}
    ~SimStream() override;

    [[nodiscard]] uint32_t id() const override { return id_; }
    [[nodiscard]] Device& device() override;
    Status copy(void* dst, const void* src, size_t bytes) override;
    Status fill(void* dst, uint8_t value, size_t bytes) override;
    Event record() override;
    Status wait(Event event) override;
    Status stamp(uint64_t* base, const int32_t* index, size_t stride) override;
    Status begin_capture() override;
    Result<std::unique_ptr<Graph>> end_capture() override;
    Status launch(Graph& graph) override;
    [[nodiscard]] uint64_t completed() override;
    [[nodiscard]] Status error() override { return error_; }
    Status synchronize() override;
    Status enqueue_step(const SimStepParams& params);

private:
    friend class SimDevice;
    Status add(SimOperation operation);
    Status forbid(const char* what);   // in a capture, which then fails as a whole
    [[nodiscard]] bool may_name(const void* data, size_t bytes) const;
    bool advance(uint64_t now_ns);
    bool finish_front(uint64_t now_ns, bool& progressed);
    void execute(const SimOperation& operation);

    SimDevice& device_;
    const uint32_t id_;
    std::deque<SimOperation> queue_;
    std::optional<std::vector<SimOperation>> capture_;
    Status capture_status_;
    uint64_t time_ns_ = 0;                  // how far the stream has come
    std::optional<uint64_t> front_end_ns_;  // of the step at the front, once it has begun
    bool stalled_ = false;
    uint64_t recorded_ = 0, completed_ = 0;
    Status error_;
};

class SimDevice final : public Device {
public:
    SimDevice(const SimDeviceOptions& options, Profile profile, TimeSource time);
    [[nodiscard]] const DeviceCaps& caps() const override { return caps_; }
    void memory(uint64_t* free_bytes, uint64_t* total_bytes) override;
    Result<Buffer> alloc(size_t bytes, MemoryKind kind) override;
    void free(void* data, size_t bytes, MemoryKind kind) override;
    Result<std::unique_ptr<Stream>> stream(int priority) override;
    [[nodiscard]] const OpTable& ops() const override;
    [[nodiscard]] std::vector<int32_t> row_ladder(int32_t max_running, int32_t max_rows) const override;
    Result<std::unique_ptr<Linear>> make_linear(std::span<const HostTensor>, LinearKind) override;
    Result<std::unique_ptr<Embedding>> make_embedding(const HostTensor&, const Linear*) override;
    Result<Buffer> make_vector(const HostTensor& vector) override;
    bool poll(int max_items) override;
    bool set_wakeup(void (*)(void*), void*) override { return false; }
    [[nodiscard]] std::optional<uint64_t> next_completion_ns() override;

private:
    friend class SimStream;
    /// Duration of the step that begins now; empty: it fails. UINT64_MAX: it never ends.
    std::optional<uint64_t> step_duration_ns(const SimStepParams& params);
    [[nodiscard]] double noise();
    /// The scripted fault of single rows: flags some results of a step that has just run.
    void spoil_samples(const SimStepParams& params);

    const SimDeviceOptions options_;
    const Profile profile_;
    const TimeSource time_;
    DeviceCaps caps_;
    Allocations allocations_;
    std::vector<SimStream*> streams_;
    uint64_t allocated_ = 0, num_allocs_ = 0, num_steps_ = 0;
    uint64_t random_ = 0;
    uint32_t next_stream_id_ = 1;
    int num_capturing_ = 0;
};

/// The effect of a step: hashes into the KV slots, sampled tokens out. In step.cpp.
void run_step(const SimStepParams& params);

}  // namespace takt::sim
