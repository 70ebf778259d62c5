// Devices of this build. TAKT_HAVE_CUDA_DEVICE is set by the build that links one. See device_factory.h.
#include "kernels/device_factory.h"

#include "kernels/cpu/device.h"

namespace takt {

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options, TimeSource time) {
    return std::unique_ptr<Device>(std::make_unique<cpu::CpuDevice>(options, time));
}

#ifndef TAKT_HAVE_CUDA_DEVICE
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions&, TimeSource) {
    return Error{"a CUDA device is not available in this version"};
}

bool cuda_is_available() { return false; }
#endif

}  // namespace takt
