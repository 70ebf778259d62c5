// KernelTable: the inner loops of the CPU device, one set an instruction path. The per-ISA files are the only ones compiled with
// ISA flags and are reached only through here. Every function is pure and safe on any thread; a row's bits do not depend on how
// rows, groups or chunks are cut into calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/packed_format.h"
#include "kernels/device_factory.h"
#include "kernels/dtype.h"

namespace takt::cpu {

constexpr int kTilePositions = 64;     ///< attention tiles begin at absolute multiples of this
constexpr int kChunkPositions = 256;   ///< a chunk's softmax starts afresh; chunks are merged in order
constexpr int kMaxHeadDim = 256;
constexpr int kMaxJobQueries = 512;    ///< rows x query heads of an attention job

/// Blocks that share a scale of 16-bit activations: 256 columns, as many as a record of the K types has. The products of a span are
/// added under the weights' scales alone and meet the activations' scale once. 8 bits need a scale for each block.
constexpr int kSpanBlocks = 8;

/// 16-bit activations are integers of at most 120 x 256 + 127: room for a weight of four bits beside their high bytes, see
/// kernel_dots_paired.h. All paths keep to it, so that their products have the same bits.
constexpr int kWideLimit = 30847;

/// Bounds of a row's integers, of their magnitudes.
struct IntegerLimits {
    int each = kWideLimit;
    int mean = 0;   ///< over a block, but for the rounding; 0: any
};

/// For products with Q6_K, whose exact sums of a block have the integer scales of its halves in them: a weight times its scale is at most
/// 4,096. 32 of these times a mean of 16,383, and 16 for the rounding, fit an int32, and one more than `each` an int16.
constexpr IntegerLimits kScaledLimits{28671, 16383};

/// 32 quantised activations of one row, with what a product needs of them beside: one address a row and block.
struct alignas(64) QuantBlock {
    int16_t values[kBlockColumns];   // for the path's own products: int16, each four as 0 2 1 3, or int8 planes low[32], high[32]
    uint8_t paired[kBlockColumns];   // paths that pair columns: the high plane once more, 120 and -8 added in turns of four columns
    float scale = 0.0f;              // the same for all blocks of a span
    float float_sum = 0.0f;          // of the integers
    int32_t sum = 0;
    int32_t minus_half_sums[2] = {};   // of the first and of the last 16 columns, negative: where a sum of weights less an offset begins
    int32_t pair_start = 0;            // what the products of `paired` bytes with one another add too much, -256 times

    void set_sums(int32_t first_half, int32_t second_half) {
        sum = first_half + second_half;
        minus_half_sums[0] = -first_half;
        minus_half_sums[1] = -second_half;
        float_sum = static_cast<float>(sum);
    }
};

/// 256 columns of one row for panels of int16: 16-bit integers with what such products need of them beside.
struct alignas(64) WideSpan {
    int16_t values[kSpanBlocks * kBlockColumns];   // each four as 0 2 1 3
    int32_t pair_products[kSpanBlocks];            // what paired columns give with one another
    float sums[kSpanBlocks];                       // of a block's integers
    float scale;
};

/// Rows of activations, quantised by the path that multiplies them: integers in blocks of 32.
struct QuantRows {
    QuantBlock* blocks = nullptr;    // [row][num_blocks]
    int64_t num_blocks = 0;
    bool bytes_only = false;         // all integers fit 8 bits, with a scale a block: the high plane is zero
    WideSpan* spans = nullptr;       // [span][row]; null: not made (KernelTable::widen)
    int64_t num_rows = 0;            // of `spans`

