// Operations of the CPU device around its linear layers: embedding, attention input, projections, MLP, logits. Each is one item
// that all compute threads run; output groups are dealt to the threads as they come, so K is never split.
#include <cmath>
#include <cstring>

#include "kernels/cpu/kv_place.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/rotation.h"
#include "kernels/cpu/row_block.h"
#include "kernels/cpu/stream.h"

namespace takt::cpu {
namespace {

CpuStream& cpu(Stream& stream) { return static_cast<CpuStream&>(stream); }
const CpuLinear& packed(const Linear* linear) { return *static_cast<const CpuLinear*>(linear); }

/// Scratch for the rows of an item: shared by the threads, or this thread's own where each makes its own copy.
void* rows_memory(TaskContext& context, int64_t rows, int64_t cols, const RowUse& use) {
    const size_t bytes = RowBlock::bytes(rows, cols, use, kernel_table(context.isa));
    return rows_are_shared(context, rows) ? context.shared_scratch(bytes) : context.scratch(bytes);
}

/// Calls body(part, group, first output row in the layer) for the groups of the layer that this thread gets.
template <class Body>
void for_groups(TaskContext& context, const CpuLinear& linear, const Body& body) {
    int64_t total = 0;
    for (const PackedMatrix& part : linear.parts()) total += part.num_groups;
    Deal deal = context.deal(total);
    for (int64_t unit = deal.next(); unit >= 0; unit = deal.next()) {
        int64_t group = unit;
        int64_t first_row = 0;
        const PackedMatrix* part = linear.parts().data();
        for (; group >= part->num_groups; ++part) {
            group -= part->num_groups;
            first_row += part->rows;
        }
        body(*part, group, first_row + group * kGroupRows);
    }
}

/// body(first row, rows) for the rows of an item, pass by pass.
template <class Body>
void for_passes(int64_t rows, const RowBlock& block, const Body& body) {
    const int64_t step = block.rows_at_once(rows);
    for (int64_t first = 0; first < rows; first += step) body(first, std::min(step, rows - first));
}

int64_t rows_in_group(const PackedMatrix& part, int64_t group) { return std::min<int64_t>(kGroupRows, part.rows - group * kGroupRows); }

/// The first `n` outputs of a tile's rows to where they belong.
void copy_tile(const float* tile, int64_t rows, int64_t n, float* out, int64_t out_stride) {
    for (int64_t r = 0; r < rows; ++r) std::memcpy(out + r * out_stride, tile + r * kGroupRows, static_cast<size_t>(n) * sizeof(float));
}

// ---- embedding

void run_embed(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const EmbedParams*>(data);
    const PackedMatrix& table = static_cast<const CpuEmbedding*>(p.table)->table();
    Deal deal = context.deal(p.in.header->num_rows);
    for (int64_t r = deal.next(); r >= 0; r = deal.next()) {
        int32_t token = p.in.rows[r].token;
        if (token < 0) token = p.slot_tokens[~token];
        float* out = static_cast<float*>(p.hidden) + r * table.cols;
        // An id outside the table can only be a failed sample's: its request has ended, the row is computed for nobody.
        table.read_row(token >= 0 && token < table.rows ? token : 0, out);
        if (p.scale != 1.0f) {
            for (int64_t c = 0; c < table.cols; ++c) out[c] *= p.scale;
        }
    }
}

// ---- attention input

/// One head's key or value as the cache holds it: elements at `out`, of int8 their scale too.
void convert_kv(const KernelTable& kernels, const KvLayout& kv, const float* x, uint8_t* out, float* scale) {
    if (kv.type == DType::i8) {
        *scale = kernels.quantise_kv(x, kv.head_dim, reinterpret_cast<int8_t*>(out));
    } else {
        kernels.store_kv(x, kv.head_dim, kv.type, out);
    }
}

/// The keys of all heads, then the values, of one row into its place in the cache.
void write_kv(const AttentionInputParams& p, const KernelTable& kernels, int32_t slot, const float* kv_row) {
    const int dims = p.kv.head_dim;
    const int num_kv = p.kv.num_kv_heads;
    const int64_t block = slot / p.kv.block_tokens;
    const int token = slot % p.kv.block_tokens;
    const size_t scale_at = p.kv.scales_begin() + static_cast<size_t>(token) * sizeof(float);
    auto* layer = static_cast<uint8_t*>(p.kv_layer) + static_cast<size_t>(block) * p.kv.head_stride();
    for (int h = 0; h < num_kv; ++h) {
        uint8_t* keys = layer + key_begin(p.kv, h);
        uint8_t* values = layer + value_begin(p.kv, h);
        alignas(float) uint8_t key[kMaxHeadDim * sizeof(float)];
        float scales[2];
        convert_kv(kernels, p.kv, kv_row + h * dims, key, &scales[0]);
        switch (dtype_bytes(p.kv.type, 1)) {
            case 1: place_key(key, p.kv.block_tokens, dims, token, keys); break;
            case 2: place_key(reinterpret_cast<const uint16_t*>(key), p.kv.block_tokens, dims, token, keys); break;
            default: place_key(reinterpret_cast<const float*>(key), p.kv.block_tokens, dims, token, keys); break;
        }
        convert_kv(kernels, p.kv, kv_row + (num_kv + h) * dims, values + static_cast<size_t>(token) * p.kv.token_stride(), &scales[1]);
        if (!p.kv.has_scales()) continue;
        if (std::isnan(scales[0])) scales[1] = scales[0];   // a score that is not a number is masked by the softmax, a value is not
        std::memcpy(keys + scale_at, &scales[0], sizeof(float));
        std::memcpy(values + scale_at, &scales[1], sizeof(float));
    }
}

/// One row of q, k, v after the product: bias, per-head norm, rotation; q out, K and V into the cache.
void finish_row(const AttentionInputParams& p, const KernelTable& kernels, RotationCache& rotations, int64_t row, float* qkv) {
    const int dims = p.kv.head_dim;
    const int num_kv = p.kv.num_kv_heads;
    const int width = (p.num_heads + 2 * num_kv) * dims;
    if (p.bias != nullptr) {
        kernels.add(p.bias, width, qkv);
    }
    const RowInput& in = p.in.rows[row];
    const Rotation rotation = p.rope.style == RopeStyle::none ? Rotation{} : rotations.get(p.rope, in.position, dims);
    for (int h = 0; h < p.num_heads + num_kv; ++h) {
        float* head = qkv + h * dims;
        const NormParams& norm = h < p.num_heads ? p.q_norm : p.k_norm;
        if (norm.weight != nullptr) {
            kernels.rms_norm(head, norm.weight, norm.epsilon, norm.style == NormStyle::one_plus, dims, head);
        }
        if (p.rope.style != RopeStyle::none) rotate(rotation, p.rope.style, head);
    }
    std::memcpy(static_cast<float*>(p.q) + row * p.num_heads * dims, qkv, static_cast<size_t>(p.num_heads * dims) * sizeof(float));
    write_kv(p, kernels, in.kv_slot, qkv + p.num_heads * dims);
}

void run_attention_input(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const AttentionInputParams*>(data);
    const KernelTable& kernels = kernel_table(context.isa);
    const CpuLinear& linear = packed(p.qkv);
    const int64_t rows = p.in.header->num_rows;
    const int64_t cols = linear.in_features();
    const auto width = static_cast<size_t>(linear.out_features() + kGroupRows);
    // Shared: [rows][width] products, then (where shared) the rows themselves.
    const size_t products = (static_cast<size_t>(rows) * width * sizeof(float) + 63) / 64 * 64;
    const bool shared_rows = rows_are_shared(context, rows);
    const RowUse use = linear.row_use(kernels);
    const size_t row_bytes = RowBlock::bytes(rows, cols, use, kernels);
    auto* shared = static_cast<uint8_t*>(context.shared_scratch(products + (shared_rows ? row_bytes : 0)));
    void* memory = shared_rows ? shared + products : context.scratch(row_bytes);
    if (shared == nullptr || memory == nullptr) return;
    RowBlock block(memory, rows, cols, context.arithmetic, use, kernels);
    const auto* hidden = static_cast<const float*>(p.hidden);
    prepare_rows(context, rows, p.norm, [&](int64_t r) { return hidden + r * cols; }, block);
    auto* out = reinterpret_cast<float*>(shared);
    for_passes(rows, block, [&](int64_t first, int64_t count) {
        for_groups(context, linear, [&](const PackedMatrix& part, int64_t g, int64_t row) {
            float* to = out + static_cast<size_t>(first) * width + row;
            if (rows_in_group(part, g) == kGroupRows) return block.multiply(part.group(g), first, count, to, width);
            float tile[kMaxRowsPerPass * kGroupRows];
            block.multiply(part.group(g), first, count, tile, kGroupRows);
            copy_tile(tile, count, rows_in_group(part, g), to, static_cast<int64_t>(width));
        });
    });
    context.barrier();
    Deal deal = context.deal(rows);
    for (int64_t r = deal.next(); r >= 0; r = deal.next()) {
        finish_row(p, kernels, context.rotations(), r, out + static_cast<size_t>(r) * width);
    }
}

// ---- projections back into the residual

void run_linear_residual(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const LinearResidualParams*>(data);
    const KernelTable& kernels = kernel_table(context.isa);
    const CpuLinear& linear = packed(p.linear);
    const int64_t rows = p.in.header->num_rows;
    const int64_t cols = linear.in_features();
    const int64_t hidden = linear.out_features();
    const bool normed = p.post_norm.weight != nullptr;
    const size_t branch_bytes = normed ? (static_cast<size_t>(rows * hidden) * sizeof(float) + 63) / 64 * 64 : 0;
    const bool shared_rows = rows_are_shared(context, rows);
    const RowUse use = linear.row_use(kernels);
    const size_t row_bytes = RowBlock::bytes(rows, cols, use, kernels);
    const size_t shared_bytes = branch_bytes + (shared_rows ? row_bytes : 0);
    auto* shared = static_cast<uint8_t*>(shared_bytes > 0 ? context.shared_scratch(shared_bytes) : nullptr);
    void* memory = shared_rows ? static_cast<void*>(shared + branch_bytes) : context.scratch(row_bytes);
    if (memory == nullptr || (shared_bytes > 0 && shared == nullptr)) return;
    RowBlock block(memory, rows, cols, context.arithmetic, use, kernels);
    const auto* x = static_cast<const float*>(p.x);
    prepare_rows(context, rows, NormParams{}, [&](int64_t r) { return x + r * cols; }, block);
    auto* residual = static_cast<float*>(p.hidden);
    auto* branch = reinterpret_cast<float*>(shared);
    for_passes(rows, block, [&](int64_t first, int64_t count) {
        for_groups(context, linear, [&](const PackedMatrix& part, int64_t g, int64_t row) {
            float tile[kMaxRowsPerPass * kGroupRows];
            block.multiply(part.group(g), first, count, tile, kGroupRows);
            const auto n = static_cast<int>(rows_in_group(part, g));
            if (p.bias != nullptr) {
                for (int64_t r = 0; r < count; ++r) kernels.add(p.bias + row, n, tile + r * kGroupRows);
            }
            if (normed) return copy_tile(tile, count, n, branch + first * hidden + row, hidden);
            kernels.add_tile(tile, static_cast<int>(count), n, residual + first * hidden + row, static_cast<size_t>(hidden));
        });
    });
    if (!normed) return;
    context.barrier();
    Deal deal = context.deal(rows);
    for (int64_t r = deal.next(); r >= 0; r = deal.next()) {
        float* b = branch + r * hidden;
        kernels.rms_norm(b, p.post_norm.weight, p.post_norm.epsilon, p.post_norm.style == NormStyle::one_plus, hidden, b);
        kernels.add(b, static_cast<int>(hidden), residual + r * hidden);
    }
}

// ---- gated MLP

void run_mlp_input(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const MlpInputParams*>(data);
    const KernelTable& kernels = kernel_table(context.isa);
    const CpuLinear& linear = packed(p.gate_up);
    const PackedMatrix& gate = linear.parts()[0];
    const PackedMatrix& up = linear.parts()[1];
    const int64_t rows = p.in.header->num_rows;
    const int64_t cols = linear.in_features();
    const RowUse use = linear.row_use(kernels);
    void* memory = rows_memory(context, rows, cols, use);
    if (memory == nullptr) return;
    RowBlock block(memory, rows, cols, context.arithmetic, use, kernels);
    const auto* hidden = static_cast<const float*>(p.hidden);
    prepare_rows(context, rows, p.norm, [&](int64_t r) { return hidden + r * cols; }, block);
    auto* out = static_cast<float*>(p.out);
    for_passes(rows, block, [&](int64_t first, int64_t count) {
        Deal deal = context.deal(gate.num_groups);
        for (int64_t g = deal.next(); g >= 0; g = deal.next()) {
            float gates[kMaxRowsPerPass * kGroupRows];
            float ups[kMaxRowsPerPass * kGroupRows];
            block.multiply(gate.group(g), first, count, gates, kGroupRows);
            block.multiply(up.group(g), first, count, ups, kGroupRows);
            const auto n = static_cast<int>(rows_in_group(gate, g));
            for (int64_t r = 0; r < count; ++r) {
                kernels.gate(gates + r * kGroupRows, ups + r * kGroupRows, n, p.activation == Activation::gelu_tanh,
                             out + (first + r) * gate.rows + g * kGroupRows);
            }
        }
    });
}

// ---- logits of the sampled rows

void run_logits(TaskContext& context, const void* data) {
    const auto& p = *static_cast<const LogitsParams*>(data);
    const KernelTable& kernels = kernel_table(context.isa);
    const CpuLinear& head = packed(p.head);
    const int64_t samples = p.in.header->num_samples;
    const int64_t cols = head.in_features();
    if (samples == 0) return;
    const RowUse use = head.row_use(kernels);
    void* memory = rows_memory(context, samples, cols, use);
    if (memory == nullptr) return;
    RowBlock block(memory, samples, cols, context.arithmetic, use, kernels);
    const auto* hidden = static_cast<const float*>(p.hidden);
    auto source = [&](int64_t s) { return hidden + std::max(p.in.samples[s].row, 0) * cols; };
    prepare_rows(context, samples, p.norm, source, block);
    for_passes(samples, block, [&](int64_t first, int64_t count) {
        for_groups(context, head, [&](const PackedMatrix& part, int64_t g, int64_t row) {
            float* to = p.logits + first * p.vocab_stride + row;
            const int64_t n = rows_in_group(part, g);
            if (n == kGroupRows && p.soft_cap == 0.0f) {
                return block.multiply(part.group(g), first, count, to, static_cast<size_t>(p.vocab_stride));
            }
            float tile[kMaxRowsPerPass * kGroupRows];
            block.multiply(part.group(g), first, count, tile, kGroupRows);
            for (int64_t s = 0; s < count && p.soft_cap > 0.0f; ++s) kernels.soft_cap(tile + s * kGroupRows, n, p.soft_cap);
            copy_tile(tile, count, n, to, p.vocab_stride);
        });
    });
}

}  // namespace

Status op_embed(Stream& stream, const EmbedParams& params) {
    cpu(stream).note_rows(&params.in.header->num_rows);
    return cpu(stream).enqueue(run_embed, params);
}

Status op_attention_input(Stream& stream, const AttentionInputParams& params) {
    if (params.kv.head_dim % 16 != 0 || params.kv.head_dim > kMaxHeadDim) {
        return {kStatusUnsupported, "the CPU device needs a head size that is a multiple of 16, at most 256"};
    }
    return cpu(stream).enqueue(run_attention_input, params);
}

Status op_linear_residual(Stream& stream, const LinearResidualParams& params) {
    return cpu(stream).enqueue(run_linear_residual, params);
}

Status op_mlp_input(Stream& stream, const MlpInputParams& params) { return cpu(stream).enqueue(run_mlp_input, params); }

Status op_logits(Stream& stream, const LogitsParams& params) { return cpu(stream).enqueue(run_logits, params); }

}  // namespace takt::cpu
