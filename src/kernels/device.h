// The device interface: the only place that differs per backend. Small, virtual, step-grained (a call a launch).
// One thread drives a device (the engine's); a backend may run workers of its own behind it. Nothing here knows of models'
// files, requests or clocks: a device is given its time source at construction.
//
// Semantics every backend honours (tests/device_conformance_test.cpp): operations of one stream run in order; no order between
// streams without `wait`; `record` gives events whose readiness never goes back; a failed operation makes the stream
// sticky-failed and still makes every later event ready, with an error; host memory given to `copy` must live, and a source stay as
// it is, until a later event; capture may not allocate, synchronise, copy from pageable memory or read results; a replay uses the captured
// addresses with their current contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/kv_layout.h"
#include "kernels/status.h"
#include "kernels/tensor.h"

namespace takt {

class Device;
struct OpTable;

enum class DeviceKind : uint8_t { cpu, cuda, sim };
enum class MemoryKind : uint8_t {
    device,   ///< only the device's operations may touch it
    pinned,   ///< host memory that the device reads and writes asynchronously
    host,     ///< plain host memory
};

/// Reads the time in nanoseconds of a monotonic clock. Handed in by whoever owns a clock.
struct TimeSource {
    uint64_t (*now_ns)(void* context) = nullptr;
    void* context = nullptr;
    [[nodiscard]] uint64_t now() const { return now_ns(context); }
};

/// Owns one allocation; freed by its device. Must not outlive it. Never freed before the events of the work that names it.
class Buffer {
public:
    Buffer() = default;
    Buffer(Device* device, void* data, size_t bytes, MemoryKind kind)
        : device_(device), data_(data), bytes_(bytes), kind_(kind) {}
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        Buffer moved(std::move(other));
        swap(moved);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

    [[nodiscard]] void* data() const { return data_; }
    template <class T>
    [[nodiscard]] T* as() const { return static_cast<T*>(data_); }
    [[nodiscard]] size_t bytes() const { return bytes_; }
    [[nodiscard]] MemoryKind kind() const { return kind_; }
    explicit operator bool() const { return data_ != nullptr; }

private:
    void swap(Buffer& o) noexcept {
        std::swap(device_, o.device_);
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        std::swap(kind_, o.kind_);
    }
    Device* device_ = nullptr;
    void* data_ = nullptr;
    size_t bytes_ = 0;
    MemoryKind kind_ = MemoryKind::host;
};

/// A point in a stream's order. A value: copying is free. Ready when its stream has completed `value` records.
struct Event {
    uint32_t stream_id = 0;
    uint64_t value = 0;
};

/// A recorded sequence of operations. Replayed by Stream::launch of the stream's device.
class Graph {
public:
    virtual ~Graph() = default;
    [[nodiscard]] virtual int num_operations() const = 0;
    [[nodiscard]] virtual size_t device_bytes() const { return 0; }
};

class Stream {
public:
    virtual ~Stream() = default;
    [[nodiscard]] virtual uint32_t id() const = 0;
    [[nodiscard]] virtual Device& device() = 0;

    virtual Status copy(void* dst, const void* src, size_t bytes) = 0;
    virtual Status fill(void* dst, uint8_t value, size_t bytes) = 0;
    virtual Event record() = 0;
    /// Later operations of this stream run after `event` of another stream of the same device.
    virtual Status wait(Event event) = 0;
    /// Writes the device's clock (ns) into base[*index * stride]; `index` null: base[0]. Capturable. Pinned memory.
    virtual Status stamp(uint64_t* base, const int32_t* index, size_t stride) = 0;

    virtual Status begin_capture() = 0;
    /// Ends the capture; nothing of it has run. An operation that failed inside the capture fails it here.
    virtual Result<std::unique_ptr<Graph>> end_capture() = 0;
    /// The graph must live until an event recorded after this.
    virtual Status launch(Graph& graph) = 0;

    /// Number of `record`s reached so far. Monotone. Cheap; never blocks.
    [[nodiscard]] virtual uint64_t completed() = 0;
    /// The sticky error, ok while there is none.
    [[nodiscard]] virtual Status error() = 0;
    /// Blocks until all is done. For load, tests and teardown only; an error inside a capture.
    virtual Status synchronize() = 0;

