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

/// The same, and of AVX-512 the products for both kinds of cores, whichever this machine has.
inline std::vector<const cpu::KernelTable*> product_kernels() {
    std::vector<const cpu::KernelTable*> all = machine_kernels();
#ifdef TAKT_HAVE_X86_ISA
    if (machine_isas().back() == CpuIsa::avx512) {
        all.pop_back();
        for (const bool adds_beside_dots : {true, false}) all.push_back(&cpu::avx512_kernels(adds_beside_dots));
    }
#endif
    return all;
}

}  // namespace takt::test
