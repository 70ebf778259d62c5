// The rigs of the devices that need no accelerator: CPU by hand, CPU with threads, sim on a clock of its own.
#include "conformance/device_rig.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/cpu/stream.h"
#include "kernels/device_factory.h"
#include "kernels/ops.h"

namespace takt::conformance {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr auto kMoment = std::chrono::milliseconds(2);
constexpr uint64_t kSimMomentNs = 1'000'000'000;

uint64_t steady_ns(void*) {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

uint64_t read_word(void* word) { return *static_cast<const uint64_t*>(word); }

/// Holds a stream with an event of another one that is not recorded yet.
class HostRig : public DeviceRig {
public:
    Device& device() override { return *device_; }
    void hold(Stream& stream) override {
        if (!gate_) gate_ = device_->stream(0).value();
        (void)stream.wait(Event{gate_->id(), ++num_holds_});
    }
    void release() override { (void)gate_->record(); }

protected:
    std::unique_ptr<Device> device_;

private:
    std::unique_ptr<Stream> gate_;
    uint64_t num_holds_ = 0;
};

void fail_item(CpuTaskContext& context, const void*) { context.fail({kStatusInjectedFault, "failed as it was told to"}); }

class CpuRig final : public HostRig {
public:
    explicit CpuRig(bool manual) : manual_(manual) {
        CpuDeviceOptions options;
        options.num_threads = 2;
        options.manual = manual;
        device_ = make_cpu_device(options, TimeSource{steady_ns, nullptr}).value();
    }
    void fail(Stream& stream) override { (void)static_cast<CpuStream&>(stream).enqueue(fail_item, nullptr, 0); }
    void run() override {
        if (!manual_) std::this_thread::sleep_for(kMoment);
        device_->poll(-1);
    }
    [[nodiscard]] bool poisons() const override { return manual_; }

private:
    const bool manual_;
};

/// Only its steps can fail: the first one does, where a failure is wanted.
class SimRig final : public HostRig {
public:
    explicit SimRig(bool fails) {
        SimDeviceOptions options;
        options.noise = 0;
        options.fail_launch = fails ? 1 : 0;
        device_ = make_sim_device(options, TimeSource{read_word, &now_ns_}).value();
        header_ = device_->alloc(sizeof(StepHeader), MemoryKind::device).value();
        std::memset(header_.data(), 0, sizeof(StepHeader));
    }
    void fail(Stream& stream) override {
        SimStepParams step;
        step.in.header = header_.as<StepHeader>();
        step.rows = 1;
        (void)device_->ops().sim_step(stream, step);
    }
    void run() override {
        now_ns_ += kSimMomentNs;
        device_->poll(-1);
    }

private:
    uint64_t now_ns_ = 1;
    Buffer header_;
};

}  // namespace

bool DeviceRig::finish(Stream& stream, Event event) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!stream.ready(event)) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        run();
    }
    return true;
}

std::unique_ptr<DeviceRig> make_rig(RigKind kind, bool fails) {
    switch (kind) {
        case RigKind::cpu_manual: return std::make_unique<CpuRig>(true);
        case RigKind::cpu_threaded: return std::make_unique<CpuRig>(false);
        case RigKind::sim: return std::make_unique<SimRig>(fails);
        case RigKind::cuda: return make_cuda_rig();
    }
    return nullptr;
}

const char* rig_name(RigKind kind) {
    switch (kind) {
        case RigKind::cpu_manual: return "cpu, by hand";
        case RigKind::cpu_threaded: return "cpu, threaded";
        case RigKind::sim: return "sim";
        case RigKind::cuda: return "cuda";
    }
    return "";
}

#ifndef TAKT_HAVE_CUDA_DEVICE
std::unique_ptr<DeviceRig> make_cuda_rig() { return nullptr; }
#endif

}  // namespace takt::conformance
