// Devices of this build. CUDA is a part that may be left out.
#include "kernels/device_factory.h"

#include "kernels/cpu/device.h"

namespace takt {

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options, TimeSource time) {
    return std::unique_ptr<Device>(std::make_unique<cpu::CpuDevice>(options, time));
}

#ifndef TAKT_HAVE_CUDA
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions&, TimeSource) {
    return Error{"this build has no CUDA part"};
}

bool cuda_is_available() { return false; }
#endif

}  // namespace takt
