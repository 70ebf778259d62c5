// Allocations: what a device has handed out, so that a capture can refuse pageable memory and a graph can refuse to run after
// memory that it names was freed. Thread-safe; knows no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/device.h"

namespace takt {

struct Allocation {
    const uint8_t* data = nullptr;
    size_t bytes = 0;
    MemoryKind kind = MemoryKind::host;
    uint64_t serial = 0;   ///< never used twice, unlike addresses
};

class Allocations {
public:
    void add(const void* data, size_t bytes, MemoryKind kind);
    void remove(const void* data);
    /// The allocation that holds all of [data, data + bytes).
    [[nodiscard]] std::optional<Allocation> find(const void* data, size_t bytes) const;
    [[nodiscard]] bool contains(const Allocation& allocation) const;
    [[nodiscard]] uint64_t num_frees() const;
    /// Whether the device or a capture may name the range: device or pinned memory.
    [[nodiscard]] bool capturable(const void* data, size_t bytes) const;

private:
    mutable std::mutex mutex_;
    std::map<uintptr_t, Allocation> by_address_;
    uint64_t next_serial_ = 1;
    uint64_t num_frees_ = 0;
};

/// The allocations that a graph names. Engine thread only.
class CapturedMemory {
public:
    void add(const Allocations& all, const void* data);
    /// Adds every allocation that an aligned word of a parameter block points into.
    void scan(const Allocations& all, const void* params, size_t bytes);
    /// False once any of them was freed. Cheap while nothing was freed since the last call.
    [[nodiscard]] bool alive(const Allocations& all);
    [[nodiscard]] bool names(const Allocation& allocation) const;

private:
    std::vector<Allocation> named_;
    uint64_t frees_seen_ = 0;
};

}  // namespace takt
