// Percentiles by nearest rank. Pure.
#include <takt/percentiles.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace takt {

double percentile(std::vector<double>& values, double share) {
    if (values.empty()) return 0;
    // A share such as 0.95 is a little off in binary: a rank that is whole in decimals stays what it is.
    const double rank = std::ceil(share * static_cast<double>(values.size()) - 1e-9);
    const size_t at = rank < 1 ? 0 : std::min(static_cast<size_t>(rank), values.size()) - 1;
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
    return values[at];
}

Percentiles percentiles(std::vector<double> values) {
    Percentiles out;
    out.count = values.size();
    if (values.empty()) return out;
    out.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    out.p50 = percentile(values, 0.50);
    out.p95 = percentile(values, 0.95);
    out.p99 = percentile(values, 0.99);
    out.max = *std::max_element(values.begin(), values.end());
    return out;
}

}  // namespace takt
