// The conformance suite's CUDA rig: holds a stream with a host function that waits, fails it with a write outside all memory.
#include "conformance/device_rig.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/cuda/ops.h"
#include "kernels/device_factory.h"
#include "kernels/ops.h"

namespace takt::conformance {
namespace {

void wait_for_release(void* context) {
    auto* released = static_cast<std::atomic<bool>*>(context);
    while (!released->load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

class CudaRig final : public DeviceRig {
public:
    explicit CudaRig(std::unique_ptr<Device> device) : device_(std::move(device)) {
        // A kernel's code is loaded at its first launch, which a held stream would block: all that the suite uses run once here.
        const auto stream = device_->stream(0).value();
        memory_ = device_->alloc(4096, MemoryKind::device).value();
        Buffer pinned = device_->alloc(4096, MemoryKind::pinned).value();
        (void)stream->fill(memory_.data(), 0, 4096);
        (void)stream->fill(pinned.data(), 0, 4096);
        (void)stream->copy(memory_.data(), pinned.data(), 64);
        (void)stream->copy(pinned.data(), memory_.data(), 4096);
        (void)stream->copy(pinned.data(), pinned.as<uint8_t>() + 2048, 64);
        (void)stream->stamp(pinned.as<uint64_t>(), nullptr, 0);
        table_ = device_->make_embedding({kTable, DType::f32, 1, 64}, nullptr).value();
        embed(*stream, memory_.data());
        (void)stream->synchronize();
    }
    Device& device() override { return *device_; }
    void hold(Stream& stream) override {
        released_.store(false);
        // An empty operation first, so that what was collected is queued before the hold.
        auto& native = static_cast<cuda::NativeStream&>(stream);
        (void)native.begin_operation(nullptr, 0);
        cudaLaunchHostFunc(native.native(), wait_for_release, &released_);
    }
    void release() override { released_.store(true); }
    void fail(Stream& stream) override { embed(stream, reinterpret_cast<void*>(uintptr_t{64})); }   // NOLINT
    void run() override { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }
    [[nodiscard]] bool fails_alone() const override { return false; }

private:
    static constexpr float kTable[64] = {};
    /// One row of zeros to `hidden`. The header that counts it is made here once.
    void embed(Stream& stream, void* hidden) {
        if (!header_) {
            header_ = device_->alloc(4096, MemoryKind::pinned).value();
            *header_.as<StepHeader>() = StepHeader{};
            header_.as<StepHeader>()->num_rows = 1;
            *reinterpret_cast<RowInput*>(header_.as<uint8_t>() + 1024) = RowInput{};
        }
        EmbedParams p;
        p.in.header = header_.as<StepHeader>();
        p.in.rows = reinterpret_cast<RowInput*>(header_.as<uint8_t>() + 1024);
        p.rows = 1;
        p.table = table_.get();
        p.hidden = hidden;
        (void)device_->ops().embed(stream, p);
    }

    std::unique_ptr<Device> device_;
    Buffer memory_, header_;
    std::unique_ptr<Embedding> table_;
    std::atomic<bool> released_{true};
};

}  // namespace

std::unique_ptr<DeviceRig> make_cuda_rig() {
    if (!cuda_is_available()) return nullptr;
    Result<std::unique_ptr<Device>> made = make_cuda_device({}, {});
    if (!made) return nullptr;
    return std::make_unique<CudaRig>(std::move(made).value());
}

}  // namespace takt::conformance
