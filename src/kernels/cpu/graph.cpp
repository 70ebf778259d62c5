// Recording of CPU operations: places parameters so that they never move. See graph.h.
#include "kernels/cpu/graph.h"

#include <algorithm>
#include <cstring>

namespace takt::cpu {

uint8_t* CpuGraph::place(size_t bytes) {
    const size_t rounded = (bytes + 15) / 16 * 16;
    if (rounded > capacity_ - used_) {
        capacity_ = std::max(kChunkBytes, rounded);
        chunks_.push_back(std::make_unique<uint8_t[]>(capacity_));   // operator new[]: 16-byte aligned
        used_ = 0;
    }
    uint8_t* at = chunks_.back().get() + used_;
    used_ += rounded;
    return at;
}

void CpuGraph::add(Task run, const void* params, size_t bytes, bool single, const Allocations& allocations) {
    uint8_t* copy = place(bytes);
    if (bytes > 0) std::memcpy(copy, params, bytes);
    memory_.scan(allocations, copy, bytes);
    operations_.push_back({run, copy, single});
}

}  // namespace takt::cpu
