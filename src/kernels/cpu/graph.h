// CpuGraph: operations recorded by a CpuStream with their parameters, replayed as one entry. Engine thread records it; the
// device's worker reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/allocations.h"
#include "kernels/cpu/thread_pool.h"

namespace takt::cpu {

class CpuGraph final : public Graph {
public:
    /// Records one operation; its parameters are copied. Words of them that point into the device's memory are remembered.
    void add(Task run, const void* params, size_t bytes, bool single, const Allocations& allocations);

    [[nodiscard]] int num_operations() const override { return static_cast<int>(operations_.size()); }
    [[nodiscard]] std::span<const Operation> operations() const { return operations_; }
    /// Where the number of rows of a launch will stand, in memory that the recorded operations read.
    void set_rows(const int32_t* rows) { rows_ = rows; }
    /// Of the launch that begins now; 0 where the operations have no rows. Only from where the operations run.
    [[nodiscard]] int32_t rows() const { return rows_ == nullptr ? 0 : *rows_; }
    [[nodiscard]] CapturedMemory& memory() { return memory_; }

private:
    static constexpr size_t kChunkBytes = 16384;
    uint8_t* place(size_t bytes);   // 16-byte aligned, never moves

    std::vector<Operation> operations_;
    std::vector<std::unique_ptr<uint8_t[]>> chunks_;
    const int32_t* rows_ = nullptr;
    size_t used_ = 0;
    size_t capacity_ = 0;   // of the last chunk
    CapturedMemory memory_;
};

}  // namespace takt::cpu
