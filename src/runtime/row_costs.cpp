// RowCosts: see the header. Plain double arithmetic in a fixed order, so that both compilers give the same digits.
#include "runtime/row_costs.h"

#include <algorithm>
#include <cmath>

namespace takt {
namespace {

constexpr size_t kSlopes = 3;
// Doubt in the beginning, in parts of the roofline's price: of the base, of all rows alike and of each kind, of K, A and H. Attention is
// far from the peak of products that the roofline knows; rows of one slice share the reading of their K and V.
constexpr double kBaseDoubt = 1.0, kRowsDoubt = 1.0, kOneRowDoubt = 0.3, kNeighbours = 0.5;
constexpr std::array<double, kSlopes> kSlopeDoubts{0.5, 2.0, 0.7};
constexpr std::array<double, kSlopes> kLeastSlopes{10, 1, 10};   // nanoseconds: units where the roofline names less, or no price
constexpr double kLeastBase = 1e6, kLeastRow = 1e5;
constexpr double kNoise = 0.3;         // of a step: spells of shared cores strike many in a row alike, so that each tells little
constexpr double kDrift = 1e-5;        // of the doubt in the beginning comes back with each step
constexpr double kFarthest = 2.5;      // standard deviations that an error counts at most
constexpr double kLeastSpread = 0.2;   // a price of nothing can still be found to be something
constexpr double kBelieved = 0.25;     // of the doubt in the beginning, where another day's prices are known

}  // namespace

RowCosts::RowCosts(std::span<const int32_t> ladder, const CostRoofline& roofline) : ladder_(ladder.begin(), ladder.end()) {
    const size_t rows = ladder_.size(), count = rows + kSlopes;
    const double row_ns = roofline.operations_per_row / roofline.operations_per_second * 1e9;
    const double read_ns = (roofline.weight_bytes / roofline.bytes_per_second + roofline.launch_seconds) * 1e9;
    const double kv_ns = roofline.kv_bytes_per_token / roofline.bytes_per_second * 1e9;
    const double pair_ns = roofline.operations_per_pair / roofline.operations_per_second * 1e9;
    const std::array<double, kSlopes> slopes{kv_ns, pair_ns, kv_ns};
    const auto add = [&](double price, double least) {
        unit_ns_.push_back(std::max(price, least));
        value_.push_back(price / unit_ns_.back());
    };
    add(read_ns + row_ns * ladder_.front(), kLeastBase);
    for (size_t i = 1; i < rows; ++i) add(row_ns, kLeastRow);
    for (size_t k = 0; k < kSlopes; ++k) add(slopes[k], kLeastSlopes[k]);
    prior_.assign(count * count, 0.0);
    prior_[0] = kBaseDoubt * kBaseDoubt;
    for (size_t i = 1; i < rows; ++i) {
        double own = kOneRowDoubt * kOneRowDoubt;
        for (size_t j = i; j < rows; ++j, own *= kNeighbours) {
            prior_[i * count + j] = prior_[j * count + i] = kRowsDoubt * kRowsDoubt + own;
        }
    }
    for (size_t k = 0; k < kSlopes; ++k) prior_[(rows + k) * (count + 1)] = kSlopeDoubts[k] * kSlopeDoubts[k];
    covariance_.resize(count * count);
    load_.resize(count);
    gain_.resize(count);
    open(1.0);
}

double RowCosts::base_ns(size_t shape) const {
    double ns = unit_ns_[0] * value_[0];
    for (size_t i = 1; i <= shape; ++i) ns += unit_ns_[i] * value_[i] * (ladder_[i] - ladder_[i - 1]);
    return ns;
}

std::array<double, 3> RowCosts::slopes_ns() const {
    const size_t first = ladder_.size();
    std::array<double, 3> slopes{};
    for (size_t k = 0; k < kSlopes; ++k) slopes[k] = unit_ns_[first + k] * value_[first + k];
    return slopes;
}

std::array<double, 3> RowCosts::loads(const StepFeatures& features) {
    return {static_cast<double>(features.kv_read_tokens + features.single_row_tokens),
            static_cast<double>(features.prefill_pairs - features.single_row_tokens),
            static_cast<double>(features.prefill_kv_tokens - features.single_row_tokens)};
}

/// What the step has of each price, in nanoseconds of its unit. Rows beyond the ladder run as launches of their own.
void RowCosts::fill_loads(const StepFeatures& features) {
    const int32_t largest = ladder_.back();
    const int32_t whole = features.rows <= largest ? 0 : (features.rows - 1) / largest;
    const int32_t rest = features.rows - whole * largest;
    load_[0] = unit_ns_[0] * (whole + 1);
    for (size_t i = 1; i < ladder_.size(); ++i) {
        const int32_t width = ladder_[i] - ladder_[i - 1];
        load_[i] = unit_ns_[i] * (whole * width + std::clamp(rest - ladder_[i - 1], 0, width));
    }
    const std::array<double, 3> context = loads(features);
    for (size_t k = 0; k < kSlopes; ++k) load_[ladder_.size() + k] = unit_ns_[ladder_.size() + k] * context[k];
}

double RowCosts::spread(size_t i) const { return std::max(value_[i], kLeastSpread); }

void RowCosts::open(double share) {
    const size_t count = value_.size();
    for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < count; ++j) doubt_at(i, j) = share * prior_[i * count + j] * spread(i) * spread(j);
    }
}

