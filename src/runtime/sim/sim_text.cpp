// SimText: see the header.
#include "runtime/sim/sim_text.h"

namespace takt::sim {
namespace {

constexpr uint64_t kFirst = 1;
constexpr uint64_t kSample = 0x5bd1e995;

int32_t token_of(uint64_t hash) { return static_cast<int32_t>((hash ^ kSample) % 50'000); }

}  // namespace

uint64_t chained(uint64_t before, uint64_t value) {
    uint64_t x = before ^ (value + 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

SimText::SimText(int32_t num_blocks, int32_t block_tokens, int32_t max_running)
    : block_tokens_(block_tokens),
      content_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_tokens), 0),
      slot_token_(static_cast<size_t>(max_running), 0) {}

int32_t SimText::run(const PlanSegment& segment, std::span<const int32_t> table, std::span<const int32_t> tokens,
                     std::string& wrong) {
    const auto slot_of = [&](int32_t position) {
        return static_cast<size_t>(table[static_cast<size_t>(position / block_tokens_)]) * static_cast<size_t>(block_tokens_) +
               static_cast<size_t>(position % block_tokens_);
    };
    int32_t token = -1;
    for (int32_t i = 0; i < segment.num_rows; ++i) {
        const int32_t position = segment.token_begin + i;
        if (position / block_tokens_ >= static_cast<int32_t>(table.size())) {
            wrong = "a row without a KV slot";
            return -1;
        }
        if (table[static_cast<size_t>(position / block_tokens_)] == 0) wrong = "a row in the dummy block";
        if (!segment.is_decode && position >= static_cast<int32_t>(tokens.size())) {
            wrong = "a token nobody knows";
            return -1;
        }
        token = segment.is_decode ? slot_token_[static_cast<size_t>(segment.slot)] : tokens[static_cast<size_t>(position)];
        const uint64_t before = position == 0 ? kFirst : content_[slot_of(position - 1)];
        content_[slot_of(position)] = chained(before, static_cast<uint64_t>(token));
        token = token_of(content_[slot_of(position)]);
    }
    if (!segment.samples) return -1;
    slot_token_[static_cast<size_t>(segment.slot)] = token;
    return token;
}

void SimText::copy(const KvCopy& copy) {
    std::vector<uint64_t>& host = host_[copy.request];
    if (copy.is_out) host.assign(static_cast<size_t>(copy.num_tokens), 0);
    for (int32_t position = copy.first_token; position < copy.first_token + copy.num_tokens; ++position) {
        const auto at = static_cast<size_t>(position);
        const int32_t block = copy.blocks[at / static_cast<size_t>(block_tokens_)];
        const auto slot = static_cast<size_t>(block * block_tokens_ + position % block_tokens_);
        if (copy.is_out) {
            host[at] = content_[slot];
        } else {
            content_[slot] = at < host.size() ? host[at] : 0;
        }
    }
    if (!copy.is_out) host_.erase(copy.request);
}

int32_t SimText::expected(std::span<const int32_t> tokens, std::vector<uint64_t>& chain) {
    if (chain.empty()) chain.push_back(kFirst);
    while (chain.size() <= tokens.size()) {
        chain.push_back(chained(chain.back(), static_cast<uint64_t>(tokens[chain.size() - 1])));
    }
    return token_of(chain.back());
}

}  // namespace takt::sim
