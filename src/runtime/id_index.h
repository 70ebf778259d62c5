// IdIndex: request id -> record index. Open addressing with backward-shift deletion over a fixed table, so that a lookup is a
// few loads and nothing is allocated after construction. Pure; never iterated, so its order decides nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/assert.h"
#include "runtime/plan.h"

namespace takt {

class IdIndex {
public:
    explicit IdIndex(size_t max_entries) : slots_(std::bit_ceil(max_entries * 2 + 2)) {}

    /// The record of `id`, or -1.
    [[nodiscard]] int32_t find(RequestId id) const {
        for (size_t at = home(id); slots_[at].id != 0; at = next(at)) {
            if (slots_[at].id == id) return slots_[at].record;
        }
        return -1;
    }

    void insert(RequestId id, int32_t record) {
        TAKT_ASSERT(id != 0 && (num_entries_ + 1) * 2 <= slots_.size());
        size_t at = home(id);
        while (slots_[at].id != 0) at = next(at);
        slots_[at] = {id, record};
        ++num_entries_;
    }

    void erase(RequestId id) {
        size_t hole = home(id);
        while (slots_[hole].id != id) {
            TAKT_ASSERT(slots_[hole].id != 0);
            hole = next(hole);
        }
        slots_[hole] = {};
        --num_entries_;
        for (size_t at = next(hole); slots_[at].id != 0; at = next(at)) {
            const size_t mask = slots_.size() - 1;
            if (((at - home(slots_[at].id)) & mask) < ((at - hole) & mask)) continue;   // reachable without the hole
            slots_[hole] = slots_[at];
            slots_[at] = {};
            hole = at;
        }
    }

    [[nodiscard]] size_t size() const { return num_entries_; }

private:
    struct Slot {
        RequestId id = 0;
        int32_t record = -1;
    };
    [[nodiscard]] size_t home(RequestId id) const { return (id * 0x9e3779b97f4a7c15ULL >> 32) & (slots_.size() - 1); }
    [[nodiscard]] size_t next(size_t at) const { return (at + 1) & (slots_.size() - 1); }

    std::vector<Slot> slots_;
    size_t num_entries_ = 0;
};

}  // namespace takt