    [[nodiscard]] const QuantBlock* row(int64_t r) const { return blocks + r * num_blocks; }
    [[nodiscard]] WideSpan* span(int64_t s, int64_t row) const { return spans + s * num_rows + row; }
};

/// One group of 32 output rows of a packed matrix.
struct PackedGroup {
    DType type = DType::f32;
    const uint8_t* data = nullptr;
    int64_t num_blocks = 0;
    int64_t fetch_ahead = 0;   ///< bytes ahead of those that are read that are fetched meanwhile; 0: none
    const int16_t* pair_sums = nullptr;   ///< of KernelTable::pair_sums: columns are multiplied in pairs
};

/// A work item of attention: the query heads of one KV head for some rows of one sequence.
struct AttentionJob {
    const uint8_t* keys = nullptr;       // of the head: [block][panel][dimension][16 positions], see kv_place.h
    const uint8_t* values = nullptr;     // of the head: [block][position][dimension]; int8: behind a block's elements a scale a position
    size_t block_stride = 0, token_stride = 0;   // bytes; a position's share of K is as large as its V
    DType type = DType::f16;
    const int32_t* table = nullptr;      // block ids of the sequence
    int block_tokens = 16;
    int head_dim = 0;
    int num_heads = 0;                   // query heads of the KV head
    const float* q = nullptr;            // first row's first head
    size_t q_stride = 0;                 // floats from row to row
    int num_rows = 0;
    int first_position = 0;              // of row 0; rows follow one another
    int kv_begin = 0, kv_end = 0;
    int window = 0;
    float scale = 1.0f;
    float soft_cap = 0.0f;
    float* partial = nullptr;            // null: write `out`; else [num_heads][head_dim + 2]: accumulator, maximum, sum
    float* out = nullptr;
    size_t out_stride = 0;
    float* scratch = nullptr;            // attention_scratch_floats()
    const AttentionJob* next = nullptr;  // what the same thread does after this, of the same shape: its first tile is fetched
};

constexpr int kWideTileRows = 8;   ///< of products with spans

struct KernelTable {
    const char* name;
    int max_tile_rows;
    /// x[cols] to integers within `limits` with one scale for `span` blocks; missing columns of the last block are 0.
    void (*quantise)(const float* x, int64_t cols, const IntegerLimits& limits, int span, QuantBlock* out);
    /// out[r][0..32) for rows [row, row + num_rows) of x; num_rows <= max_tile_rows. Quantised types.
    void (*product)(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride);
    /// The same bits for any number of rows from panel_rows() on, of 16 bits: weights are unpacked once for all of them. null: the path has
    /// none.
    void (*product_panel)(const PackedGroup& group, const QuantRows& x, int64_t row, int num_rows, float* out, size_t out_stride);
    /// Rows from which on product_panel() pays for a type; where the path has it.
    int (*panel_rows)(DType type);
    /// The spans that product_panel() reads, of one row: `stride` from one to the next. null: it reads the blocks.
    void (*widen)(const QuantBlock* blocks, int64_t num_blocks, WideSpan* out, int64_t stride);
    /// What the weights alone add too much to products in pairs of columns, negative: [block][32 rows]. Such products have the same
    /// bits by fewer dot instructions, for types that are `is_pairable`. null: the path has none.
    void (*pair_sums)(const PackedGroup& group, int16_t* out);
    /// The same in float32 against dequantised weights, any type. `x` rows of x_stride floats, padded with zeros to whole blocks.
    void (*product_float)(const PackedGroup& group, const float* x, size_t x_stride, int num_rows, float* out, size_t out_stride);
    void (*rms_norm)(const float* x, const float* weight, float epsilon, bool one_plus, int64_t n, float* out);
    /// out = activation(gate) * up
    void (*gate)(const float* gate, const float* up, int n, bool gelu, float* out);
    void (*soft_cap)(float* x, int64_t n, float cap);
    /// into += x
    void (*add)(const float* x, int n, float* into);
    /// The same for the first `n` of 32 floats of each row of a tile.
    void (*add_tile)(const float* tile, int rows, int n, float* into, size_t stride);
    void (*attention)(const AttentionJob& job);
    /// Folds `num_chunks` partial results (stride floats apart) into the head's output.
    void (*merge)(const float* partials, size_t stride, int num_chunks, int head_dim, float* out);
    void (*store_kv)(const float* x, int n, DType type, void* out);
    /// One head's key or value to integers of at most 127, and their scale: 0 where all are zeros, NaN where one is not finite. `n` is a
    /// multiple of 16.
    float (*quantise_kv)(const float* x, int n, int8_t* out);
    /// Index of the largest (lowest index among equals), and whether all are finite.
    int64_t (*argmax)(const float* x, int64_t n, bool* finite);
    /// Sum of exp(x - max), in float64 over a fixed order.
    double (*sum_exp)(const float* x, int64_t n, float max);

    [[nodiscard]] int fewest_panel_rows(DType type) const {
        return product_panel == nullptr || is_plain(type) ? std::numeric_limits<int>::max() : panel_rows(type);
    }
};

/// The table of a path that this build has and this CPU runs.
const KernelTable& kernel_table(CpuIsa isa);
const KernelTable& portable_kernels();
#ifdef TAKT_HAVE_NEON_ISA
const KernelTable& neon_kernels();
#endif
#ifdef TAKT_HAVE_X86_ISA
const KernelTable& avx2_kernels();
/// Of cores that add vectors on ports beside those of their dot instructions, where products in pairs of columns pay, or on the same; any
/// core can run both, and they give the same bits. kernel_table() takes the one for this machine, see machine.h.
const KernelTable& avx512_kernels(bool adds_beside_dots);
#endif

/// Floats of scratch that one attention job needs.
constexpr size_t attention_scratch_floats(int num_queries, int head_dim) {
    return static_cast<size_t>(num_queries) * (2 * (static_cast<size_t>(head_dim) + 16) + kTilePositions) +
           2 * static_cast<size_t>(kTilePositions) * static_cast<size_t>(head_dim);
}

}  // namespace takt::cpu
