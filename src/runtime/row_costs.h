// RowCosts: what a step costs where each row has its price, as on a CPU: a base, a price a row between each two shapes, and the prices of
// context (K, A, H of scheduling.md 4.1), all learned from one and the same error by recursive least squares. Where table and slopes
// learn it each for itself, a wrong slope stays in the table, and deep in a document a third of the time was told of rows that context
// took. Pure; engine thread only; `observe` allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cost_roofline.h"
#include "runtime/plan.h"

namespace takt {

class RowCosts {
public:
    /// `ladder`: ascending rows at which the price of one more may change.
    RowCosts(std::span<const int32_t> ladder, const CostRoofline& roofline);

    /// Nanoseconds of a step of so many rows of the ladder, without context.
    [[nodiscard]] double base_ns(size_t shape) const;
    /// Nanoseconds a position of K, a pair of A and a position of H.
    [[nodiscard]] std::array<double, 3> slopes_ns() const;
    /// Learns from a step that took so long, one-off copies aside.
    void observe(const StepFeatures& features, double total_ns);
    /// What was believed may be wrong by as much as in the beginning: the device changed.
    void doubt();
    /// Believes another day's prices: a good guess. `base_ns`: one a shape.
    void believe(std::span<const double> base_ns, const std::array<double, 3>& slopes_ns);
    /// Positions and pairs that count for the three slopes. A slice of one row reads K and V alone, as a decode row does.
    static std::array<double, 3> loads(const StepFeatures& features);

private:
    void fill_loads(const StepFeatures& features);
    [[nodiscard]] double spread(size_t i) const;
    void open(double share);
    void drift();
    double& doubt_at(size_t i, size_t j) { return covariance_[i * unit_ns_.size() + j]; }

    std::vector<int32_t> ladder_;
    // One of each a parameter: the base, a row up to each shape but the first, K, A, H.
    std::vector<double> unit_ns_;       // the roofline's price; the parameter is its multiple
    std::vector<double> value_;
    std::vector<double> prior_;         // covariance in the beginning, over the values' own sizes
    std::vector<double> covariance_;
    std::vector<double> load_, gain_;   // scratch
};

}  // namespace takt
