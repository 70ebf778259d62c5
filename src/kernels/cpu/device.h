// CpuDevice: the host as a device. Streams are FIFOs; one worker (thread 0 of the pool) takes their entries and runs each on all
// compute threads, or poll() does it on the caller's thread in manual mode. Owns memory, streams' order and the pool; the
// arithmetic is in linear.h and ops.h. Driven by one thread; knows no models and no clock but its time source.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/allocations.h"
#include "kernels/cpu/slabs.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"
#include "kernels/device_factory.h"

namespace takt::cpu {

class CpuDevice final : public Device {
public:
    CpuDevice(const CpuDeviceOptions& options, TimeSource time);
    ~CpuDevice() override;

    [[nodiscard]] const DeviceCaps& caps() const override { return caps_; }
    void memory(uint64_t* free_bytes, uint64_t* total_bytes) override;
    Result<Buffer> alloc(size_t bytes, MemoryKind kind) override;
    void free(void* data, size_t bytes, MemoryKind kind) override;
    Result<std::unique_ptr<Stream>> stream(int priority) override;
    [[nodiscard]] const OpTable& ops() const override;
    [[nodiscard]] std::vector<int32_t> row_ladder(int32_t max_running, int32_t max_rows) const override;
    Result<std::unique_ptr<Linear>> make_linear(std::span<const HostTensor> parts, LinearKind kind) override;
    Result<std::unique_ptr<Embedding>> make_embedding(const HostTensor& table, const Linear* tied_head) override;
    [[nodiscard]] size_t linear_bytes(std::span<const HostTensor> parts, LinearKind kind) const override;
    Result<Buffer> make_vector(const HostTensor& vector) override;
    bool poll(int max_items) override;
    bool set_wakeup(void (*fn)(void* ctx), void* ctx) override;

    /// The instruction path that operations run: never `automatic`.
    [[nodiscard]] CpuIsa isa() const { return isa_; }
    [[nodiscard]] CpuArithmetic arithmetic() const { return options_.arithmetic; }
    [[nodiscard]] bool manual() const { return options_.manual; }
    [[nodiscard]] TimeSource time() const { return time_; }
    [[nodiscard]] const Allocations& allocations() const { return allocations_; }
    [[nodiscard]] const ThreadPool& pool() const { return *pool_; }

private:
    friend class CpuStream;

    void attach(CpuStream* stream);
    void detach(CpuStream* stream);
    void push(CpuStream& stream, CpuStream::Entry&& entry);
    Status synchronize(CpuStream& stream);
    void work();
    [[nodiscard]] bool reached(Event event) const;                        // mutex held
    [[nodiscard]] CpuStream* next_stream() const;                         // mutex held; null: nothing can run
    void run_front(CpuStream& stream, std::unique_lock<std::mutex>& lock);
    Status run_entry(const CpuStream::Entry& entry);
    void announce();

    const CpuDeviceOptions options_;
    const TimeSource time_;
    CpuIsa isa_;
    DeviceCaps caps_;
    Allocations allocations_;
    Slabs slabs_;
    std::unique_ptr<ThreadPool> pool_;
    int num_capturing_ = 0;                    // engine thread only
    uint32_t next_stream_id_ = 1;              // engine thread only
    uint64_t records_polled_ = 0;              // engine thread only

    std::mutex mutex_;
    std::condition_variable work_;             // entries for the worker
    std::condition_variable progress_;         // an entry is done, or nothing can run
    std::vector<CpuStream*> streams_;          // guarded
    uint32_t last_served_ = 0;                 // guarded: a stream's id
    bool stop_ = false;                        // guarded
    std::atomic<uint64_t> num_pushed_{0};
    std::atomic<uint64_t> num_records_{0};

    std::mutex wakeup_mutex_;
    void (*wakeup_)(void*) = nullptr;          // guarded by wakeup_mutex_
    void* wakeup_context_ = nullptr;
    std::thread worker_;                       // last
};

}  // namespace takt::cpu
