// RowBlock: rows of activations made ready for products: normed and quantised once, shared by the threads of an item (or made by
// each for itself where that is cheaper than a barrier). Lives inside one item.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/task.h"
#include "kernels/params.h"

namespace takt::cpu {

// From this many rows on products are in pairs, where a path and a type have that: fewer are bound by the reading of the weights.
constexpr int64_t kFewestPairedRows = 5;

class RowBlock {
public:
    /// Bytes of scratch for `rows` rows of `cols` columns.
    static size_t bytes(int64_t rows, int64_t cols) {
        const auto blocks = static_cast<size_t>(num_blocks(cols));
        return static_cast<size_t>(rows) * blocks * (kBlockColumns * sizeof(float) + sizeof(QuantBlock)) + 2 * 64;
    }

    /// Only products with plain types need float32 beside integers.
    RowBlock(void* memory, int64_t rows, int64_t cols, CpuArithmetic arithmetic, const KernelTable& kernels, bool for_plain = true)
        : kernels_(kernels), cols_(cols), arithmetic_(arithmetic), for_plain_(for_plain) {
        quant_.num_blocks = num_blocks(cols);
        quant_.bytes_only = arithmetic == CpuArithmetic::int8;
        floats_ = static_cast<float*>(memory);
        quant_.blocks = reinterpret_cast<QuantBlock*>(floats_ + rows * quant_.num_blocks * kBlockColumns);
    }

    [[nodiscard]] float* float_row(int64_t row) { return floats_ + row * quant_.num_blocks * kBlockColumns; }
    /// Norms `x` into row `row` (a norm without weights copies) and quantises it.
    void set_row(int64_t row, const float* x, const NormParams& norm) {
        float* out = float_row(row);
        const bool bytes = arithmetic_ == CpuArithmetic::int8;
        const bool integers = bytes || arithmetic_ == CpuArithmetic::int16;
        if (norm.weight != nullptr) {
            kernels_.rms_norm(x, norm.weight, norm.epsilon, norm.style == NormStyle::one_plus, cols_, out);
        } else if (!integers || for_plain_) {
            std::memcpy(out, x, static_cast<size_t>(cols_) * sizeof(float));
        }
        if (!integers || for_plain_) {
            for (int64_t c = cols_; c < quant_.num_blocks * kBlockColumns; ++c) out[c] = 0.0f;
        }
        if (integers) {
            const float* from = norm.weight != nullptr ? out : x;
            kernels_.quantise(from, cols_, bytes ? 127 : kWideLimit, bytes ? 1 : kSpanBlocks, quant_.blocks + row * quant_.num_blocks);
        }
        if (arithmetic_ != CpuArithmetic::bf16) return;
        for (int64_t c = 0; c < cols_; ++c) out[c] = bf16_to_f32(f32_to_bf16(out[c]));
    }
    /// out[r][0..32) = rows x group, for rows [row, row + count). Cut into balanced tiles.
    void multiply(PackedGroup group, int64_t row, int64_t count, float* out, size_t out_stride) {
        const bool in_float = is_plain(group.type) || arithmetic_ == CpuArithmetic::float32 || arithmetic_ == CpuArithmetic::bf16;
        if (in_float) {
            const auto stride = static_cast<size_t>(quant_.num_blocks) * kBlockColumns;
            kernels_.product_float(group, float_row(row), stride, static_cast<int>(count), out, out_stride);
            return;
        }
        if (count < kFewestPairedRows) group.pair_sums = nullptr;
        const int panel_rows = kernels_.product_panel == nullptr || quant_.bytes_only ? 0 : fewest_panel_rows(group.type);
        if (panel_rows > 0 && count >= panel_rows) {
            return kernels_.product_panel(group, quant_, row, static_cast<int>(count), out, out_stride);
        }
        const int64_t tiles = (count + kernels_.max_tile_rows - 1) / kernels_.max_tile_rows;
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t from = count * t / tiles;
            const int64_t to = count * (t + 1) / tiles;
            group.fetch_next = t + 1 == tiles && count > 1;   // one row alone is as fast as memory, and the hardware fetches well
            kernels_.product(group, quant_, row + from, static_cast<int>(to - from),
                             out + static_cast<size_t>(from) * out_stride, out_stride);
        }
    }

private:
    const KernelTable& kernels_;
    int64_t cols_;
    CpuArithmetic arithmetic_;
    bool for_plain_;
    float* floats_ = nullptr;
    QuantRows quant_;
};

// Rows that go through a group of weights before the next group, at most: their integers stay in the L2 cache, the group in L1.
constexpr int64_t kRowsPerPass = 48;
/// Rows of each pass (of the last one what is left): passes of like size, in whole tiles, so that no pass reads all weights for a few rows.
inline int64_t rows_per_pass(int64_t rows, int max_tile_rows) {
    const int64_t passes = std::max<int64_t>((rows + kRowsPerPass - 1) / kRowsPerPass, 1);
    const int64_t even = std::max<int64_t>((rows + passes - 1) / passes, 1);
    const int64_t tiles = (even + max_tile_rows - 1) / max_tile_rows * max_tile_rows;
    return tiles <= kRowsPerPass ? tiles : even;
}
// Up to this many rows every thread norms and quantises for itself: cheaper than meeting at a barrier.
constexpr int64_t kPrivateRows = 2;

inline bool rows_are_shared(const TaskContext& context, int64_t rows) { return rows > kPrivateRows && context.num_threads > 1; }

/// Fills `block` with `rows` rows; `source(row)` gives a row's floats. Where the rows are shared the threads split them and meet at
/// one barrier.
template <class Source>
void prepare_rows(TaskContext& context, int64_t rows, const NormParams& norm, const Source& source, RowBlock& block) {
    if (!rows_are_shared(context, rows)) {
        for (int64_t r = 0; r < rows; ++r) block.set_row(r, source(r), norm);
        return;
    }
    Deal deal = context.deal(rows);
    for (int64_t r = deal.next(); r >= 0; r = deal.next()) block.set_row(r, source(r), norm);
    context.barrier();
}

}  // namespace takt::cpu
