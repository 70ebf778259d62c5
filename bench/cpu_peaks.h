// What bounds a product on this machine: read bandwidth of a buffer and the peaks of the dot and FMA instructions, each measured
// with one or more threads at once.
#pragma once

#include <cstddef>

#include "runtime/clock.h"

namespace takt::bench {

struct Peaks {
    double read_gb_s = 0;
    double dpbusd_gop_s = 0;   ///< 512-bit, 8-bit operands; 0 where the CPU has none
    double dpwssd_gop_s = 0;   ///< 512-bit, 16-bit operands
    double fma_gop_s = 0;      ///< float32, 512-bit or 256-bit
};

/// Takes about half a second. All threads run at once; figures are their sum.
Peaks measure_peaks(const Clock& clock, int threads, std::size_t bytes);

}  // namespace takt::bench
