// CostModel: table by shape, slopes by weighted recursive least squares with a capped covariance (where rows are data both in one,
// row_costs.h), an online quantile margin for each regime. Everything is plain double arithmetic in a fixed order, so that both
// compilers give the same digits.
#include "runtime/cost_model.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "kernels/assert.h"

namespace takt {
namespace {

constexpr double kContextUnit = 1e5;     // K and A are scaled to order 1 for the least squares
constexpr double kForgetting = 0.999;
constexpr double kSlopeGain = 0.5;       // damps the slopes against outliers that pass as truth
constexpr size_t kSlopes = 3;            // K, A, S
constexpr double kSegmentDoubtMs = 0.1;  // a segment costs about so much more or less than nothing
constexpr double kOutlierShare = 0.5;    // an error over this share of the prediction is counted, not learned
constexpr uint32_t kStrangeRun = 8;      // that many outliers in a row are no outliers: the device changed
constexpr uint32_t kTableWindow = 30;
constexpr uint32_t kSharingSamples = 50; // a regime uses the shared margin until it has that many of its own
constexpr double kMarginStep = 0.04;
constexpr double kMostMargin = 2.0;
constexpr double kStall = 1.75;          // times its prediction: longer than that on shared cores is not the margin's matter
constexpr double kMissShare = 0.01;      // on shared cores too: stalls, and waits on the way out, come on top
constexpr double kBurst = 3;             // misses that move the margin there at once; behind them one in so many steps may:
constexpr double kBurstSteps = 20;       // a burst of another program is over before the steps that would pay for each of its misses
constexpr double kPaceGain = 0.5;        // of the pace, from a step's error in the log domain: a spell is known after one late step
constexpr double kMostPaceError = 0.6;   // ... which counts at most so far: one outlier moves the pace by a third
constexpr double kMostPace = 0.7;        // the pace stays within e^-0.7 and e^0.7
constexpr double kFlatShare = 1.15;

}  // namespace

/// K, A and S; where rows are data H, the reading of a slice's K and V, stands for S.
std::array<double, 3> CostModel::loads(const StepFeatures& features) const {
    if (rows_are_data_) {
        const std::array<double, 3> load = RowCosts::loads(features);
        return {load[0] / kContextUnit, load[1] / kPairUnit, load[2] / kContextUnit};
    }
    return {static_cast<double>(features.kv_read_tokens) / kContextUnit, static_cast<double>(features.prefill_pairs) / kPairUnit,
            static_cast<double>(features.prefill_segments)};
}

CostModel::CostModel(std::vector<int32_t> row_ladder, bool rows_are_data, const CostRoofline& roofline)
    : ladder_(std::move(row_ladder)), rows_are_data_(rows_are_data), table_(ladder_.size()) {
    TAKT_ASSERT(!ladder_.empty());
    knee_rows_ = std::min(512, std::max(1, ladder_.back() / 2));
    if (rows_are_data_) {
        rows_.emplace(ladder_, roofline);
        take_prices();
        return;
    }
    const double read_ns = roofline.weight_bytes / roofline.bytes_per_second * 1e9;
    for (size_t i = 0; i < ladder_.size(); ++i) {
        const double work_ns = roofline.operations_per_row * ladder_[i] / roofline.operations_per_second * 1e9;
        table_[i].base_ns = std::max(1000.0, std::max(read_ns, work_ns) + roofline.launch_seconds * 1e9);
        table_[i].ns = table_[i].base_ns;
    }
    theta_[0] = roofline.kv_bytes_per_token / roofline.bytes_per_second * 1e3 * kContextUnit;
    theta_[1] = roofline.operations_per_pair / roofline.operations_per_second * 1e3 * kPairUnit;
    // Prior: a slope may be off by its own size (or by 1 ms a unit if there is no guess), against 2 % noise of a step.
    for (size_t i = 0; i < kSlopes; ++i) {
        const double doubt = (i < 2 ? std::max(theta_[i], 1.0) : kSegmentDoubtMs) / 0.02;
        covariance_[i][i] = max_variance_[i] = doubt * doubt;
        max_variance_[i] *= 4;
    }
    refresh_envelope();
}

size_t CostModel::shape_index(int32_t rows) const {
    const auto at = std::lower_bound(ladder_.begin(), ladder_.end(), rows);
    return static_cast<size_t>(std::min(at, ladder_.end() - 1) - ladder_.begin());
}

/// The shape that answers most for a step of so many rows: that which holds them; where rows are data the nearer one of the two about them.
size_t CostModel::answering_index(int32_t rows) const {
    const size_t above = shape_index(rows);
    const bool nearer_below = rows_are_data_ && above > 0 && 2 * rows < ladder_[above - 1] + ladder_[above];
    return nearer_below && table_[above - 1].count > 0 ? above - 1 : above;
}

int32_t CostModel::padded_rows(int32_t rows) const {
    const int32_t largest = ladder_.back();
    const int32_t whole = rows <= largest ? 0 : (rows - 1) / largest;
    return whole * largest + ladder_[shape_index(rows - whole * largest)];
}

uint64_t CostModel::padding_ns(const StepFeatures& features) const {
    if (rows_are_data_ || features.rows <= 0) return 0;
    const int32_t rows = (features.rows - 1) % ladder_.back() + 1;   // of the last launch, which alone is not full
    const size_t above = shape_index(rows);
    if (above == 0 || ladder_[above] == rows) return 0;
    const double empty = static_cast<double>(ladder_[above] - rows) / (ladder_[above] - ladder_[above - 1]);
    return static_cast<uint64_t>(std::max(0.0, empty * (table_[above].ns - table_[above - 1].ns)));
}

double CostModel::launch_ns(int32_t rows) const {
    const size_t above = shape_index(rows);
    if (!rows_are_data_) return table_[above].ns;
    if (above == 0 || rows >= ladder_[above]) return table_[above].envelope_ns;
    const double share = static_cast<double>(rows - ladder_[above - 1]) / (ladder_[above] - ladder_[above - 1]);
    return table_[above - 1].envelope_ns + share * (table_[above].envelope_ns - table_[above - 1].envelope_ns);
}

double CostModel::table_ns(int32_t rows) const {
    const int32_t largest = ladder_.back();
    const int32_t whole = rows <= largest ? 0 : (rows - 1) / largest;
    return whole * launch_ns(largest) + launch_ns(rows - whole * largest);
}

double CostModel::slopes_ns(const StepFeatures& features) const {
    const std::array<double, kSlopes> x = loads(features);
    return (theta_[0] * x[0] + theta_[1] * x[1] + theta_[2] * x[2]) * kNsPerMs + static_cast<double>(features.one_off_ns);
}

double CostModel::expected_ns(const StepFeatures& features) const {
    return (table_ns(features.rows) + slopes_ns(features)) * pace_;
}

uint64_t CostModel::predict_ns(const StepFeatures& features) const {
    if (features.rows <= 0) return 0;
    return static_cast<uint64_t>(expected_ns(features));
}

uint64_t CostModel::bound_ns(const StepFeatures& features) const {
    if (features.rows <= 0) return 0;
    return static_cast<uint64_t>(expected_ns(features) * margin(features));
}

double CostModel::rows_within(double ns) const {
    for (size_t i = ladder_.size(); i-- > 0;) {
        const double own = rows_are_data_ ? table_[i].envelope_ns : table_[i].ns;
        if (own > ns) continue;
        if (!rows_are_data_ || i + 1 == ladder_.size()) return ladder_[i];
        const double next = table_[i + 1].envelope_ns;
        return ladder_[i] + (next > own ? (ns - own) / (next - own) : 0.0) * (ladder_[i + 1] - ladder_[i]);
    }
    return 0;
}

CostRegime CostModel::regime(const StepFeatures& features) const {
    if (features.prefill_segments == 0) return CostRegime::decode;
    return features.rows <= knee_rows_ ? CostRegime::mixed_small : CostRegime::mixed_large;
}

double CostModel::margin(const StepFeatures& features) const {
    const auto at = static_cast<size_t>(regime(features));
    return samples_[at] < kSharingSamples ? shared_margin_ : margin_[at];
}

int32_t CostModel::floor_rows(int32_t decode_rows) const {
    const double limit = kFlatShare * launch_ns(std::clamp(decode_rows, 1, ladder_.back()));
    int32_t best = decode_rows;
    for (size_t i = 0; i < ladder_.size(); ++i) {
        if (ladder_[i] < decode_rows) continue;
        if (table_[i].envelope_ns <= limit) {
            best = std::max(best, ladder_[i]);
            continue;
        }
        if (rows_are_data_ && i > 0 && ladder_[i - 1] >= decode_rows) {
            const double low = table_[i - 1].envelope_ns, high = table_[i].envelope_ns;
            const double share = high > low ? std::clamp((limit - low) / (high - low), 0.0, 1.0) : 0.0;
            best = std::max(best, ladder_[i - 1] + static_cast<int32_t>(share * (ladder_[i] - ladder_[i - 1])));
        }
        break;
    }
    return best;
}

CostVerdict CostModel::observe(const StepFeatures& features, uint64_t device_ns) {
    if (features.rows <= 0 || device_ns == 0) return CostVerdict::outlier;
    ++num_observed_;
    const auto total_ns = static_cast<double>(device_ns);
    const double usual_ns = table_ns(features.rows) + slopes_ns(features);
    const double predicted_ns = usual_ns * pace_;
    const double error_ns = total_ns - usual_ns;
    const CostRegime where = regime(features);
    Entry& entry = table_[answering_index(features.rows)];
    const bool fresh = entry.count < 3;
    const bool strange = std::abs(total_ns - predicted_ns) > kOutlierShare * predicted_ns;
    entry.num_strange = strange ? entry.num_strange + 1 : 0;
    // A stall of shared cores is no property of the step: shorter steps would meet as many of them.
    if (!fresh && !(rows_are_data_ && total_ns > kStall * predicted_ns)) learn_margin(where, total_ns / predicted_ns);
    if (!fresh) follow_pace(total_ns / usual_ns);
    if (strange && !fresh) {
        if (entry.num_strange < kStrangeRun) {
            ++num_outliers_;
            if (rows_are_data_) learn_rows(features, total_ns);   // as far as it believes errors: rare late slices may all be strange
            return CostVerdict::outlier;
        }
        entry.count = 0;   // the device changed: start this shape again
        entry.num_strange = 0;
        if (rows_are_data_) rows_->doubt();
    }
    double& mean_error = error_[static_cast<size_t>(where)];
    mean_error += (std::abs(total_ns - predicted_ns) / total_ns - mean_error) / std::min(++samples_[static_cast<size_t>(where)], 200U);
    if (rows_are_data_) {
        ++entry.count;
        learn_rows(features, total_ns);
    } else {
        learn_table(features, error_ns, total_ns);
        learn_slopes(shape_index(features.rows), features, error_ns, total_ns);
        refresh_envelope();
    }
    return CostVerdict::learned;
}

/// Cores that others share are now faster, now slower, for some hundred milliseconds at a time and for every shape alike. Table and
/// slopes learn what lasts; the pace is what they do not know yet.
void CostModel::follow_pace(double ratio) {
    if (!rows_are_data_) return;
    const double error = std::clamp(std::log(ratio / pace_), -kMostPaceError, kMostPaceError);
    pace_ = std::exp(std::clamp(std::log(pace_) + kPaceGain * error, -kMostPace, kMostPace));
}

void CostModel::learn_rows(const StepFeatures& features, double total_ns) {
    rows_->observe(features, total_ns - static_cast<double>(features.one_off_ns));
    take_prices();
}

/// Prices where rows are data, in the form in which all others are read.
void CostModel::take_prices() {
    for (size_t i = 0; i < table_.size(); ++i) table_[i].ns = table_[i].envelope_ns = std::max(rows_->base_ns(i), 500.0);
    const std::array<double, kSlopes> slopes = rows_->slopes_ns();
    theta_ = {slopes[0] * kContextUnit / kNsPerMs, slopes[1] * kPairUnit / kNsPerMs, slopes[2] * kContextUnit / kNsPerMs};
}

void CostModel::learn_entry(size_t index, double error_ns) {
    Entry& entry = table_[index];
    const double gain = 0.5 / std::min(std::max(entry.count, 1U), kTableWindow);
    entry.ns = std::max(entry.ns + error_ns * gain, 500.0);
    ++entry.count;
}

void CostModel::learn_table(const StepFeatures& features, double error_ns, double total_ns) {
    const int32_t largest = ladder_.back();
    if (features.rows > largest) {   // several launches: the error belongs mostly to the full shape
        learn_entry(ladder_.size() - 1, error_ns / ((features.rows + largest - 1) / largest));
        return;
    }
    Entry& entry = table_[shape_index(features.rows)];
    if (entry.count > 0) {
        learn_entry(shape_index(features.rows), error_ns);
        return;
    }
    // First sight: believe it, the slopes' part aside.
    entry.ns = std::max(500.0, std::max(total_ns - slopes_ns(features), 0.3 * total_ns));
    entry.count = 1;
    fill_unmeasured();
}

void CostModel::fill_unmeasured() {
    // An unmeasured shape keeps the roofline's form and takes the correction of its nearest measured neighbours.
    const size_t count = table_.size();
    for (size_t i = 0; i < count; ++i) {
        if (table_[i].count > 0) continue;
        size_t below = i, above = i;
        while (below > 0 && table_[below].count == 0) --below;
        while (above + 1 < count && table_[above].count == 0) ++above;
        const double low = table_[below].count > 0 ? table_[below].ns / table_[below].base_ns : 0.0;
        const double high = table_[above].count > 0 ? table_[above].ns / table_[above].base_ns : 0.0;
        double ratio = low > 0 && high > 0 ? 0.5 * (low + high) : std::max(low, high);
        if (ratio <= 0) ratio = 1.0;
        table_[i].ns = table_[i].base_ns * ratio;
    }
}

/// Slopes are learned within a shape: from how a step's error differs from the shape's usual one as its K and A differ from
/// their usual values. So a wrong table entry does not bend the slopes, and a wrong slope does not stay in the table.
void CostModel::learn_slopes(size_t shape, const StepFeatures& features, double error_ns, double total_ns) {
    Entry& entry = table_[shape];
    const std::array<double, kSlopes> load = loads(features);
    if (entry.num_loads == 0) {
        entry.mean_load = load;
        entry.mean_error_ns = error_ns;
        entry.num_loads = 1;
        return;
    }
    const double total_ms = total_ns / kNsPerMs;
    const double error_ms = (error_ns - entry.mean_error_ns) / kNsPerMs;
    std::array<double, kSlopes> x = load, px{};
    entry.num_loads = std::min(entry.num_loads + 1, kTableWindow);
    const double share = 1.0 / entry.num_loads;
    entry.mean_error_ns += (error_ns - entry.mean_error_ns) * share;
    for (size_t i = 0; i < kSlopes; ++i) {
        x[i] = load[i] - entry.mean_load[i];
        entry.mean_load[i] += x[i] * share;
    }
    double spread = 0;
    for (size_t i = 0; i < kSlopes; ++i) {
        for (size_t j = 0; j < kSlopes; ++j) px[i] += covariance_[i][j] * x[j];
        spread += x[i] * px[i];
    }
    if (spread < 1e-3 * total_ms * total_ms) return;   // nothing to learn from it: the covariance must not wind up
    const double denominator = kForgetting * total_ms * total_ms + spread;
    std::array<double, kSlopes> gain{}, move{};
    double effect_ms = 0;
    for (size_t i = 0; i < kSlopes; ++i) {
        gain[i] = px[i] / denominator;
        move[i] = std::max(kSlopeGain * gain[i] * error_ms, -theta_[i]);   // a slope never falls under 0
        effect_ms += move[i] * x[i];
    }
    // Loads that grow together, as in a document: one slope would have to fall under 0 so that another may rise. As it cannot, a step that
    // was shorter than predicted would be predicted longer still, and so on without end. The table answers for such an error alone.
    if (effect_ms * error_ms < 0) return;
    move_slopes(move);
    for (size_t i = 0; i < kSlopes; ++i) {
        for (size_t j = 0; j < kSlopes; ++j) covariance_[i][j] = (covariance_[i][j] - gain[i] * px[j]) / kForgetting;
    }
    cap_covariance();
}

/// Symmetric again, and no slope's doubt above a multiple of its first: a direction without news must not open it without end.
void CostModel::cap_covariance() {
    for (size_t i = 0; i < kSlopes; ++i) {
        for (size_t j = 0; j < i; ++j) {
            covariance_[i][j] = covariance_[j][i] = 0.5 * (covariance_[i][j] + covariance_[j][i]);
        }
    }
    for (size_t i = 0; i < kSlopes; ++i) {
        if (covariance_[i][i] <= max_variance_[i]) continue;
        const double scale = std::sqrt(max_variance_[i] / covariance_[i][i]);
        for (size_t j = 0; j < kSlopes; ++j) {
            covariance_[i][j] *= scale;
            covariance_[j][i] *= scale;
        }
    }
}

/// New slopes leave each shape's prediction at its usual load where it was.
void CostModel::move_slopes(const std::array<double, kSlopes>& by) {
    for (size_t i = 0; i < kSlopes; ++i) theta_[i] += by[i];
    for (Entry& entry : table_) {
        if (entry.num_loads == 0) continue;
        double usual_ms = 0;
        for (size_t i = 0; i < kSlopes; ++i) usual_ms += by[i] * entry.mean_load[i];
        entry.ns = std::max(entry.ns - usual_ms * kNsPerMs, 500.0);
    }
}

void CostModel::learn_margin(CostRegime regime, double ratio) {
    const auto at = static_cast<size_t>(regime);
    burst_ = std::min(kBurst, burst_ + 1 / kBurstSteps);
    const bool is_heard = !rows_are_data_ || burst_ >= 1;
    if (ratio > margin_[at] && is_heard) burst_ = std::max(0.0, burst_ - 1);
    const auto step = [ratio, is_heard](double q) {
        return std::clamp(q + kMarginStep * ((ratio > q && is_heard ? 1.0 : 0.0) - kMissShare), 1.0, kMostMargin);
    };
    shared_margin_ = step(shared_margin_);
    if (samples_[at] < kSharingSamples) {
        margin_[at] = shared_margin_;
    } else {
        margin_[at] = step(margin_[at]);
    }
}

/// The table read upwards: never falling.
void CostModel::refresh_envelope() {
    double highest = 0;
    for (Entry& entry : table_) entry.envelope_ns = highest = std::max(highest, entry.ns);
}

CostSnapshot CostModel::snapshot() const {
    CostSnapshot snapshot;
    snapshot.error_ratio = error_;
    for (size_t i = 0; i < 3; ++i) snapshot.margin[i] = samples_[i] < kSharingSamples ? shared_margin_ : margin_[i];
    snapshot.kd_ns = theta_[0] * kNsPerMs / kContextUnit;
    snapshot.ka_ns = theta_[1] * kNsPerMs / kPairUnit;
    snapshot.ks_ns = rows_are_data_ ? 0.0 : theta_[2] * kNsPerMs;
    snapshot.pace = pace_;
    snapshot.num_observed = num_observed_;
    snapshot.num_outliers = num_outliers_;
    return snapshot;
}

std::string CostModel::save() const {
    std::ostringstream out;
    out.precision(9);
    out << "takt-cost-table 2 " << ladder_.size() << ' ' << (rows_are_data_ ? 1 : 0) << '\n';
    for (size_t i = 0; i < ladder_.size(); ++i) {
        out << ladder_[i] << ' ' << table_[i].ns << ' ' << std::min(table_[i].count, kTableWindow) << '\n';
    }
    out << theta_[0] << ' ' << theta_[1] << ' ' << shared_margin_;
    if (rows_are_data_) out << ' ' << theta_[2];
    out << '\n';
    return out.str();
}

bool CostModel::load(const std::string& text) {
    std::istringstream in(text);
    std::string magic;
    int version = 0, data = 0;
    size_t count = 0;
    if (!(in >> magic >> version >> count >> data) || magic != "takt-cost-table" || version != 2) return false;
    if (count != ladder_.size() || (data != 0) != rows_are_data_) return false;
    std::vector<Entry> table = table_;
    for (size_t i = 0; i < count; ++i) {
        int32_t rows = 0;
        if (!(in >> rows >> table[i].ns >> table[i].count)) return false;
        if (rows != ladder_[i] || !(table[i].ns > 0) || !std::isfinite(table[i].ns)) return false;
        // Another day's table is a good guess, not a measurement of today: it may be moved quickly.
        table[i].count = std::min(table[i].count, 3U);
    }
    double context = 0, pairs = 0, margin = 0, reads = 0;
    if (!(in >> context >> pairs >> margin) || (rows_are_data_ && !(in >> reads)) || !(reads >= 0) || !std::isfinite(reads)) return false;
    if (!(context >= 0) || !(pairs >= 0)) return false;
    if (!std::isfinite(context) || !std::isfinite(pairs) || !(margin >= 1) || !(margin <= 2)) return false;
    table_ = table;
    theta_[0] = context;
    theta_[1] = pairs;
    if (rows_are_data_) theta_[2] = reads;
    shared_margin_ = margin;
    if (rows_are_data_) {
        std::vector<double> base_ns;
        for (const Entry& entry : table_) base_ns.push_back(entry.ns);
        rows_->believe(base_ns, {context / kContextUnit * kNsPerMs, pairs / kPairUnit * kNsPerMs, reads / kContextUnit * kNsPerMs});
        take_prices();
    } else {
        fill_unmeasured();
        refresh_envelope();
    }
    return true;
}

}  // namespace takt
