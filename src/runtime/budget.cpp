// Budget: see the header. Candidates are the launchable shapes; where the rows are data, any count.
#include "runtime/budget.h"

#include <algorithm>
#include <cmath>

namespace takt {
namespace {

constexpr size_t kPartShapes = 3;          // above the largest full one that fits: of more than that too little would be filled
constexpr double kWorthShrinking = 1.05;   // a smaller shape must be that much faster a row: fewer steps cost less host time

int32_t total_remaining(std::span<const PrefillNeed> needs, int32_t enough) {
    int64_t total = 0;
    for (const PrefillNeed& need : needs) {
        total += need.remaining;
        if (total >= enough) return enough;
    }
    return static_cast<int32_t>(total);
}

bool fits(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t rows, uint64_t budget_ns) {
    return cost.bound_ns(mixed_features(cost, decode, needs, rows)) <= budget_ns;
}

/// Largest count in [low, high] that fits, if `low` is known to; monotone in the rows at one shape.
int32_t search(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t low, int32_t high,
               uint64_t budget_ns) {
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (fits(cost, decode, needs, middle, budget_ns)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/// A way to fill a step: the prefill rows, how many of them a nanosecond buys, and how many prompts end with it.
struct Fill {
    int32_t rows = 0;
    double rate = 0;
    int32_t num_ended = 0;
};

Fill fill_of(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t rows) {
    Fill fill;
    fill.rows = rows;
    fill.rate = rows / static_cast<double>(std::max<uint64_t>(cost.predict_ns(mixed_features(cost, decode, needs, rows)), 1));
    for (const PrefillNeed& need : needs) fill.num_ended += need.rows == need.remaining ? 1 : 0;
    return fill;
}

/// The largest full shape that fits, then what moves prompts faster: a part of a shape above it (deep in a document a row costs
/// much beside the shape), or a smaller full one (the device's times are a staircase). Never fewer prompts ended for that.
int32_t rows_by_shape(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t least, int32_t most,
                      uint64_t budget_ns) {
    const std::vector<int32_t>& ladder = cost.row_ladder();
    const auto index_of = [&](int32_t rows) {
        return static_cast<size_t>(std::lower_bound(ladder.begin(), ladder.end(), rows) - ladder.begin());
    };
    const size_t first = index_of(decode.rows + least), last = std::min(index_of(decode.rows + most), ladder.size() - 1);
    size_t at = last + 1;
    Fill best;
    while (at > first && best.rows == 0) {
        const int32_t rows = std::min(ladder[--at] - decode.rows, most);
        if (fits(cost, decode, needs, rows, budget_ns)) best = fill_of(cost, decode, needs, rows);
    }
    if (best.rows == most) return most;   // ending everything is better than any pace
    const size_t full = at;
    for (size_t i = best.rows > 0 ? full + 1 : first; i <= last && i <= full + kPartShapes; ++i) {
        const int32_t low = std::max(least, i > 0 ? ladder[i - 1] - decode.rows + 1 : 1);
        if (!fits(cost, decode, needs, low, budget_ns)) continue;
        const int32_t high = std::min(ladder[i] - decode.rows, most);
        const Fill part = fill_of(cost, decode, needs, search(cost, decode, needs, low, high, budget_ns));
        if (part.rate > best.rate) best = part;
    }
    for (size_t i = full; i-- > first && 2 * ladder[i] > ladder[full];) {
        const Fill smaller = fill_of(cost, decode, needs, ladder[i] - decode.rows);
        if (smaller.num_ended < best.num_ended) break;
        if (smaller.rate > kWorthShrinking * best.rate && fits(cost, decode, needs, smaller.rows, budget_ns)) best = smaller;
    }
    return best.rows;
}

/// Whether the least slice's usual step keeps the budget, though not with its margin.
bool usually_in_time(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t least, uint64_t budget_ns) {
    const auto usual_ns = static_cast<double>(cost.predict_ns(mixed_features(cost, decode, needs, least)));
    return usual_ns <= kUsuallyInTime * static_cast<double>(budget_ns);
}

/// Not even the least slice fits, and each row has its price: a gap that is late anyway carries a slice that moves the prompt, and the
/// gaps between two such hold. Where decoding alone takes longer than promised they do not: each step then carries what keeps it even with
/// the others, as far as the promises of other streams can be kept; where that is not a row, each eighth a late slice.
void choose_late_slice(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t least, int32_t most,
                       const RowBudget& budget, RowChoice& choice) {
    const uint64_t alone_ns = cost.predict_ns(mixed_features(cost, decode, needs, 0));
    const bool is_lost = budget.is_late_anyway || alone_ns > budget.budget_ns;
    const double even_ns = kLostPromiseStep * static_cast<double>(cost.bound_ns(mixed_features(cost, decode, needs, 0)));
    const uint64_t most_ns = std::min(static_cast<uint64_t>(even_ns), budget.kept_ns);
    if (is_lost && fits(cost, decode, needs, least, most_ns)) {
        choice.at_floor = true;
        choice.prefill_rows = search(cost, decode, needs, least, most, most_ns);
        return;
    }
    const int32_t every = is_lost ? kMaxDutySteps : kLateSliceSteps;
    choice.at_floor = budget.steps_without_prefill + 1 >= every;
    choice.saves_up = !choice.at_floor;
    if (choice.at_floor) {
        const auto gap_ns = static_cast<double>(std::max(alone_ns, budget.budget_ns));
        choice.prefill_rows = search(cost, decode, needs, least, most, static_cast<uint64_t>(kLateSliceGaps * gap_ns));
    }
}

}  // namespace

void share_rows(std::span<PrefillNeed> needs, int32_t total) {
    int32_t left = total;
    // A single row, all that a slow device's step may hold, is the stalled one's: the oldest one's share would be all of it, in each step.
    const bool scarce = total == 1 && std::any_of(needs.begin(), needs.end(), [](const PrefillNeed& n) { return n.is_stalled; });
    for (PrefillNeed& need : needs) {
        need.rows = 0;
        if (scarce && !need.is_stalled) continue;
        int32_t floor = need.is_stalled ? kMinSlice : 0;
        if (need.floor_share > 0) floor = std::max(floor, static_cast<int32_t>(std::ceil(need.floor_share * total)));
        if (floor == 0) continue;
        need.rows = std::min({need.remaining, floor, left});
        left -= need.rows;
    }
    for (PrefillNeed& need : needs) {
        if (left <= 0) break;
        const int32_t more = std::min(left, need.remaining - need.rows);
        need.rows += more;
        left -= more;
    }
}

StepFeatures mixed_features(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, int32_t total) {
    StepFeatures features;
    features.decode_rows = decode.rows;
    features.kv_read_tokens = decode.context_tokens;
    features.one_off_ns = decode.one_off_ns;
    features.rows = decode.rows;
    if (total > 0) {
        share_rows(needs, total);
        for (const PrefillNeed& need : needs) {
            if (need.rows > 0) features.add_slice(need.rows, need.context);
        }
    }
    features.padded_rows = features.rows > 0 ? cost.padded_rows(features.rows) : 0;
    return features;
}

int32_t floor_slice(const CostModel& cost, const DecodeLoad& decode, int32_t most) {
    const int32_t least = std::min(least_slice(cost), most);
    return cost.rows_are_data() ? least : std::clamp(cost.floor_rows(decode.rows) - decode.rows, least, most);
}

RowChoice choose_rows(const CostModel& cost, const DecodeLoad& decode, std::span<PrefillNeed> needs, const RowBudget& budget) {
    RowChoice choice;
    const uint64_t alone_ns = cost.bound_ns(mixed_features(cost, decode, needs, 0));
    choice.infeasible = decode.rows > 0 && alone_ns > budget.budget_ns;
    const int32_t most = total_remaining(needs, std::max(0, budget.max_rows - decode.rows));
    if (most == 0) return choice;
    const int32_t least = std::min(least_slice(cost), most);
    if (!choice.infeasible && fits(cost, decode, needs, least, budget.budget_ns)) {
        if (cost.rows_are_data()) {
            choice.prefill_rows = search(cost, decode, needs, least, most, budget.budget_ns);
            return choice;
        }
        choice.prefill_rows = rows_by_shape(cost, decode, needs, least, most, budget.budget_ns);
        return choice;
    }
    if (cost.rows_are_data() && decode.rows > 0 && !(budget.may_be_late && usually_in_time(cost, decode, needs, least, budget.budget_ns))) {
        choose_late_slice(cost, decode, needs, least, most, budget, choice);
        return choice;
    }
    // Even the least slice breaks the budget: run the flat part's slice every m-th step, so that the prompt always moves.
    const int32_t slice = floor_slice(cost, decode, most);
    const uint64_t floor_ns = cost.bound_ns(mixed_features(cost, decode, needs, slice));
    int32_t every = kMaxDutySteps;
    if (decode.rows == 0) {
        every = 1;
    } else if (!choice.infeasible && alone_ns < budget.budget_ns) {
        const double overrun = static_cast<double>(floor_ns - std::min(floor_ns, budget.budget_ns));
        const double allowance = static_cast<double>(budget.budget_ns - alone_ns);
        every = static_cast<int32_t>(std::clamp(std::ceil(overrun / allowance), 2.0, static_cast<double>(kMaxDutySteps)));
    }
    if (budget.steps_without_prefill + 1 >= every) {
        choice.prefill_rows = slice;
        choice.at_floor = true;
    }
    return choice;
}

void HostPart::observe(double ns) {
    constexpr double kUp = 0.95, kStep = 0.02;   // up 19 times as far as down: at rest one in twenty lies above
    const double step = kStep * std::clamp(quantile_ns_, 20'000.0, 2e6);
    quantile_ns_ = std::clamp(quantile_ns_ + (ns > quantile_ns_ ? kUp : kUp - 1.0) * step, 0.0, 20e6);
}

BudgetTrim::BudgetTrim() : ratios_(kWindow, 0.0F), sorted_(kWindow, 0.0F) {}

void BudgetTrim::gap(double ratio, bool had_prefill) {
    ratios_[num_gaps_++ % kWindow] = static_cast<float>(ratio);
    if (ratio > 1.5 && had_prefill) cut_steps_ = 4;
}

void BudgetTrim::step(bool had_prefill, bool constrained, bool infeasible) {
    if (cut_steps_ > 0) --cut_steps_;
    prefill_steps_ += had_prefill ? 1 : 0;
    constrained_steps_ += constrained ? 1 : 0;
    infeasible_steps_ += infeasible ? 1 : 0;
    if (++num_steps_ < 64) return;
    infeasible_windows_ = infeasible_steps_ * 2 > num_steps_ ? infeasible_windows_ + 1 : 0;
    infeasible_ = infeasible_windows_ >= 1;
    // Frozen when no prefill ran (the budget had no say) or when floor or infeasibility decided instead of it.
    if (prefill_steps_ > 0 && constrained_steps_ * 4 <= num_steps_ && !infeasible_) update();
    num_steps_ = prefill_steps_ = constrained_steps_ = infeasible_steps_ = 0;
}

void BudgetTrim::update() {
    const size_t count = std::min(num_gaps_, kWindow);
    if (count < 64) return;
    double excess = 0;   // ln(Q / SLA)
    if (count >= 300) {
        std::copy(ratios_.begin(), ratios_.begin() + static_cast<ptrdiff_t>(count), sorted_.begin());
        const auto nth = sorted_.begin() + static_cast<ptrdiff_t>(static_cast<double>(count - 1) * 0.99);
        std::nth_element(sorted_.begin(), nth, sorted_.begin() + static_cast<ptrdiff_t>(count));
        excess = std::log(std::max(static_cast<double>(*nth), 0.1));
    } else {   // a p99 of so few is noise: use the share of late gaps
        size_t num_late = 0;
        for (size_t i = 0; i < count; ++i) num_late += ratios_[i] > 1.0F ? 1 : 0;
        excess = static_cast<double>(num_late) / static_cast<double>(count) > 0.02 ? 0.05 : -0.05;
    }
    trim_ = std::clamp(trim_ * std::exp(-(excess > 0 ? 0.3 : 0.03) * excess), 0.5, 1.0);
    if (excess > 0) num_gaps_ = 0;   // answered: the same late gaps must not cut again in each update until they leave the window
}

}  // namespace takt
