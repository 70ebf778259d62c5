// RequestState: one request as the engine knows it: its tokens, how it samples, how its text goes out, and the turns that
// steps have brought it. Engine thread only. The request's life itself is request_task.cpp.
#pragma once

#include <boost/asio/async_result.hpp>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <takt/error.h>
#include <takt/request.h>

#include "kernels/step_input.h"
#include "model/detokenizer.h"
#include "runtime/gate.h"
#include "runtime/plan.h"
#include "runtime/task.h"
#include "runtime/token_stream.h"

namespace takt {

/// What one step brought to one of its requests.
struct Turn {
    enum class Kind : uint8_t {
        prefill,   ///< a slice of the prompt is in the cache; no token
        token,     ///< `sample` is the next token
        ended,     ///< the request must end: `error` set, or cancelled
    };
    Kind kind = Kind::ended;
    errc error = errc::ok;
    uint64_t step = 0;
    uint64_t seen_ns = 0;
    SampleResult sample;   ///< last: without log-probabilities nothing behind its head is touched
};

/// Everything decided before the engine thread sees a request: made on the tokenising pool, pure data.
struct PreparedRequest {
    Request request;
    std::vector<int32_t> tokens;          ///< the prompt
    int32_t max_tokens = 0;
    int32_t class_index = 0;
    int32_t tenant_index = 0;
    uint64_t cache_domain = 0;
    uint64_t seed = 0;
    uint64_t arrival_ns = 0;
    StopStrings stops;
    errc error = errc::ok;                ///< refused before admission
    std::string message;
};

class RequestState {
public:
    RequestState(RequestId id, PreparedRequest prepared, Detokenizer detokenizer, std::shared_ptr<TokenStream> stream);
    RequestState(const RequestState&) = delete;
    RequestState& operator=(const RequestState&) = delete;

    const RequestId id;
    PreparedRequest spec;
    std::vector<int32_t> tokens;          ///< prompt, then outputs
    const int32_t num_prompt;
    Detokenizer detokenizer;
    std::shared_ptr<TokenStream> stream;

    // How it samples; constant over its life.
    SampleInput sample;                   ///< row, slot, position and bias_begin are filled a step
    std::vector<BiasInput> biases;
    [[nodiscard]] bool is_greedy() const;

    [[nodiscard]] int32_t num_outputs() const { return static_cast<int32_t>(tokens.size()) - num_prompt; }

    // Turns: pushed by the engine when a step's event is reached, taken by the request's coroutine.
    using Waiter = net::any_completion_handler<void()>;
    /// A turn to be filled by the caller, who then calls wake(). At most two wait: a step's, and the last one.
    [[nodiscard]] Turn& new_turn();
    /// Appends whoever waits for a turn to `woken`: to be called on the engine thread, but not from inside this call.
    void wake(std::vector<Waiter>& woken);
    [[nodiscard]] bool has_turn() const { return num_turns_ > 0; }
    /// Valid until the turn after the next one is given.
    [[nodiscard]] const Turn& take_turn();
    /// Completes when a turn has been given. One wait at a time.
    template <class Token>
    auto async_wait_turn(Token&& token) {
        return net::async_initiate<Token, void()>([this](auto handler) { waiter_.emplace(std::move(handler)); }, token);
    }

    /// Hints to the processor: the request's own memory; what a token's turn touches of that which it points to.
    void prefetch() const;
    void prefetch_parts() const;

    // Times on the engine's clock; 0: not yet.
    uint64_t admitted_ns = 0;             ///< first step that held rows of it was launched
    uint64_t first_token_ns = 0;
    uint64_t last_token_ns = 0;
    uint64_t deadline_ns = 0;             ///< its own deadline
    uint64_t cancel_ns = 0;               ///< a cancel was seen
    uint64_t max_gap_ns = 0;
    std::vector<uint64_t> gaps_ns;        ///< bounded sample of gaps, for the median
    int32_t slot = -1;                    ///< the one of its last launched row
    uint64_t last_launched_step = 0;      ///< last step that holds rows of it, of those before it lost a slot
    /// Counts a gap: the largest, and a bounded sample of all for the median.
    void note_gap(uint64_t gap_ns);
    [[nodiscard]] RequestResult result(uint64_t now_ns) const;
    Gate::Pass pass;                      ///< in the engine's gate while it lives
    int32_t num_preemptions = 0;
    int32_t preemptions_seen = 0;         ///< ... when its last token came
    int32_t cached_tokens = 0;
    bool is_paused = false;
    bool was_paused = false;              ///< since its last token: that gap is the reader's
    bool is_ending = false;               ///< an `ended` turn was given
    bool is_stopped = false;              ///< a stop string was completed: nothing more goes out
    std::deque<TokenLogprob> held_logprobs;   ///< of tokens whose text is held back
    FinishReason reason = FinishReason::error;
    errc error = errc::ok;

private:
    static constexpr size_t kMaxGaps = 4096;
    size_t num_gaps_ = 0;
    std::array<Turn, 2> turns_;           // a ring
    uint32_t first_turn_ = 0, num_turns_ = 0;
    std::optional<Waiter> waiter_;        // emplaced and reset only: an any_completion_handler's assignment is wrong in Boost 1.81
};

}  // namespace takt
