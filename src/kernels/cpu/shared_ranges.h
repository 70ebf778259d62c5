// SharedRanges: work of equal units, dealt to the compute threads as they come: each takes its own contiguous share from the front,
// one unit at a time, then from the backs of the others' shares. A thread that others keep off its core, or that gets less of the
// memory, leaves the rest of its share to those that have time. Knows no operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace takt::cpu {

class SharedRanges {
public:
    static constexpr int64_t kMostUnits = 65535;

    explicit SharedRanges(int num_threads) : ranges_(std::make_unique<Range[]>(static_cast<size_t>(num_threads))) {}

    /// The next of `num_units` (at most kMostUnits) for `thread` of `num_threads`; -1 when all are taken. Each unit goes to one thread.
    /// Deals are numbered from 1 on, upwards (they may wrap); threads come to them in that order but need not meet in between.
    int64_t take(uint32_t deal, int thread, int num_threads, int64_t num_units);

private:
    struct alignas(64) Range {
        std::atomic<uint64_t> word{0};   // deal, begin, end: 32, 16 and 16 bits
    };
    int64_t claim(uint32_t deal, int owner, int num_threads, int64_t num_units, bool front);

    std::unique_ptr<Range[]> ranges_;   // one a thread
};

}  // namespace takt::cpu
