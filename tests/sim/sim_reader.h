// SimReader: one client of a simulated engine: it submits, reads as fast as its case says, cancels where its case says, and
// judges what it was given: every token once and in order, the text that goes with it, exactly one end, and that end for a reason.
// Invariants 3, 11, 12 and 13 as a client sees them. One thread, the simulation's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine_core.h"
#include "sim/hash_chain.h"
#include "sim/sim_case.h"

namespace takt::engine_sim {

class EngineSim;

class SimReader {
public:
    SimReader(EngineSim& sim, const SimClient& client, int32_t end_token, int32_t vocab);
    SimReader(const SimReader&) = delete;
    SimReader& operator=(const SimReader&) = delete;

    void submit();
    /// A place where a cancel may come: between two handlers of the engine. Acts on what is due.
    void at_gap();
    /// The case's cancel is due at the next gap.
    void plan_cancel() { cancel_is_due_ = true; }

    // Told by the simulation.
    void step_planned(bool was_preempted);
    void step_applied();

    [[nodiscard]] const SimClient& client() const { return client_; }
    [[nodiscard]] const HashChain& chain() const { return chain_; }
    [[nodiscard]] RequestId id() const { return id_; }
    [[nodiscard]] const std::shared_ptr<TokenStream>& stream() const { return stream_; }
    [[nodiscard]] bool was_refused() const { return refused_ != errc::ok; }
    [[nodiscard]] errc refusal() const { return refused_; }
    /// Nothing more will come to it.
    [[nodiscard]] bool is_done() const { return was_refused() || num_ends_ > 0 || (is_gone_ && stream_->has_ended()); }
    /// It has asked the engine to end the request, which has not ended yet.
    [[nodiscard]] bool awaits_end() const { return cancelled_ && stream_ && !stream_->has_ended(); }
    [[nodiscard]] bool has_cancelled() const { return cancelled_; }
    [[nodiscard]] const std::vector<int32_t>& tokens() const { return tokens_; }
    [[nodiscard]] std::optional<FinishReason> reason() const;
    [[nodiscard]] errc error() const { return error_; }
    [[nodiscard]] uint64_t end_ns() const { return end_ns_; }

    /// At the end of the run: what is wrong with what it was given; empty if nothing.
    [[nodiscard]] std::string judge(bool device_was_lost) const;

private:
    void read_next();
    void read_turn();
    void take_chunk(Chunk chunk);
    void take_end(error_code error);
    void cancel();
    void leave();
    [[nodiscard]] PreparedRequest prepare() const;
    void judge_refusal();
    [[nodiscard]] std::string judge_text(FinishReason reason) const;
    void fail(const std::string& what) { if (wrong_.empty()) wrong_ = what; }

    EngineSim& sim_;
    const SimClient& client_;
    const int32_t end_token_;
    const HashChain chain_;
    int32_t num_expected_ = 0;            // tokens of the undisturbed answer, the end token included
    std::string expected_text_, unstopped_text_;
    std::string stop_;                    // its stop string; empty: none

    RequestId id_ = 0;
    std::shared_ptr<TokenStream> stream_;
    errc refused_ = errc::ok;
    std::vector<int32_t> tokens_;
    std::string text_;
    int32_t num_chunks_ = 0;
    int32_t num_ends_ = 0;
    errc error_ = errc::ok;
    uint64_t end_ns_ = 0;
    bool cancelled_ = false;
    bool cancel_is_due_ = false;
    bool is_gone_ = false;
    uint64_t num_gaps_ = 0;
    uint64_t num_planned_ = 0, num_applied_ = 0;
    std::string wrong_;
};

}  // namespace takt::engine_sim
