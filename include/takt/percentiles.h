// Percentiles: the one definition behind every figure of takt: nearest rank, so that each is a value that really occurred. Pure,
// any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace takt {

/// The ceil(share * n)-th smallest of n values, the smallest for share 0; 0 of nothing. Reorders `values`.
double percentile(std::vector<double>& values, double share);

/// All 0 when nothing was counted.
struct Percentiles {
    std::uint64_t count = 0;
    double mean = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
};
Percentiles percentiles(std::vector<double> values);

}  // namespace takt
