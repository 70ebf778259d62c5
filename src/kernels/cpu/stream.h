// CpuStream: a FIFO of entries of the CPU device: operations, copies, stamps, events, waits and graph launches. Driven by the
// engine thread; the entries are taken by the device's worker (or by poll() in manual mode). Knows no operation by name.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/cpu/task.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"

namespace takt::cpu {

class CpuDevice;
class CpuGraph;

class CpuStream final : public Stream {
public:
    CpuStream(CpuDevice& device, uint32_t id, int priority);
    ~CpuStream() override;

    /// Queues (or records, inside a capture) an operation that all compute threads run at once. `params` are copied: `bytes` of
    /// a trivially copyable struct. The pool puts a barrier before and after it.
    Status enqueue(Task run, const void* params, size_t bytes);
    /// The same for an operation that one thread does.
    Status enqueue_single(Task run, const void* params, size_t bytes);
    template <class Params>
    Status enqueue(Task run, const Params& params) { return enqueue(run, &params, sizeof(Params)); }
    template <class Params>
    Status enqueue_single(Task run, const Params& params) { return enqueue_single(run, &params, sizeof(Params)); }

    /// Inside a capture: where the step's number of rows stands when the graph is launched. Nothing elsewhere.
    void note_rows(const int32_t* rows);

    /// Manual mode: fills an output with 0xA5 at once, so that a host read before the event shows. Nothing elsewhere, and
    /// nothing inside a capture. Not for memory that an operation still queued reads.
    void poison(void* data, size_t bytes);

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
    [[nodiscard]] uint64_t completed() override { return completed_.load(std::memory_order_acquire); }
    [[nodiscard]] Status error() override;
    Status synchronize() override;

private:
    friend class CpuDevice;
    struct Entry {
        enum class Kind : uint8_t { operation, launch, record, wait };
        Kind kind = Kind::operation;
        bool single = false;
        Task run = nullptr;
        CpuGraph* graph = nullptr;
        Event event;
        uint32_t num_params = 0;                   // bytes
        alignas(16) uint8_t inline_params[64] = {};   // small ones: no heap
        std::unique_ptr<uint8_t[]> heap_params;

        void set_params(const void* params, size_t bytes);
        [[nodiscard]] const uint8_t* params() const {
            return heap_params != nullptr ? heap_params.get() : inline_params;
        }
    };

    Status add(Task run, const void* params, size_t bytes, bool single);
    Status capture_failure(Status status);   // remembers the first; end_capture reports it
    [[nodiscard]] bool is_queued(const void* data, size_t bytes) const;   // by the parameters of what is still queued

    CpuDevice& device_;
    const uint32_t id_;
    const int priority_;
    std::unique_ptr<CpuGraph> capture_;      // engine thread only
    Status capture_status_;
    uint64_t recorded_ = 0;                  // engine thread only
    std::atomic<uint64_t> completed_{0};
    std::deque<Entry> queue_;                // guarded by the device's mutex
    bool running_ = false;                   // guarded: an entry was taken and is not done
    Status error_;                           // guarded
    std::atomic<bool> failed_{false};
};

}  // namespace takt::cpu

namespace takt {
using CpuStream = cpu::CpuStream;
}
