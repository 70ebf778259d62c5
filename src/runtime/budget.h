// Budget: how many prefill rows the milliseconds of a step buy (scheduling.md 4.2). Pure functions over the cost model; they
// know rows and contexts, not requests. Engine thread only; nothing is allocated in a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cost_model.h"

namespace takt {

/// One prefill that could get rows, in the order in which it is served.
struct PrefillNeed {
    int32_t remaining = 0;        ///< tokens left
    int32_t context = 0;          ///< h: tokens already in its KV
    double floor_share = 0;       ///< of the step's prefill rows that are its own at least
    bool is_stalled = false;      ///< left out for long: at least kMinSlice of the rows are its own
    int32_t rows = 0;             ///< what it gets: written by `share_rows`
};

/// The decode part of a step.
struct DecodeLoad {
    int32_t rows = 0;
    int64_t context_tokens = 0;   ///< K
    uint64_t one_off_ns = 0;      ///< e
};

struct RowBudget {
    uint64_t budget_ns = 0;
    int32_t max_rows = 0;         ///< of the step: the largest shape
    int32_t steps_without_prefill = 0;   ///< for the duty cycle
    bool may_be_late = true;             ///< fewer gaps than may be were late of late
    bool is_late_anyway = false;         ///< decode rows alone break a promise: by prediction, or many of their steps did of late
    uint64_t kept_ns = UINT64_MAX;       ///< until the first of those streams must have its token whose promise can be kept
};

struct RowChoice {
    int32_t prefill_rows = 0;
    bool at_floor = false;        ///< taken although it breaks the budget
    bool infeasible = false;      ///< the decode rows alone break it
    bool saves_up = false;        ///< nothing fits, and this step leaves the prompts out for a late slice to come
};

constexpr int32_t kMinSlice = 16;        ///< of a padded shape: fewer rows cost as much
/// The least slice worth a step. Where each row has its price one is: on a slow device the gap may hold no more.
inline int32_t least_slice(const CostModel& cost) { return cost.rows_are_data() ? 1 : kMinSlice; }
constexpr double kFloorShare = 0.25;     ///< of a step's prefill rows, for the oldest prefill
constexpr double kLateShare = 0.1;       ///< of prefill time, for prompts whose promise is lost
constexpr double kMostLateCreditNs = 60e9;   ///< that they may save up: the dearest prompt can be paid
constexpr int32_t kMaxDutySteps = 8;     ///< a prefill that is owed work gets it at least every so many steps
/// Where each row has its price and not even one fits: one row at a time while hardly any of its steps is late; else one gap in so many
/// is given up (1.6 %, of 2 % that may be late) for a slice as long as so many promised gaps. A row in each step made nearly all gaps
/// late, and took longer.
constexpr int32_t kLateSliceSteps = 64;
constexpr double kLateSliceGaps = 20;
/// Where decoding alone takes longer than promised and each row has its price: a step with prompt rows usually takes at most so many times
/// what the decode rows take. Prompts then have half of the device and streams go on evenly at half their pace.
constexpr double kLostPromiseStep = 2;
constexpr double kMostGapCredit = 4;     ///< late steps that may come in a row before that
constexpr double kLateAnyway = 0.1;       ///< share of the steps without prompts
constexpr double kUsuallyInTime = 0.85;   ///< of the budget, for the usual step with one row
inline int32_t most_duty_steps(const CostModel& cost) { return cost.rows_are_data() ? kLateSliceSteps : kMaxDutySteps; }

constexpr double kEnvelopeCredit = 2.0;  ///< gaps that a stream ahead of its envelope may spend at once beside the next one

/// What a gap in an envelope may take, of a stream whose token before came so long before it was due.
inline double envelope_gap_ns(double itl_ns, double lead_ns) {
    return std::clamp(itl_ns + lead_ns, itl_ns, (1.0 + kEnvelopeCredit) * itl_ns);
}

/// Splits `total` rows over the needs in their order; first the floors: a share for the oldest,
/// a least slice for stalled ones.
void share_rows(std::span<PrefillNeed> needs, int32_t total);
/// Features of a step with these decode rows and `total` prefill rows over the needs.
StepFeatures mixed_features(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t total);
/// The slice that runs where none fits the budget, of `most` rows that wait: the rest of the flat part; the least where each row has
/// its price.
int32_t floor_slice(const CostModel& cost, const DecodeLoad& decode, int32_t most);
/// Largest number of prefill rows that the budget buys; floor and duty cycle, or late slices, where even little breaks it.
RowChoice choose_rows(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, const RowBudget& budget);

/// Trim u of the budget: an integrator in the log domain on the 99th percentile of the gaps that streams really saw
/// (scheduling.md 4.3), with anti-wind-up and a fast cut.
class BudgetTrim {
public:
    BudgetTrim();
    /// A gap ended. `ratio` = what the device made of it, with the usual host part, over its SLA: an unusual host part is no
    /// reason for smaller slices. `had_prefill`: the step carried prefill rows.
    void gap(double ratio, bool had_prefill);
    /// A step was planned: `constrained` says that floor or infeasibility decided, so that the trim must not wind up.
    void step(bool had_prefill, bool constrained, bool infeasible);
    /// Factor on the allowed gap, in [0.25, 1]: u, halved while a fast cut lasts.
    [[nodiscard]] double factor() const { return cut_steps_ > 0 ? 0.5 * trim_ : trim_; }
    [[nodiscard]] double trim() const { return trim_; }
    [[nodiscard]] bool infeasible() const { return infeasible_; }

private:
    void update();
    static constexpr size_t kWindow = 512;
    std::vector<float> ratios_;          // ring of the last kWindow gaps
    std::vector<float> sorted_;          // scratch
    size_t num_gaps_ = 0;
    double trim_ = 1.0;
    int32_t num_steps_ = 0;
    int32_t prefill_steps_ = 0, constrained_steps_ = 0, infeasible_steps_ = 0;
    int32_t infeasible_windows_ = 0;
    int32_t cut_steps_ = 0;
    bool infeasible_ = false;
};

/// 95th percentile of the host's part of a gap: what lies between a step's end on the device and its tokens at the writer, as
/// far as the start of the step does not already count it. An online quantile with bounded steps.
class HostPart {
public:
    void observe(double ns);
    [[nodiscard]] double ns() const { return quantile_ns_; }

private:
    double quantile_ns_ = 200'000;   // before anything was measured
};

}  // namespace takt
