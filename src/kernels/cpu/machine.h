// What the machine offers to the CPU device: cores, instruction sets, memory. Read from the kernel at the time of the call.
#pragma once

#include <cstdint>

#include "kernels/device_factory.h"

namespace takt::cpu {

/// Cores that this process may use: its affinity, cut by the control group's quota. At least 1.
int32_t num_cores();
/// The best path that this CPU runs, or `wanted` where it runs that; else the best one below it.
CpuIsa choose_isa(CpuIsa wanted);
const char* isa_name(CpuIsa isa);
/// Memory that can still be taken, and all there is: the smaller of the machine's and the control group's.
void host_memory(uint64_t* free_bytes, uint64_t* total_bytes);

}  // namespace takt::cpu
