// RowBlock: rows of activations made ready for products: normed and quantised once, shared by the threads of an item (or made by
// each for itself where that is cheaper than a barrier). Lives inside one item.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/cpu/row_use.h"
#include "kernels/cpu/task.h"
#include "kernels/params.h"

namespace takt::cpu {

// From this many rows on products are in pairs, where a path and a type have that: fewer are bound by the reading of the weights.
constexpr int64_t kFewestPairedRows = 5;

// Rows that go through a group of weights before the next group, at most: their integers stay in the L2 cache, the group in L1. A panel of
// the group that is unpacked for all of them pays for twice as many.
constexpr int64_t kRowsPerPass = 48;
constexpr int64_t kMaxRowsPerPass = 96;
/// Rows of each pass (of the last one what is left): passes of like size, in whole tiles, so that no pass reads all weights for a few rows.
inline int64_t rows_per_pass(int64_t rows, int tile_rows, int64_t most) {
    const int64_t passes = std::max<int64_t>((rows + most - 1) / most, 1);
    const int64_t even = std::max<int64_t>((rows + passes - 1) / passes, 1);
    const int64_t tiles = (even + tile_rows - 1) / tile_rows * tile_rows;
    return tiles <= most ? tiles : even;
}

class RowBlock {
public:
    /// Bytes of scratch for `rows` rows of `cols` columns.
    static size_t bytes(int64_t rows, int64_t cols, const RowUse& use, const KernelTable& kernels) {
        const auto blocks = static_cast<size_t>(num_blocks(cols));
        const size_t spans = wants_spans(rows, use, kernels) ? static_cast<size_t>(num_spans(cols)) * sizeof(WideSpan) : 0;
        return static_cast<size_t>(rows) * (blocks * (kBlockColumns * sizeof(float) + sizeof(QuantBlock)) + spans) + 3 * 64;
    }

    RowBlock(void* memory, int64_t rows, int64_t cols, CpuArithmetic arithmetic, const RowUse& use, const KernelTable& kernels)
        : kernels_(kernels), cols_(cols), arithmetic_(arithmetic), use_(use) {
        quant_.num_blocks = num_blocks(cols);
        quant_.bytes_only = arithmetic == CpuArithmetic::int8;
        floats_ = static_cast<float*>(memory);
        quant_.blocks = reinterpret_cast<QuantBlock*>(floats_ + rows * quant_.num_blocks * kBlockColumns);
        if (arithmetic != CpuArithmetic::int16 || !wants_spans(rows, use, kernels)) return;
        quant_.spans = reinterpret_cast<WideSpan*>(quant_.blocks + rows * quant_.num_blocks);
        quant_.num_rows = rows;
    }

    /// Of the `rows` that it was made for, how many multiply() should get at once.
    [[nodiscard]] int64_t rows_at_once(int64_t rows) const {
        const bool in_panels = arithmetic_ == CpuArithmetic::int16 && rows >= use_.fewest_panel_rows;
        if (!in_panels) return rows_per_pass(rows, kernels_.max_tile_rows, kRowsPerPass);
        return rows_per_pass(rows, quant_.spans == nullptr ? kernels_.max_tile_rows : kWideTileRows, kMaxRowsPerPass);
    }

    [[nodiscard]] float* float_row(int64_t row) { return floats_ + row * quant_.num_blocks * kBlockColumns; }
    /// Norms `x` into row `row` (a norm without weights copies) and quantises it.
    void set_row(int64_t row, const float* x, const NormParams& norm) {
        float* out = float_row(row);
        const bool bytes = arithmetic_ == CpuArithmetic::int8;
        const bool integers = bytes || arithmetic_ == CpuArithmetic::int16;
        if (norm.weight != nullptr) {
            kernels_.rms_norm(x, norm.weight, norm.epsilon, norm.style == NormStyle::one_plus, cols_, out);
        } else if (!integers || use_.floats) {
            std::memcpy(out, x, static_cast<size_t>(cols_) * sizeof(float));
        }
        if (!integers || use_.floats) {
            for (int64_t c = cols_; c < quant_.num_blocks * kBlockColumns; ++c) out[c] = 0.0f;
        }
        if (integers) {
            const float* from = norm.weight != nullptr ? out : x;
            const IntegerLimits limits = bytes ? IntegerLimits{127, 0} : use_.limits;
            kernels_.quantise(from, cols_, limits, bytes ? 1 : kSpanBlocks, quant_.blocks + row * quant_.num_blocks);
            if (quant_.spans != nullptr) kernels_.widen(quant_.row(row), quant_.num_blocks, quant_.span(0, row), quant_.num_rows);
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
        if (!quant_.bytes_only && count >= kernels_.fewest_panel_rows(group.type)) {
            return kernels_.product_panel(group, quant_, row, static_cast<int>(count), out, out_stride);
        }
        if (count < kFewestPairedRows) group.pair_sums = nullptr;
        const int64_t tiles = (count + kernels_.max_tile_rows - 1) / kernels_.max_tile_rows;
        const auto bytes = static_cast<int64_t>(group_bytes(group.type, group.num_blocks * kBlockColumns));
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t from = count * t / tiles;
            const int64_t to = count * (t + 1) / tiles;
            group.fetch_ahead = count == 1 ? one_row_fetches_ahead() : t + 1 == tiles ? bytes : 0;
            kernels_.product(group, quant_, row + from, static_cast<int>(to - from),
                             out + static_cast<size_t>(from) * out_stride, out_stride);
        }
    }

private:
    static bool wants_spans(int64_t rows, const RowUse& use, const KernelTable& kernels) {
        return kernels.widen != nullptr && rows >= use.fewest_panel_rows;
    }
    static int64_t num_spans(int64_t cols) { return (num_blocks(cols) + kSpanBlocks - 1) / kSpanBlocks; }

    const KernelTable& kernels_;
    int64_t cols_;
    CpuArithmetic arithmetic_;
    RowUse use_;
    float* floats_ = nullptr;
    QuantRows quant_;
};

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
