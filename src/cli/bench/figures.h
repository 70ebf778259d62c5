// Figures: what the samples of a run amount to. Each formula stands in docs/metrics.md. Pure.
#pragma once

#include <takt/percentiles.h>

#include <map>
#include <string>
#include <vector>

#include "cli/bench/sample.h"

namespace takt::cli {

/// What a reader was promised.
struct Targets {
    double itl_ms = 40;
    double ttft_ms = 2000;
    bool envelope = false;             ///< itl_ms is a pace from the first token on: a stream that is ahead of it may wait longer
};

struct JudgedGap {
    TokenGap gap;
    double allowed_ms = 0;             ///< what it may take under the promise
};
/// All gaps of a request, in their order.
std::vector<JudgedGap> judged_gaps(const RequestSample& sample, const Targets& targets);

/// Lateness of a set of gaps against a promise.
struct Lateness {
    std::size_t num_gaps = 0;
    double share = 0;                  ///< of gaps over what they may take
    double ms_per_1000_tokens = 0;     ///< what the gaps are over it, added up
};
Lateness lateness(const std::vector<JudgedGap>& gaps);

struct PointFigures {
    std::size_t num_requests = 0, num_done = 0;
    std::map<std::string, std::size_t> errors;
    Percentiles ttft_ms, tpot_ms, itl_ms, send_lag_ms;
    Lateness late;
    double seconds = 0;                ///< from the first due time to the last end
    std::int64_t output_tokens = 0, prefill_tokens = 0, num_frames = 0;
    double output_tokens_per_s = 0, prefill_tokens_per_s = 0, requests_per_s = 0;
    double goodput_per_s = 0, goodput_share = 0;
    double goodput_tpot_per_s = 0, goodput_tpot_share = 0;
};
PointFigures point_figures(const std::vector<RequestSample>& samples, const Targets& targets);

/// One insertion: streams decoding, a long prompt put in.
struct InsertRound {
    std::vector<RequestSample> streams;
    RequestSample inserted;
    double plain_begin_s = 0;          ///< every stream decodes from here on
    double settled_s = 0;              ///< the plain phase ends; the prompt goes in
};

struct InsertFigures {
    std::size_t num_rounds = 0;
    bool outlived = true;              ///< every stream went on past the inserted prompt's first token
    Percentiles plain_itl_ms;          ///< gaps of the streams before the insertion
    Percentiles plain_token_ms;        ///< the same, each frame's gap spread over its tokens
    Percentiles itl_ms;                ///< gaps that end while the inserted prompt is unfinished, each stream's last one whole
    Lateness late;                     ///< over the same gaps
    Lateness late_inside;              ///< over the gaps that end before the inserted prompt's first token came
    std::vector<double> gaps_ms;       ///< those of itl_ms, in order of streams and time: for other promises than this one
    Percentiles ttft_ms;               ///< of the inserted prompt, one value a round
    double prefill_tokens_per_s = 0;   ///< inserted tokens over their TTFT, median round
    std::int64_t inserted_tokens = 0;
};
InsertFigures insert_figures(const std::vector<InsertRound>& rounds, const Targets& targets);

}  // namespace takt::cli
