// HashChain: the text that the sim device gives to a prompt when nothing disturbs it, made here from the tokens alone. It knows
// nothing of blocks, steps or neighbours, so that whatever the engine does with those must lead to the same tokens. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace takt::engine_sim {

class HashChain {
public:
    /// `end_token` is drawn once in a while by the hash; -1: never. The chain goes on behind it, as rows already launched do.
    HashChain(const std::vector<int32_t>& prompt, int32_t num_outputs, int32_t vocab, int32_t end_token);

    /// Hash that the KV slot of `position` holds once its row has run. Positions: prompt, then outputs.
    [[nodiscard]] uint64_t hash(int32_t position) const { return hashes_[static_cast<std::size_t>(position)]; }
    /// The n-th sampled token.
    [[nodiscard]] int32_t output(int32_t n) const { return outputs_[static_cast<std::size_t>(n)]; }
    [[nodiscard]] const std::vector<int32_t>& outputs() const { return outputs_; }

private:
    std::vector<uint64_t> hashes_;    // [prompt + outputs]
    std::vector<int32_t> outputs_;
};

}  // namespace takt::engine_sim
