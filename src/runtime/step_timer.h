// StepTimer: runs steps that nobody asked for, to learn what they take: the cold calibration of the cost model and the profile of a
// device for the simulator; and to take the memory that a host's steps use. Before the first request only: it writes into KV blocks
// that nobody holds yet. The load's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "runtime/cost_model.h"
#include "runtime/forward_runner.h"

namespace takt {

class StepTimer final : public StepSources {
public:
    /// Both outlive it.
    StepTimer(ForwardRunner& runner, const Tokenizer& tokenizer);
    ~StepTimer() override;

    /// Device time of a step with so many decode rows, each behind `decode_context` tokens, and a slice of `prefill_rows` behind
    /// `prefill_context`; what does not fit the KV pool or the context is cut. `features` gets what really ran. 0 ns: the device
    /// reports no time. Error: the device is lost.
    Result<uint64_t> run(int32_t decode_rows, int32_t decode_context, int32_t prefill_rows, int32_t prefill_context,
                         StepFeatures& features);

    [[nodiscard]] const RequestState& request(RequestId) const override { return *request_; }
    [[nodiscard]] std::span<const int32_t> block_table(RequestId id, int32_t) const override {
        return tables_[static_cast<size_t>(id) - 1];
    }

private:
    void add_segment(int32_t begin, int32_t rows, bool is_decode);

    ForwardRunner& runner_;
    boost::asio::io_context io_;              // never runs: a request has a stream
    std::unique_ptr<RequestState> request_;   // stands for all: what it samples is nobody's
    std::vector<std::vector<int32_t>> tables_;
    StepPlan plan_;
    uint64_t next_step_ = 1;
    int32_t next_block_ = 1;
};

/// Shows the model the steps of a cold calibration, as far as `seconds` allow. False: the device is lost or keeps no time.
bool calibrate(StepTimer& timer, CostModel& cost, double seconds);

/// Runs steps of one decode row and of small slices, the latter as long as `seconds` last, and shows the model all but the very first,
/// which takes the memory that all later ones use. False: the device is lost.
bool warm_up(StepTimer& timer, CostModel& cost, double seconds);

/// How far off the model's predictions are for a few steps of other kinds, decode rows and slices with and without context, as far as
/// `seconds` allow: the greatest factor either way, of medians of three; at least 1. 0: nothing could be measured. Teaches nothing.
double prediction_factor(StepTimer& timer, const CostModel& cost, double seconds);

/// The device's step times in the simulator's format: each shape three times, medians. @throws load_error if the device is lost.
std::string profile_text(StepTimer& timer, const RunnerOptions& options);

}  // namespace takt