    [[nodiscard]] bool ready(Event e) { return completed() >= e.value; }
};

/// How the rows of several matrices are stacked into one linear layer.
enum class LinearKind : uint8_t {
    stacked,   ///< parts one after the other along the output (q, k, v)
    gate_up,   ///< exactly two parts of the same shape: gate and up of a gated MLP; the layout may interleave them
    head,      ///< the output matrix: runs only for sampled rows
};

/// A linear layer's weights in the device's own layout: opaque above src/kernels. y = x W^T + bias.
class Linear {
public:
    virtual ~Linear() = default;
    [[nodiscard]] virtual int64_t out_features() const = 0;
    [[nodiscard]] virtual int64_t in_features() const = 0;
    [[nodiscard]] virtual size_t bytes() const = 0;    ///< device memory held, what one pass reads
};

/// A token embedding in the device's own layout; may share a tied head's storage.
class Embedding {
public:
    virtual ~Embedding() = default;
    [[nodiscard]] virtual int64_t num_tokens() const = 0;
    [[nodiscard]] virtual int64_t hidden() const = 0;
    [[nodiscard]] virtual size_t bytes() const = 0;
};

/// What a device is and what it does best. Constant over its life.
struct DeviceCaps {
    DeviceKind kind = DeviceKind::cpu;
    std::string name;                  ///< with ISA path or compute capability
    bool rows_are_data = false;        ///< kernels skip padding rows (CPU, sim): a shape bounds buffers, not work
    DType residual_type = DType::f32;  ///< the hidden state between layers
    DType activation_type = DType::f32;///< q, attention output, MLP intermediate
    DType kv_type = DType::f16;        ///< what kv.dtype = auto means
    int32_t max_rows = 512;            ///< largest shape worth recording
    int32_t num_threads = 1;           ///< compute threads (CPU), SMs (CUDA)
    double read_bytes_per_second = 0;  ///< roofline guesses for a cold cost model
    double operations_per_second = 0;  ///< multiply-adds x 2 a second
    double launch_seconds = 0;         ///< fixed cost of a step
};

class Device {
public:
    virtual ~Device() = default;
    [[nodiscard]] virtual const DeviceCaps& caps() const = 0;
    /// Free and total bytes of the device's memory, now.
    virtual void memory(uint64_t* free_bytes, uint64_t* total_bytes) = 0;
    virtual Result<Buffer> alloc(size_t bytes, MemoryKind kind) = 0;
    /// Called by ~Buffer only.
    virtual void free(void* data, size_t bytes, MemoryKind kind) = 0;
    /// `priority` 0 is the normal one, lower is more urgent. The stream must not outlive the device.
    virtual Result<std::unique_ptr<Stream>> stream(int priority) = 0;
    [[nodiscard]] virtual const OpTable& ops() const = 0;

    /// The shapes (row counts) that steps are recorded for, ascending, `max_running` always among them, the last one <= max_rows.
    [[nodiscard]] virtual std::vector<int32_t> row_ladder(int32_t max_running, int32_t max_rows) const = 0;

    /// Weights into device layout. Copies (or re-packs) before it returns; the host tensors may go away afterwards.
    virtual Result<std::unique_ptr<Linear>> make_linear(std::span<const HostTensor> parts, LinearKind kind) = 0;
    /// `tied_head` may be null; where given and of the same content, its storage may be shared (it must then outlive this).
    virtual Result<std::unique_ptr<Embedding>> make_embedding(const HostTensor& table, const Linear* tied_head) = 0;
    /// What make_linear's result will hold in device memory, from the shapes alone: for the memory plan. Here: bf16 in rows of 64.
    [[nodiscard]] virtual size_t linear_bytes(std::span<const HostTensor> parts, LinearKind kind) const;
    /// The same of make_embedding.
    [[nodiscard]] virtual size_t embedding_bytes(const HostTensor& table, bool has_tied_head) const;
    /// Device memory that the linear layers of a model take beside their weights, from the widest input and output of any of them but the
    /// head: for the memory plan.
    [[nodiscard]] virtual size_t linear_scratch_bytes(int64_t widest_in, int64_t widest_out) const;
    /// About what one recorded step takes of the device's memory.
    [[nodiscard]] virtual size_t graph_bytes() const { return 0; }
    /// A float vector (norm weight, bias) as float32 device memory, `cols` elements.
    virtual Result<Buffer> make_vector(const HostTensor& vector) = 0;

    /// Lets finished work be seen; runs at most `max_items` queued operations on devices that run by hand (manual CPU; -1: all).
    /// Returns whether anything progressed.
    virtual bool poll(int max_items = -1) = 0;
    /// A host device calls fn(ctx) from any thread when an event has become ready; null to remove. Devices that must be polled
    /// return false.
    virtual bool set_wakeup(void (*fn)(void* ctx), void* ctx) = 0;
    /// Virtual devices: when the next event becomes ready on the time source, if something is in flight.
    [[nodiscard]] virtual std::optional<uint64_t> next_completion_ns() { return std::nullopt; }
};

inline size_t Device::linear_bytes(std::span<const HostTensor> parts, LinearKind) const {
    size_t total = 0;
    for (const HostTensor& part : parts) total += static_cast<size_t>(part.rows * ((part.cols + 63) / 64 * 64)) * 2;
    return total;
}

inline size_t Device::linear_scratch_bytes(int64_t, int64_t) const { return 0; }

inline size_t Device::embedding_bytes(const HostTensor& table, bool has_tied_head) const {
    return has_tied_head ? 0 : linear_bytes({&table, 1}, LinearKind::stacked);
}

inline Buffer::~Buffer() {
    if (data_ != nullptr) device_->free(data_, bytes_, kind_);
}

}  // namespace takt
