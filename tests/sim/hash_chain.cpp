// See hash_chain.h. The three functions are those of the sim device's step, written again on purpose.
#include "sim/hash_chain.h"

namespace takt::engine_sim {
namespace {

uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t extend(uint64_t before, int32_t token) {
    return mix(before ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15ull + 1));
}

int32_t draw(uint64_t hash, int32_t vocab, int32_t end_token) {
    const uint64_t h = mix(hash + 1);
    if (end_token >= 0 && h % 256 == 0) return end_token;
    const bool is_bytes = vocab < 300;   // printable ones
    const auto token = static_cast<int32_t>((h >> 16) % (is_bytes ? 95 : static_cast<uint64_t>(vocab))) + (is_bytes ? 32 : 0);
    return token == end_token ? token - 1 : token;
}

}  // namespace

HashChain::HashChain(const std::vector<int32_t>& prompt, int32_t num_outputs, int32_t vocab, int32_t end_token) {
    uint64_t hash = 0x7461'6b74'7461'6b74ull;
    for (const int32_t token : prompt) hashes_.push_back(hash = extend(hash, token));
    for (int32_t i = 0; i < num_outputs; ++i) {
        outputs_.push_back(draw(hash, vocab, end_token));
        hashes_.push_back(hash = extend(hash, outputs_.back()));
    }
}

}  // namespace takt::engine_sim
