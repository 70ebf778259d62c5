// Makes devices. The runtime names a kind and gives a time source; what is compiled in is decided by the build.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device.h"

namespace takt {

enum class CpuArithmetic : uint8_t { int16, int8, bf16, float32 };   ///< device.activations
enum class CpuIsa : uint8_t { automatic, portable, neon, avx2, avx512 };

struct CpuDeviceOptions {
    int32_t num_threads = 0;                  ///< 0: all cores
    CpuArithmetic arithmetic = CpuArithmetic::int16;
    CpuIsa isa = CpuIsa::automatic;           ///< others for tests and benches
    bool manual = false;                      ///< nothing runs until poll(); outputs are poisoned until the event
};

/// The built-in or measured step-time profile: see src/kernels/sim/profile.h.
struct SimDeviceOptions {
    std::string profile = "h100-7b";          ///< or the text of a profile file
    bool profile_is_text = false;
    double scale = 1.0;                       ///< 0: steps take no time
    double noise = 0.015;                     ///< sigma of the lognormal factor
    uint64_t seed = 1;
    bool faults = false;                      ///< random device faults from the seed
    uint64_t memory_bytes = 64ull << 30;      ///< pretended
    /// Scripted faults for tests: the n-th launch (from 1) fails / takes 20 x / the n-th alloc fails / stalls for ever. 0: never.
    uint64_t fail_launch = 0, slow_launch = 0, fail_alloc = 0, stall_launch = 0;
    /// One sampled row in so many comes back as not finite, drawn from the seed. 0: none.
    uint64_t nonfinite_samples = 0;
};

struct CudaDeviceOptions {
    int32_t index = 0;
    bool deterministic = false;
};

Result<std::unique_ptr<Device>> make_cpu_device(const CpuDeviceOptions& options, TimeSource time);
Result<std::unique_ptr<Device>> make_sim_device(const SimDeviceOptions& options, TimeSource time);
/// Fails with a sentence where CUDA is not compiled in, or no driver or device answers.
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options, TimeSource time);
/// Whether a CUDA device would answer; loads the driver at most.
bool cuda_is_available();

}  // namespace takt
