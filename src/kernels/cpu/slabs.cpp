// Cutting of slabs: one after the other, nothing is reused inside a slab before all of it is free.
#include "kernels/cpu/slabs.h"

#include <sys/mman.h>

#include <cstdlib>

namespace takt::cpu {

void* allocate_huge(size_t bytes) {
    if (bytes > SIZE_MAX - kHugePageBytes) return nullptr;
    const size_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    void* data = std::aligned_alloc(kHugePageBytes, rounded);
#ifdef MADV_HUGEPAGE
    if (data != nullptr) madvise(data, rounded, MADV_HUGEPAGE);
#endif
    return data;
}

Slabs::~Slabs() {
    for (const auto& [address, slab] : slabs_) std::free(reinterpret_cast<void*>(address));
}

void* Slabs::take(size_t bytes) {
    const size_t rounded = (bytes + 63) / 64 * 64;
    const std::lock_guard lock(mutex_);
    if (current_ == 0 || slabs_[current_].used + rounded > kSlabBytes) {
        void* data = allocate_huge(kSlabBytes);
        if (data == nullptr) return nullptr;
        current_ = reinterpret_cast<uintptr_t>(data);
        slabs_[current_] = {};
    }
    Slab& slab = slabs_[current_];
    void* data = reinterpret_cast<void*>(current_ + slab.used);
    slab.used += rounded;
    ++slab.pieces;
    return data;
}

bool Slabs::give(void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    const std::lock_guard lock(mutex_);
    auto at = slabs_.upper_bound(address);
    if (at == slabs_.begin()) return false;
    --at;
    if (address >= at->first + kSlabBytes) return false;
    if (--at->second.pieces == 0) {
        if (at->first == current_) current_ = 0;
        std::free(reinterpret_cast<void*>(at->first));
        slabs_.erase(at);
    }
    return true;
}

}  // namespace takt::cpu
