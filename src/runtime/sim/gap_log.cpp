// GapLog: see the header.
#include "runtime/sim/gap_log.h"

#include <algorithm>

namespace takt::sim {

GapLog::GapLog(const SimulateOptions& options, const std::vector<SimRequest>& workload)
    : num_explained_(static_cast<size_t>(std::max(0, options.num_explained))),
      longest_ns_(static_cast<size_t>(std::max(1, options.num_plot_points)), 0) {
    const uint64_t last = workload.empty() ? 1 : workload.back().arrival_ns + 1;
    stretch_ns_ = std::max<uint64_t>(1, last / longest_ns_.size());
}

void GapLog::attach(SimOptions& options) {
    options.on_gap = [this](const SimGap& gap) { add(gap); };
}

void GapLog::add(const SimGap& gap) {
    const size_t at = std::min(static_cast<size_t>(gap.end_ns / stretch_ns_), longest_ns_.size() - 1);
    longest_ns_[at] = std::max(longest_ns_[at], gap.gap_ns);
    if (gap.gap_ns <= gap.promised_ns) return;
    LateFacts facts;
    facts.gap_ns = gap.gap_ns;
    facts.promised_ns = gap.promised_ns;
    facts.device_ns = gap.step->end_ns - gap.step->begin_ns;
    facts.predicted_ns = gap.step->predicted_ns;
    facts.padding_ns = gap.step->padding_ns;
    facts.prefill_rows = gap.step->prefill_rows;
    facts.was_preempted = gap.was_preempted;
    facts.was_paused = gap.was_paused;
    const auto cause = static_cast<size_t>(late_cause(facts));
    late_ns_[cause] += gap.gap_ns - gap.promised_ns;
    const auto late = [](const ExplainedGap& g) { return g.gap_ms - g.promised_ms; };
    ExplainedGap e;
    e.gap_ms = static_cast<double>(gap.gap_ns) * 1e-6;
    e.promised_ms = static_cast<double>(gap.promised_ns) * 1e-6;
    if (worst_.size() >= num_explained_ && (worst_.empty() || late(worst_.back()) >= late(e))) return;
    e.at_s = static_cast<double>(gap.end_ns) * 1e-9;
    e.step_ms = static_cast<double>(facts.device_ns) * 1e-6;
    e.predicted_ms = static_cast<double>(facts.predicted_ns) * 1e-6;
    e.request = static_cast<uint64_t>(gap.request) + 1;
    e.prefill_rows = facts.prefill_rows;
    e.decode_rows = gap.step->decode_rows;
    e.cause = kLateCauseNames[cause];
    worst_.insert(std::upper_bound(worst_.begin(), worst_.end(), e,
                                   [&](const ExplainedGap& a, const ExplainedGap& b) { return late(a) > late(b); }),
                  e);
    if (worst_.size() > num_explained_) worst_.pop_back();
}

void GapLog::write(SimulateResult& result) const {
    for (size_t i = 0; i < longest_ns_.size(); ++i) {
        result.plot_s.push_back(static_cast<double>(stretch_ns_) * 1e-9 * (static_cast<double>(i) + 0.5));
        result.plot_gap_ms.push_back(static_cast<double>(longest_ns_[i]) * 1e-6);
    }
    for (const uint64_t ns : late_ns_) result.late_ms_by_cause.push_back(static_cast<double>(ns) * 1e-6);
    result.explained = worst_;
}

}  // namespace takt::sim
