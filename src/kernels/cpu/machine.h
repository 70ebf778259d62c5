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
/// Whether the cores, which have AVX-512, add vectors of 512 bits beside their dot instructions (AMD's; those of Intel's that multiply on
/// one port alone) or in their place (Intel's others: ports 0 and 5): of two kernels one is faster here, the other there.
bool adds_beside_dots();
/// How many bytes ahead a product of one row asks for its weights; 0: it leaves that to the hardware. Of this CPU's maker: a core of AMD's
/// reads as fast as memory gives by its own streams and slower with requests beside them, Intel's loses up to half without (measured on
/// Zen 4 and Emerald Rapids, see docs/kernels/cpu.md).
int64_t one_row_fetches_ahead();
/// Memory that can still be taken, and all there is: the smaller of the machine's and the control group's.
void host_memory(uint64_t* free_bytes, uint64_t* total_bytes);

}  // namespace takt::cpu
