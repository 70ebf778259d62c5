// A range is one word, so that its owner and those that take from it need a single exchange. Whoever comes first to a deal sets it up:
// the owner may be asleep.
#include "kernels/cpu/shared_ranges.h"

namespace takt::cpu {
namespace {

uint64_t word_of(uint32_t deal, int64_t begin, int64_t end) {
    return uint64_t{deal} << 32 | static_cast<uint64_t>(begin) << 16 | static_cast<uint64_t>(end);
}

}  // namespace

int64_t SharedRanges::claim(uint32_t deal, int owner, int num_threads, int64_t num_units, bool front) {
    // Relaxed: what the units work on is handed over by the barriers around the deal.
    std::atomic<uint64_t>& word = ranges_[static_cast<size_t>(owner)].word;
    uint64_t seen = word.load(std::memory_order_relaxed);
    for (;;) {
        const auto age = static_cast<int32_t>(deal - static_cast<uint32_t>(seen >> 32));
        if (age < 0) return -1;   // others are in a later deal already: of this one nothing is left
        int64_t begin = static_cast<int64_t>(seen >> 16 & 0xffff), end = static_cast<int64_t>(seen & 0xffff);
        if (age > 0) {
            begin = num_units * owner / num_threads;
            end = num_units * (owner + 1) / num_threads;
        }
        if (begin == end && age == 0) return -1;
        const bool is_empty = begin == end;
        const int64_t unit = front ? begin : end - 1;
        const int64_t taken = is_empty ? 0 : 1;
        const uint64_t wanted = front ? word_of(deal, begin + taken, end) : word_of(deal, begin, end - taken);
        if (word.compare_exchange_weak(seen, wanted, std::memory_order_relaxed)) return is_empty ? -1 : unit;
    }
}

int64_t SharedRanges::take(uint32_t deal, int thread, int num_threads, int64_t num_units) {
    int64_t unit = claim(deal, thread, num_threads, num_units, true);
    for (int i = 1; i < num_threads && unit < 0; ++i) unit = claim(deal, (thread + i) % num_threads, num_threads, num_units, false);
    return unit;
}

}  // namespace takt::cpu
