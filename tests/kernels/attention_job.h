// Attention of one KV head's queries over one context: its shape, the job that a test fills with K and V, and its results with the rows
// together and one by one. Test code only.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cpu/kernel_table.h"

namespace takt::test {

struct AttentionShape {
    int dims, heads, block_tokens, context, rows, window;   // heads: queries of the KV head
    float soft_cap;
};

/// The last rows of the context, each over those before it and itself. Without q, K, V, their type and strides, the table.
inline cpu::AttentionJob attention_job(const AttentionShape& s) {
    cpu::AttentionJob j;
    j.block_tokens = s.block_tokens;
    j.head_dim = s.dims;
    j.num_heads = s.heads;
    j.q_stride = j.out_stride = static_cast<size_t>(s.heads * s.dims);
    j.num_rows = s.rows;
    j.first_position = s.context - s.rows;
    j.kv_end = s.context;
    j.window = s.window;
    j.scale = 0.1F;
    j.soft_cap = s.soft_cap;
    return j;
}

/// Outputs of a job on one path; not written is not a number.
inline std::vector<float> run_attention(const cpu::KernelTable& k, cpu::AttentionJob j, const std::vector<float>& q) {
    std::vector<float> scratch(cpu::attention_scratch_floats(j.num_rows * j.num_heads, j.head_dim)), out(q.size(), std::nanf(""));
    j.scratch = scratch.data();
    j.q = q.data();
    j.out = out.data();
    k.attention(j);
    return out;
}

/// The same, each row in a job of its own.
inline std::vector<float> run_attention_by_rows(const cpu::KernelTable& k, const cpu::AttentionJob& whole, const std::vector<float>& q) {
    std::vector<float> out;
    for (int r = 0; r < whole.num_rows; ++r) {
        cpu::AttentionJob one = whole;
        one.num_rows = 1;
        one.first_position += r;
        one.kv_end = one.first_position + 1;
        const auto begin = q.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(r) * whole.q_stride);
        const std::vector<float> row = run_attention(k, one, {begin, begin + static_cast<std::ptrdiff_t>(whole.q_stride)});
        out.insert(out.end(), row.begin(), row.end());
    }
    return out;
}

}  // namespace takt::test
