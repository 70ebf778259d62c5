// CostModel: predicts a step's time from its shape and learns from the device's own timings (scheduling.md 4.1, 4.3).
// That = L[n~] + kd K + ka A + ks S + e; where rows are data (L[n] + kd K + ka A + kh H + e) x pace, learned by RowCosts. Pure; engine
// thread only; snapshots for metrics are plain copies.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cost_roofline.h"
#include "runtime/plan.h"
#include "runtime/row_costs.h"

namespace takt {

enum class CostRegime : uint8_t { decode, mixed_small, mixed_large };

struct CostSnapshot {
    std::array<double, 3> error_ratio{};   ///< mean |e| / T a regime
    std::array<double, 3> margin{1, 1, 1}; ///< q
    double kd_ns = 0, ka_ns = 0, ks_ns = 0;
    double pace = 1;                       ///< of the last steps over their usual time; moves only where rows are data
    uint64_t num_observed = 0, num_outliers = 0;
};

/// Why `observe` did not learn from a step, or that it did.
enum class CostVerdict : uint8_t { learned, outlier };

class CostModel {
public:
    /// `rows_are_data`: the cost runs through the true rows, straight between the shapes; else it is that of the padded shape.
    CostModel(std::vector<int32_t> row_ladder, bool rows_are_data, const CostRoofline& roofline);

    /// Predicted device time, without margin. Rows beyond the ladder run as consecutive launches and cost their sum.
    [[nodiscard]] uint64_t predict_ns(const StepFeatures& features) const;
    /// predict_ns x margin: what a step is held to.
    [[nodiscard]] uint64_t bound_ns(const StepFeatures& features) const;
    /// A prefill of `tokens` behind `context` others in steps of the largest shape, nothing beside it.
    [[nodiscard]] double prefill_ns(int32_t context, int32_t tokens) const {   // asked of each prompt in each plan
        const double pairs = static_cast<double>(tokens) * (context + 0.5 * (static_cast<double>(tokens) + 1));
        const double full_ns = rows_are_data_ ? table_.back().envelope_ns : table_.back().ns;
        return tokens * full_ns / ladder_.back() + theta_[1] * pairs / kPairUnit * kNsPerMs;
    }
    /// Most rows, without context, that a step of so many nanoseconds holds; 0 if not even the smallest shape fits.
    [[nodiscard]] double rows_within(double ns) const;
    /// q of the regime that the features fall into, in [1, 2].
    [[nodiscard]] double margin(const StepFeatures& features) const;
    /// End of the flat part beside `decode_rows` rows: largest shape that costs at most 1.15 x the decode rows alone.
    [[nodiscard]] int32_t floor_rows(int32_t decode_rows) const;
    /// Smallest shape that holds `rows`; beyond the ladder the sum of the launches' shapes.
    [[nodiscard]] int32_t padded_rows(int32_t rows) const;
    /// What the empty rows of the step's shape cost over the true ones, were they launched alone: their time is taken straight between the
    /// shapes about them. 0 on the flat part of the device, in the smallest shape, and where rows are data.
    [[nodiscard]] uint64_t padding_ns(const StepFeatures& features) const;
    CostVerdict observe(const StepFeatures& features, uint64_t device_ns);

    [[nodiscard]] double shared_margin() const { return shared_margin_; }
    [[nodiscard]] bool rows_are_data() const { return rows_are_data_; }
    [[nodiscard]] const std::vector<int32_t>& row_ladder() const { return ladder_; }
    [[nodiscard]] CostRegime regime(const StepFeatures& features) const;
    [[nodiscard]] CostSnapshot snapshot() const;
    /// Calibrated table as text, for the cache file; `load` refuses a text for other shapes.
    [[nodiscard]] std::string save() const;
    bool load(const std::string& text);

private:
    static constexpr double kPairUnit = 1e6;   // K and A are scaled to order 1 for the least squares
    static constexpr double kNsPerMs = 1e6;

    struct Entry {
        double base_ns = 0;        // roofline guess
        double ns = 0;             // L of the shape
        double envelope_ns = 0;    // max of ns over this and smaller shapes: what a monotone search may rely on
        uint32_t count = 0;
        uint32_t num_strange = 0;  // outliers in a row
        double mean_error_ns = 0;  // of the steps of this shape lately, and of their K, A and S: the slopes learn from what
        std::array<double, 3> mean_load{};   // differs from these
        uint32_t num_loads = 0;
    };
    [[nodiscard]] size_t shape_index(int32_t rows) const;
    [[nodiscard]] size_t answering_index(int32_t rows) const;
    [[nodiscard]] double launch_ns(int32_t rows) const;
    [[nodiscard]] double table_ns(int32_t rows) const;
    [[nodiscard]] std::array<double, 3> loads(const StepFeatures& features) const;
    [[nodiscard]] double slopes_ns(const StepFeatures& features) const;
    [[nodiscard]] double expected_ns(const StepFeatures& features) const;   // the pace in it
    void follow_pace(double ratio);
    void learn_entry(size_t index, double error_ns);
    void learn_table(const StepFeatures& features, double error_ns, double total_ns);
    void learn_slopes(size_t shape, const StepFeatures& features, double error_ns, double total_ns);
    void move_slopes(const std::array<double, 3>& by);
    void cap_covariance();
    void learn_margin(CostRegime regime, double ratio);
    void fill_unmeasured();
    void learn_rows(const StepFeatures& features, double total_ns);
    void take_prices();
    void refresh_envelope();

    std::vector<int32_t> ladder_;
    bool rows_are_data_;
    int32_t knee_rows_;
    std::vector<Entry> table_;          // one a shape
    std::optional<RowCosts> rows_;      // where rows are data: table and slopes are copies of its prices
    std::array<double, 3> theta_{};     // ms a unit of K, of A and of S (or H)
    std::array<std::array<double, 3>, 3> covariance_{};
    std::array<double, 3> max_variance_{};
    std::array<double, 3> margin_{1.1, 1.1, 1.1};
    double shared_margin_ = 1.1;
    double pace_ = 1;
    double burst_ = 3;                  // misses that the margins may still hear of at once, where rows are data
    std::array<double, 3> error_{};
    std::array<uint32_t, 3> samples_{};
    uint64_t num_observed_ = 0, num_outliers_ = 0;
};

}  // namespace takt