void RowCosts::doubt() { open(1.0); }

void RowCosts::believe(std::span<const double> base_ns, const std::array<double, 3>& slopes_ns) {
    const size_t first = ladder_.size();
    value_[0] = std::max(base_ns[0], 0.0) / unit_ns_[0];
    for (size_t i = 1; i < first; ++i) {
        value_[i] = std::max(base_ns[i] - base_ns[i - 1], 0.0) / (ladder_[i] - ladder_[i - 1]) / unit_ns_[i];
    }
    for (size_t k = 0; k < kSlopes; ++k) value_[first + k] = std::max(slopes_ns[k], 0.0) / unit_ns_[first + k];
    open(kBelieved);
}

/// Prices change with time. No doubt grows over that of the beginning: a direction without news must not open without end.
void RowCosts::drift() {
    const size_t count = value_.size();
    for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j <= i; ++j) {
            const double both = 0.5 * (doubt_at(i, j) + doubt_at(j, i)) + kDrift * prior_[i * count + j] * spread(i) * spread(j);
            doubt_at(i, j) = doubt_at(j, i) = both;
        }
    }
    for (size_t i = 0; i < count; ++i) {
        const double most = prior_[i * count + i] * spread(i) * spread(i);
        if (doubt_at(i, i) <= most) continue;
        const double scale = std::sqrt(most / doubt_at(i, i));
        for (size_t j = 0; j < count; ++j) {
            doubt_at(i, j) *= scale;
            doubt_at(j, i) *= scale;
        }
    }
}

void RowCosts::observe(const StepFeatures& features, double total_ns) {
    const size_t count = value_.size();
    fill_loads(features);
    double expected_ns = 0, variance = 0;
    for (size_t i = 0; i < count; ++i) {
        expected_ns += load_[i] * value_[i];
        gain_[i] = 0;
        for (size_t j = 0; j < count; ++j) gain_[i] += doubt_at(i, j) * load_[j];
        variance += load_[i] * gain_[i];
    }
    variance += kNoise * kNoise * total_ns * total_ns;
    const double farthest_ns = kFarthest * std::sqrt(variance);
    const double error_ns = std::clamp(total_ns - expected_ns, -farthest_ns, farthest_ns);
    for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < count; ++j) doubt_at(i, j) -= gain_[i] / variance * gain_[j];
    }
    for (size_t i = 0; i < count; ++i) value_[i] = std::max(value_[i] + gain_[i] / variance * error_ns, 0.0);
    drift();
}

}  // namespace takt
