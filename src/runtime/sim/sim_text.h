// SimText: what the simulated KV slots hold. A token is a hash of all tokens before it, chained through the block table, so that a
// block freed too early, shared wrongly or written twice becomes a wrong text. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/plan.h"

namespace takt::sim {

uint64_t chained(uint64_t before, uint64_t value);

class SimText {
public:
    SimText(int32_t num_blocks, int32_t block_tokens, int32_t max_running);

    /// Runs a segment's rows. `table` is its request's block table, `tokens` what the host knows of its tokens. Returns the
    /// sampled token (-1 if it samples none) and writes what is wrong, if anything.
    int32_t run(const PlanSegment& segment, std::span<const int32_t> table, std::span<const int32_t> tokens, std::string& wrong);

    /// Moves the KV of a request's positions to the host's memory, or back.
    void copy(const KvCopy& copy);

    /// The token that follows `tokens` when nothing is wrong; `chain` is kept by the caller from call to call.
    static int32_t expected(std::span<const int32_t> tokens, std::vector<uint64_t>& chain);

private:
    int32_t block_tokens_;
    std::vector<uint64_t> content_;    // [num_blocks][block_tokens]: hash of the prefix that ends in the slot
    std::vector<int32_t> slot_token_;  // the device's slot buffer
    std::unordered_map<RequestId, std::vector<uint64_t>> host_;   // by request: hash of each position
};

}  // namespace takt::sim
