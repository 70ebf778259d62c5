// Slabs: memory of middle size cut from large pieces on huge pages. Weights are read through once a step, faster than the page
// walker follows pages of 4 KiB, and one matrix of a small model is smaller than a huge page. Thread-safe; knows no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace takt::cpu {

constexpr size_t kHugePageBytes = size_t{2} << 20;

/// 2 MiB aligned memory of whole huge pages, which the kernel is asked to use. Freed by std::free. null: out of memory.
void* allocate_huge(size_t bytes);

class Slabs {
public:
    Slabs() = default;
    ~Slabs();
    Slabs(const Slabs&) = delete;
    Slabs& operator=(const Slabs&) = delete;

    /// Whether take() serves this size; smaller ones gain nothing, larger ones deserve pages of their own.
    static bool serves(size_t bytes) { return bytes >= kSmallest && bytes < kHugePageBytes; }
    /// 64-byte aligned; null: out of memory.
    void* take(size_t bytes);
    /// Gives back what take() returned; a slab is freed with its last piece. false: the pointer is none of ours.
    bool give(void* data);

private:
    static constexpr size_t kSmallest = size_t{16} << 10;
    static constexpr size_t kSlabBytes = size_t{16} << 20;
    struct Slab {
        size_t used = 0;
        size_t pieces = 0;
    };

    std::mutex mutex_;
    std::map<uintptr_t, Slab> slabs_;   // by address
    uintptr_t current_ = 0;             // the slab that is being cut; 0: none
};

}  // namespace takt::cpu
