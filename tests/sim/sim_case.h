// SimCase: everything that a simulated engine meets, as plain data: its options, its device and the clients. Made from a seed
// by integers alone, so that the same seed is the same case on every compiler and C++ library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device_factory.h"
#include "runtime/scheduler.h"

namespace takt::engine_sim {

/// How a client reads its answer.
enum class Reading : uint8_t {
    eager,     ///< one async_next after the other
    slow,      ///< `read_chunks` chunks every `read_period_ns`
    stalls,    ///< eager for `read_chunks` chunks, nothing for `read_period_ns`, eager again
    leaves,    ///< eager for `read_chunks` chunks, then gone without a word, as a destroyed Reply
};

/// When a client cancels. The place is counted from the request's submission.
enum class CancelAt : uint8_t {
    never,
    at_once,       ///< behind the submission, before its coroutine has run
    time,          ///< `cancel_count` nanoseconds later
    gap,           ///< after `cancel_count` more handlers of the engine have run: between any two of its resumptions
    planned,       ///< when a step with rows of it has been launched for the `cancel_count`-th time
    applied,       ///< when such a step has been applied
    token,         ///< when `cancel_count` tokens have been read
    preempted,     ///< when it has been preempted
    gone,          ///< as `gap`, but gone without a word, as a destroyed Reply
};

struct SimClient {
    uint64_t arrival_ns = 0;
    std::vector<int32_t> prompt;
    int32_t max_tokens = 1;
    int32_t class_index = 0;
    int32_t tenant_index = 0;
    uint64_t cache_domain = 0;
    bool ignore_eos = false;
    bool has_penalties = false;      ///< counts a penalty: takes nothing from the prefix cache
    bool has_logprobs = false;
    bool envelope = false;
    double itl_ms = 0, ttft_ms = 0;  ///< 0: the class's
    double deadline_ms = 0;          ///< 0: none
    int32_t stop_at = 0;             ///< over 0: a stop string of two characters stands there in its text
    Reading reading = Reading::eager;
    uint64_t read_period_ns = 0;
    int32_t read_chunks = 0;
    CancelAt cancel_at = CancelAt::never;
    uint64_t cancel_count = 0;
    int32_t throws_at = 0;           ///< over 0: its coroutine meets an exception at that token
};

struct SimCase {
    uint64_t seed = 0;
    SchedulerConfig scheduler;       ///< its ladder is filled from the device
    SimDeviceOptions device;
    int32_t max_rows = 512;          ///< of the ladder
    int32_t pipeline_depth = 1;
    bool prefix_cache = true;
    bool graphs = true;
    int32_t block_tokens = 16;
    int32_t num_blocks = 64;         ///< the dummy block included
    double speed_guess = 1.0;        ///< the cold cost model takes the device for so many times slower
    /// Chance in 1000 that the host sleeps for up to `max_pause_ns` when time goes on: several steps may end unseen.
    int32_t pauses_per_mille = 0;
    uint64_t max_pause_ns = 0;
    uint64_t drain_ns = 0;           ///< the engine begins to drain at this time after the start; 0: never
    std::vector<SimClient> clients;  ///< by arrival

    [[nodiscard]] std::string describe() const;
};

/// The case of a seed: every policy, depth, squeeze, reader, cancel and fault turns up among a few hundred.
SimCase make_case(uint64_t seed);

/// A case without chance to build on: a sound device without noise, one class (40 ms between tokens), room for everybody, and
/// clients that arrive together, read eagerly and have prompts of their own.
SimCase quiet_case(int32_t num_clients, int32_t prompt_tokens, int32_t max_tokens);

}  // namespace takt::engine_sim
