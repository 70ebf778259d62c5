// CpuLinear and CpuEmbedding: weights re-packed for the CPU kernels (packed_format.h). Immutable after construction; any thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_use.h"
#include "kernels/device.h"

namespace takt::cpu {

class CpuDevice;

/// One matrix, packed in groups of 32 output rows.
struct PackedMatrix {
    DType type = DType::f32;
    int64_t rows = 0;
    int64_t cols = 0;
    int64_t num_groups = 0;
    size_t group_bytes = 0;
    Buffer data;
    const int16_t* pair_sums = nullptr;   ///< in `data`, behind the weights: [group], see KernelTable::pair_sums; null: none

    [[nodiscard]] PackedGroup group(int64_t g) const;
    /// Row `r` as float32, `cols` values.
    void read_row(int64_t r, float* out) const;
};

class CpuLinear final : public Linear {
public:
    explicit CpuLinear(std::vector<PackedMatrix> parts) : parts_(std::move(parts)) {}
    [[nodiscard]] int64_t out_features() const override;
    [[nodiscard]] int64_t in_features() const override { return parts_.front().cols; }
    [[nodiscard]] size_t bytes() const override;
    /// What its products need of rows, on the path of `kernels`.
    [[nodiscard]] RowUse row_use(const KernelTable& kernels) const;
    [[nodiscard]] const std::vector<PackedMatrix>& parts() const { return parts_; }

private:
    std::vector<PackedMatrix> parts_;
};

class CpuEmbedding final : public Embedding {
public:
    /// Reads a head's storage (which must outlive this) or its own.
    explicit CpuEmbedding(const PackedMatrix* shared) : table_(shared) {}
    explicit CpuEmbedding(PackedMatrix own) : own_(std::move(own)), table_(&own_) {}
    [[nodiscard]] int64_t num_tokens() const override { return table_->rows; }
    [[nodiscard]] int64_t hidden() const override { return table_->cols; }
    [[nodiscard]] size_t bytes() const override { return own_.data.bytes(); }
    [[nodiscard]] const PackedMatrix& table() const { return *table_; }

private:
    PackedMatrix own_;
    const PackedMatrix* table_;
};

/// Device memory that make_cpu_linear's result will hold.
size_t cpu_linear_bytes(const CpuDevice& device, std::span<const HostTensor> parts);
Result<std::unique_ptr<Linear>> make_cpu_linear(CpuDevice& device, std::span<const HostTensor> parts, LinearKind kind);
Result<std::unique_ptr<Embedding>> make_cpu_embedding(CpuDevice& device, const HostTensor& table, const Linear* tied_head);

}  // namespace takt::cpu
