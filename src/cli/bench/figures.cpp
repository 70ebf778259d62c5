// Figures of a load run.
#include "cli/bench/figures.h"

#include <algorithm>

namespace takt::cli {

void RequestSample::add_tokens(std::int64_t count, double now_s) {
    if (count <= 0) return;
    ++num_frames;
    const bool first = !has_first();
    if (first) first_s = now_s;
    for (std::int64_t i = 0; i < count; ++i) {
        if (first && i == 0) continue;
        gaps.push_back({now_s, i == 0 ? (now_s - last_s) * 1e3 : 0.0});
    }
    last_s = now_s;
    output_tokens += count;
}

namespace {

constexpr double kEnvelopeGaps = 3;    // that a stream ahead of its envelope may wait at once (docs/scheduling.md)

std::vector<double> lengths_ms(const std::vector<JudgedGap>& gaps) {
    std::vector<double> values;
    values.reserve(gaps.size());
    for (const JudgedGap& judged : gaps) values.push_back(judged.gap.gap_ms);
    return values;
}

// Of tokens that came between the two times: what each took if its frame's gap is spread over the frame.
void append_token_ms(const RequestSample& stream, double begin_s, double end_s, std::vector<double>& out) {
    for (std::size_t i = 0; i < stream.gaps.size();) {
        const double came_s = stream.gaps[i].end_s;
        double frame_ms = 0;
        std::size_t num_tokens = 0;
        for (; i < stream.gaps.size() && stream.gaps[i].end_s == came_s; ++i, ++num_tokens) frame_ms += stream.gaps[i].gap_ms;
        if (came_s > begin_s && came_s <= end_s) out.insert(out.end(), num_tokens, frame_ms / static_cast<double>(num_tokens));
    }
}

double tpot_ms(const RequestSample& sample) {
    return (sample.last_s - sample.first_s) * 1e3 / static_cast<double>(sample.output_tokens - 1);
}

}  // namespace

std::vector<JudgedGap> judged_gaps(const RequestSample& sample, const Targets& targets) {
    std::vector<JudgedGap> out;
    out.reserve(sample.gaps.size());
    double due_s = sample.first_s, came_s = sample.first_s;   // of the token before
    for (const TokenGap& gap : sample.gaps) {
        const double lead_ms = targets.envelope ? (due_s - came_s) * 1e3 : 0;
        out.push_back({gap, std::clamp(targets.itl_ms + lead_ms, targets.itl_ms, kEnvelopeGaps * targets.itl_ms)});
        due_s += targets.itl_ms / 1e3;
        came_s = gap.end_s;
    }
    return out;
}

Lateness lateness(const std::vector<JudgedGap>& gaps) {
    Lateness out;
    out.num_gaps = gaps.size();
    if (gaps.empty()) return out;
    std::size_t late = 0;
    double over = 0;
    for (const JudgedGap& judged : gaps) {
        if (judged.gap.gap_ms <= judged.allowed_ms) continue;
        ++late;
        over += judged.gap.gap_ms - judged.allowed_ms;
    }
    out.share = static_cast<double>(late) / static_cast<double>(gaps.size());
    out.ms_per_1000_tokens = over / static_cast<double>(gaps.size()) * 1000;
    return out;
}

PointFigures point_figures(const std::vector<RequestSample>& samples, const Targets& targets) {
    PointFigures out;
    out.num_requests = samples.size();
    std::vector<double> ttft, tpot, lag;
    std::vector<JudgedGap> gaps;
    double begin = std::numeric_limits<double>::infinity();
    double end = -begin;
    std::size_t good = 0, good_tpot = 0;
    for (const RequestSample& sample : samples) {
        begin = std::min(begin, sample.due_s);
        end = std::max(end, sample.end_s);
        lag.push_back((sample.sent_s - sample.due_s) * 1e3);
        const bool done = sample.error.empty();
        if (done) ++out.num_done;
        if (!done) ++out.errors[sample.error];
        out.output_tokens += sample.output_tokens;
        out.num_frames += sample.num_frames;
        const std::vector<JudgedGap> judged = judged_gaps(sample, targets);
        gaps.insert(gaps.end(), judged.begin(), judged.end());
        if (!sample.has_first()) continue;
        out.prefill_tokens += sample.prompt_tokens;
        ttft.push_back(sample.ttft_ms());
        if (sample.output_tokens > 1) tpot.push_back(tpot_ms(sample));
        const bool in_time = done && sample.ttft_ms() <= targets.ttft_ms;
        if (in_time && lateness(judged).share == 0) ++good;
        if (in_time && (sample.output_tokens < 2 || tpot.back() <= targets.itl_ms)) ++good_tpot;
    }
    out.ttft_ms = percentiles(std::move(ttft));
    out.tpot_ms = percentiles(std::move(tpot));
    out.send_lag_ms = percentiles(std::move(lag));
    out.itl_ms = percentiles(lengths_ms(gaps));
    out.late = lateness(gaps);
    out.seconds = samples.empty() ? 0 : end - begin;
    if (out.seconds <= 0) return out;
    const auto rate = [&](auto count) { return static_cast<double>(count) / out.seconds; };
    out.output_tokens_per_s = rate(out.output_tokens);
    out.prefill_tokens_per_s = rate(out.prefill_tokens);
    out.requests_per_s = rate(out.num_done);
    out.goodput_per_s = rate(good);
    out.goodput_tpot_per_s = rate(good_tpot);
    out.goodput_share = static_cast<double>(good) / static_cast<double>(samples.size());
    out.goodput_tpot_share = static_cast<double>(good_tpot) / static_cast<double>(samples.size());
    return out;
}

InsertFigures insert_figures(const std::vector<InsertRound>& rounds, const Targets& targets) {
    InsertFigures out;
    out.num_rounds = rounds.size();
    std::vector<JudgedGap> plain, during, inside;
    std::vector<double> ttft, plain_token_ms;
    for (const InsertRound& round : rounds) {
        const double begin = round.inserted.sent_s;
        const double end = round.inserted.has_first() ? round.inserted.first_s : round.inserted.end_s;
        if (round.inserted.has_first()) ttft.push_back(round.inserted.ttft_ms());
        out.inserted_tokens = std::max(out.inserted_tokens, round.inserted.prompt_tokens);
        for (const RequestSample& stream : round.streams) {
            if (!stream.has_first() || stream.last_s <= end) out.outlived = false;
            append_token_ms(stream, round.plain_begin_s, round.settled_s, plain_token_ms);
            for (const JudgedGap& judged : judged_gaps(stream, targets)) {
                const TokenGap& gap = judged.gap;
                const double gap_begin = gap.end_s - gap.gap_ms / 1e3;
                if (gap.end_s > round.plain_begin_s && gap.end_s <= round.settled_s) plain.push_back(judged);
                if (gap.end_s > begin && gap_begin < end) during.push_back(judged);
                if (gap.end_s > begin && gap.end_s <= end) inside.push_back(judged);
            }
        }
    }
    out.plain_itl_ms = percentiles(lengths_ms(plain));
    out.plain_token_ms = percentiles(std::move(plain_token_ms));
    out.gaps_ms = lengths_ms(during);
    out.itl_ms = percentiles(out.gaps_ms);
    out.late = lateness(during);
    out.late_inside = lateness(inside);
    out.ttft_ms = percentiles(std::move(ttft));
    if (out.ttft_ms.p50 > 0) out.prefill_tokens_per_s = static_cast<double>(out.inserted_tokens) / (out.ttft_ms.p50 / 1e3);
    return out;
}

}  // namespace takt::cli
