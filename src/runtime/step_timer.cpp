// See step_timer.h.
#include "runtime/step_timer.h"

#include <takt/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <sstream>

#include "runtime/cost_calibration.h"

namespace takt {
namespace {

constexpr int kRepeats = 3;
constexpr int32_t kDecodeRows = 16, kDecodeContext = 4096;
constexpr int32_t kPrefillRows = 512, kPrefillContext = 16384;
constexpr int32_t kWarmContext = 64;   // of the decode row
constexpr int32_t kDeepContext = 2000;

}  // namespace

StepTimer::StepTimer(ForwardRunner& runner, const Tokenizer& tokenizer) : runner_(runner) {
    PreparedRequest prepared;
    prepared.tokens.assign(static_cast<size_t>(runner.options().max_context), 0);
    prepared.max_tokens = 1;
    auto stream = std::make_shared<TokenStream>(io_.get_executor(), [] {});
    request_ = std::make_unique<RequestState>(1, std::move(prepared), Detokenizer(tokenizer, StopStrings(), {true, false}), stream);
    tables_.resize(static_cast<size_t>(runner.options().max_running));
}

StepTimer::~StepTimer() { runner_.forget_requests(); }   // they have the numbers of the first real ones

void StepTimer::add_segment(int32_t begin, int32_t rows, bool is_decode) {
    const RunnerOptions& o = runner_.options();
    PlanSegment s;
    s.request = plan_.segments.size() + 1;
    s.slot = static_cast<int32_t>(plan_.segments.size());
    s.token_begin = begin;
    s.num_rows = rows;
    s.is_decode = is_decode;
    s.samples = true;
    std::vector<int32_t>& table = tables_[static_cast<size_t>(s.slot)];
    table.clear();
    for (int32_t i = 0; i * o.block_tokens < begin + rows; ++i) table.push_back(next_block_++);
    if (is_decode) {
        plan_.features.add_decode(begin);
    } else {
        plan_.features.add_slice(rows, begin);
    }
    ++plan_.num_samples;
    plan_.segments.push_back(s);
}

Result<uint64_t> StepTimer::run(int32_t decode_rows, int32_t decode_context, int32_t prefill_rows, int32_t prefill_context,
                                StepFeatures& features) {
    const RunnerOptions& o = runner_.options();
    plan_ = StepPlan{};
    plan_.block_tokens = o.block_tokens;
    next_block_ = 1;
    decode_rows = std::min(decode_rows, o.max_running - (prefill_rows > 0 ? 1 : 0));
    int32_t free = o.num_blocks - 1;
    if (prefill_rows > 0) {   // at most the half of the pool where others need some too
        const int32_t room = std::min((decode_rows > 0 ? free / 2 : free) * o.block_tokens, o.max_context - 1);
        prefill_rows = std::min(prefill_rows, room);
        prefill_context = std::min(prefill_context, room - prefill_rows);
        free -= (prefill_rows + prefill_context + o.block_tokens - 1) / o.block_tokens;
    }
    if (decode_rows > 0) {
        const int32_t room = std::min(free / decode_rows * o.block_tokens, o.max_context - 1);
        if (room < 1) return Error{"the KV pool is too small"};
        decode_context = std::min(decode_context, room - 1);
        for (int32_t i = 0; i < decode_rows; ++i) add_segment(decode_context, 1, true);
    }
    if (prefill_rows > 0) add_segment(prefill_context, prefill_rows, false);
    const auto at = std::lower_bound(o.row_ladder.begin(), o.row_ladder.end(), plan_.features.rows);
    if (at == o.row_ladder.end()) return Error{"the step is larger than the largest shape"};
    plan_.features.padded_rows = *at;
    plan_.padded_samples = std::min(static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(plan_.num_samples))), o.max_running);
    plan_.step = next_step_++;
    Ticket ticket;
    Status status = runner_.launch(plan_, *this, ticket);
    if (status) status = runner_.stream().synchronize();
    if (!status) return Error{status.message};
    features = plan_.features;
    const StepResultHeader& header = runner_.result_header(ticket);
    return header.end_ns > header.begin_ns ? header.end_ns - header.begin_ns : 0;
}

bool calibrate(StepTimer& timer, CostModel& cost, double seconds) {
    double spent_ns = 0;
    for (const StepFeatures& wanted : calibration_steps(cost)) {
        const bool decodes = wanted.decode_rows > 0;
        const int32_t rows = wanted.rows;
        const int64_t before = decodes ? wanted.kv_read_tokens / rows - 1 : (wanted.prefill_pairs - int64_t{rows} * (rows + 1) / 2) / rows;
        const auto context = static_cast<int32_t>(before);
        StepFeatures features;
        const Result<uint64_t> ns = decodes ? timer.run(rows, context, 0, 0, features) : timer.run(0, 0, rows, context, features);
        if (!ns || ns.value() == 0) return false;
        cost.observe(features, ns.value());
        spent_ns += static_cast<double>(ns.value());
        if (spent_ns > seconds * 1e9) break;
    }
    return true;
}

