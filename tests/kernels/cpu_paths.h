// The instruction paths of the CPU device that this machine runs, for tests that hold each of them.
#pragma once

#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/machine.h"

namespace takt::test {

/// The portable path first.
inline std::vector<CpuIsa> machine_isas() {
    std::vector<CpuIsa> all{CpuIsa::portable};
    for (const CpuIsa isa : {CpuIsa::neon, CpuIsa::avx2, CpuIsa::avx512}) {
        if (cpu::choose_isa(isa) == isa) all.push_back(isa);
    }
    return all;
}

inline std::vector<const cpu::KernelTable*> machine_kernels() {
    std::vector<const cpu::KernelTable*> all;
    for (const CpuIsa isa : machine_isas()) all.push_back(&cpu::kernel_table(isa));
    return all;
}

}  // namespace takt::test
