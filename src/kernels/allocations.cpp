// The ordered map behind Allocations and the parameter scan of CapturedMemory.
#include "kernels/allocations.h"

#include <algorithm>
#include <cstring>

#include "kernels/assert.h"

namespace takt {

void Allocations::add(const void* data, size_t bytes, MemoryKind kind) {
    const std::lock_guard lock(mutex_);
    by_address_[reinterpret_cast<uintptr_t>(data)] = {static_cast<const uint8_t*>(data), bytes, kind, next_serial_++};
}

void Allocations::remove(const void* data) {
    const std::lock_guard lock(mutex_);
    const size_t erased = by_address_.erase(reinterpret_cast<uintptr_t>(data));
    TAKT_ASSERT(erased == 1);
    ++num_frees_;
}

std::optional<Allocation> Allocations::find(const void* data, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    const std::lock_guard lock(mutex_);
    auto it = by_address_.upper_bound(address);
    if (it == by_address_.begin()) return std::nullopt;
    --it;
    const size_t offset = address - it->first;
    if (offset >= it->second.bytes || bytes > it->second.bytes - offset) return std::nullopt;
    return it->second;
}

bool Allocations::contains(const Allocation& allocation) const {
    const std::lock_guard lock(mutex_);
    const auto it = by_address_.find(reinterpret_cast<uintptr_t>(allocation.data));
    return it != by_address_.end() && it->second.serial == allocation.serial;
}

uint64_t Allocations::num_frees() const {
    const std::lock_guard lock(mutex_);
    return num_frees_;
}

bool Allocations::capturable(const void* data, size_t bytes) const {
    const std::optional<Allocation> found = find(data, bytes);
    return found.has_value() && found->kind != MemoryKind::host;
}

void CapturedMemory::add(const Allocations& all, const void* data) {
    const std::optional<Allocation> found = all.find(data, 1);
    if (!found.has_value() || names(*found)) return;
    if (named_.empty()) frees_seen_ = all.num_frees();
    named_.push_back(*found);
}

void CapturedMemory::scan(const Allocations& all, const void* params, size_t bytes) {
    const auto* words = static_cast<const uint8_t*>(params);
    for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
        const void* word = nullptr;
        std::memcpy(&word, words + at, sizeof(word));
        if (word != nullptr) add(all, word);
    }
}

bool CapturedMemory::alive(const Allocations& all) {
    const uint64_t frees = all.num_frees();
    if (frees == frees_seen_) return true;
    for (const Allocation& a : named_) {
        if (!all.contains(a)) return false;
    }
    frees_seen_ = frees;
    return true;
}

bool CapturedMemory::names(const Allocation& allocation) const {
    return std::any_of(named_.begin(), named_.end(), [&](const Allocation& a) { return a.serial == allocation.serial; });
}

}  // namespace takt
