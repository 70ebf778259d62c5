// The sim device's step: a chained hash through the paged cache. A row's hash is made of the hash at the position before it, read
// through the block table, and its token; so any error of paging, mixing, eviction or feedback becomes a wrong text.
#include <cstring>

#include "kernels/sim/device.h"

namespace takt::sim {
namespace {

uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

constexpr uint64_t kFirst = 0x7461'6b74'7461'6b74ull;
constexpr uint64_t kBroken = 0xbad0'bad0'bad0'bad0ull;
constexpr uint64_t kEndChance = 256;   // one token in so many is the end
constexpr int32_t kByteVocab = 300;    // small vocabularies are bytes: draw printable ones

uint64_t* slot(const SimStepParams& p, int32_t kv_slot, int kv) {
    auto* layer = static_cast<uint8_t*>(p.kv_layer);
    return reinterpret_cast<uint64_t*>(layer + p.kv.offset(kv_slot / p.kv.block_tokens, kv, 0, kv_slot % p.kv.block_tokens));
}

uint64_t read_hash(const SimStepParams& p, const SegmentInput& s, int32_t position) {
    const int32_t block = p.in.block_ids[s.table_begin + position / p.kv.block_tokens];
    const int32_t at = block * p.kv.block_tokens + position % p.kv.block_tokens;
    const uint64_t hash = *slot(p, at, 0);
    return *slot(p, at, 1) == ~hash ? hash : kBroken;   // never written, or half written
}

int32_t draw(const SimStepParams& p, uint64_t hash) {
    const uint64_t h = mix(hash + 1);
    if (p.end_token >= 0 && h % kEndChance == 0) return p.end_token;
    const auto range = static_cast<uint64_t>(p.vocab < kByteVocab ? 95 : p.vocab);
    const auto token = static_cast<int32_t>((h >> 16) % range) + (p.vocab < kByteVocab ? 32 : 0);
    // The byte vocabulary's ids are the bytes themselves.
    return token == p.end_token ? token - 1 : token;
}

}  // namespace

void run_step(const SimStepParams& p) {
    const StepHeader& header = *p.in.header;
    for (int32_t r = 0; r < header.num_rows; ++r) {
        const RowInput& row = p.in.rows[r];
        const int32_t token = row.token < 0 ? p.slot_tokens[~row.token] : row.token;
        const uint64_t before = row.position == 0 ? kFirst : read_hash(p, p.in.segments[row.segment], row.position - 1);
        const uint64_t hash = mix(before ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15ull + 1));
        *slot(p, row.kv_slot, 0) = hash;
        *slot(p, row.kv_slot, 1) = ~hash;
    }
    auto* block = static_cast<uint8_t*>(p.results) + static_cast<size_t>(header.result_index) * p.result_stride;
    reinterpret_cast<StepResultHeader*>(block)->step = header.step;
    auto* results = reinterpret_cast<SampleResult*>(block + sizeof(StepResultHeader));
    for (int32_t i = 0; i < header.num_samples; ++i) {
        const SampleInput& s = p.in.samples[i];
        results[i].token = draw(p, *slot(p, p.in.rows[s.row].kv_slot, 0));
        results[i].flags = 0;
        results[i].logprob = 0;
        results[i].num_top = 0;
        p.slot_tokens[s.slot] = results[i].token;
    }
}

}  // namespace takt::sim