bool warm_up(StepTimer& timer, CostModel& cost, double seconds) {
    double left_ns = seconds * 1e9;
    for (const int32_t slice : {0, 8, 32}) {
        for (int turn = slice > 0 ? 1 : 0; turn < 3; ++turn) {
            StepFeatures features;
            if (slice > 0) {
                features.add_slice(slice, 0);
                if (static_cast<double>(cost.predict_ns(features)) > left_ns) return true;
                features = {};
            }
            const Result<uint64_t> ns = slice > 0 ? timer.run(0, 0, slice, 0, features) : timer.run(1, kWarmContext, 0, 0, features);
            if (!ns) return false;
            left_ns -= static_cast<double>(ns.value());
            if (turn > 0 && ns.value() > 0) cost.observe(features, ns.value());
        }
    }
    return true;
}

double prediction_factor(StepTimer& timer, const CostModel& cost, double seconds) {
    struct Kind {
        int32_t decode_rows = 0, decode_context = 0, prefill_rows = 0, prefill_context = 0;
    };
    constexpr std::array kKinds{Kind{1, kWarmContext, 0, 0}, Kind{1, kDeepContext, 0, 0}, Kind{0, 0, 8, 0}, Kind{0, 0, 8, kDeepContext},
                                Kind{0, 0, 32, 0}};
    double left_ns = seconds * 1e9, row_ns = 0, factor = 0;
    for (const Kind& kind : kKinds) {
        // What a row alone took is the most that one of many takes: the model is in doubt here.
        if (kind.prefill_rows * row_ns * kRepeats > left_ns) continue;
        StepFeatures features;
        std::array<double, kRepeats> times{};
        for (int i = -1; i < kRepeats; ++i) {
            const Result<uint64_t> ns =
                timer.run(kind.decode_rows, kind.decode_context, kind.prefill_rows, kind.prefill_context, features);
            if (!ns || ns.value() == 0) return 0;
            left_ns -= static_cast<double>(ns.value());
            if (i >= 0) times[static_cast<size_t>(i)] = static_cast<double>(ns.value());   // the first is a shape's first use
        }
        std::sort(times.begin(), times.end());
        const double truth_ns = times[kRepeats / 2];
        if (kind.decode_rows > 0) row_ns = std::max(row_ns, truth_ns);
        const auto told_ns = static_cast<double>(std::max<uint64_t>(cost.predict_ns(features), 1));
        factor = std::max({factor, truth_ns / told_ns, told_ns / truth_ns});
        if (left_ns < 0) break;
    }
    return factor;
}

namespace {

struct Timing {
    StepFeatures features;
    double ns = 0;
};

Timing median_of(StepTimer& timer, int32_t decode_rows, int32_t decode_context, int32_t prefill_rows, int32_t prefill_context) {
    Timing timing;
    std::vector<uint64_t> times;
    for (int i = 0; i < kRepeats + 1; ++i) {
        const Result<uint64_t> ns = timer.run(decode_rows, decode_context, prefill_rows, prefill_context, timing.features);
        if (!ns) throw load_error(errc::device_lost, "profile: " + ns.error());
        if (i > 0) times.push_back(ns.value());   // the first is a shape's first use
    }
    std::sort(times.begin(), times.end());
    timing.ns = static_cast<double>(times[times.size() / 2]);
    return timing;
}

double slope(double near_ns, double far_ns, int64_t near_load, int64_t far_load) {
    return far_load > near_load ? std::max(0.0, (far_ns - near_ns) / static_cast<double>(far_load - near_load)) : 0.0;
}

}  // namespace

std::string profile_text(StepTimer& timer, const RunnerOptions& options) {
    const int32_t largest = options.row_ladder.back(), streams = std::min(kDecodeRows, options.max_running);
    const Timing empty = median_of(timer, streams, 0, 0, 0), deep = median_of(timer, streams, kDecodeContext, 0, 0);
    const double kd = slope(empty.ns, deep.ns, empty.features.kv_read_tokens, deep.features.kv_read_tokens);
    const int32_t slice = std::min({kPrefillRows, largest, options.max_context / 2});
    const Timing begun = median_of(timer, 0, 0, slice, 0), late = median_of(timer, 0, 0, slice, kPrefillContext);
    const double ka = slope(begun.ns, late.ns, begun.features.prefill_pairs, late.features.prefill_pairs);
    // What prompts' rows cost more than decodes' of one shape, whatever their number.
    const Timing prompt = median_of(timer, 0, 0, streams, 0);
    const double mixed = std::max(0.0, prompt.ns - ka * static_cast<double>(prompt.features.prefill_pairs) - empty.ns);
    std::ostringstream out;
    out << "# step times of a device, measured by takt bench --profile\nrows,linear_ms\n";
    for (const int32_t rows : options.row_ladder) {
        const bool decodes = rows <= streams;
        if (rows >= options.max_context) break;
        const Timing t = decodes ? median_of(timer, rows, 0, 0, 0) : median_of(timer, 0, 0, rows, 0);
        const StepFeatures& f = t.features;
        if (f.rows != rows) break;   // the pool is too small for more
        const double load = kd * static_cast<double>(f.kv_read_tokens) + ka * static_cast<double>(f.prefill_pairs) + (decodes ? 0 : mixed);
        out << rows << ',' << std::max(1e-6, (t.ns - load) * 1e-6) << '\n';
    }
    out << "kd_ns," << kd << "\nka_ns," << ka << "\ndecode_ms,0\nmixed_ms," << mixed * 1e-6 << '\n';
    return out.str();
}

}  // namespace takt
