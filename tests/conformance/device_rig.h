// DeviceRig: what the conformance suite needs of a device beyond its interface: to hold a stream back, to make an operation fail, to
// let time pass. One implementation a device; the CUDA one lies under tests/kernels/cuda.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace takt::conformance {

class DeviceRig {
public:
    virtual ~DeviceRig() = default;
    DeviceRig() = default;
    DeviceRig(const DeviceRig&) = delete;
    DeviceRig& operator=(const DeviceRig&) = delete;

    [[nodiscard]] virtual Device& device() = 0;
    /// What is queued on `stream` from here on waits for release(). One hold at a time, released before the rig dies.
    virtual void hold(Stream& stream) = 0;
    virtual void release() = 0;
    /// Queues an operation that is accepted and fails when it runs.
    virtual void fail(Stream& stream) = 0;
    /// Lets what can run do so for a moment; what cannot run stays where it is.
    virtual void run() = 0;
    /// Destinations hold 0xA5 from the moment an operation on them is queued.
    [[nodiscard]] virtual bool poisons() const { return false; }
    /// A failure of one stream leaves the device's other streams alone.
    [[nodiscard]] virtual bool fails_alone() const { return true; }

    /// Runs until `event` is ready; false after some seconds.
    bool finish(Stream& stream, Event event);
    /// The same for everything queued on `stream` so far.
    bool finish(Stream& stream) { return finish(stream, stream.record()); }
};

enum class RigKind { cpu_manual, cpu_threaded, sim, cuda };

/// In builds without CUDA, and where no driver or device answers: null.
std::unique_ptr<DeviceRig> make_cuda_rig();

/// `fails`: for cases that call fail(), once. Null where this machine or build has no such device.
std::unique_ptr<DeviceRig> make_rig(RigKind kind, bool fails = false);
const char* rig_name(RigKind kind);

}  // namespace takt::conformance
