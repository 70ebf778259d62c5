// Paged attention of every CPU path that this machine runs: against float64, and with the context split into chunks.
#include <cmath>
#include <cstring>
#include <random>

#include "catch.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/machine.h"

namespace {

using namespace takt;
using namespace takt::cpu;

std::vector<const KernelTable*> paths() {
    std::vector<const KernelTable*> all{&portable_kernels()};
    for (CpuIsa isa : {CpuIsa::avx2, CpuIsa::avx512}) {
        if (choose_isa(isa) == isa) all.push_back(&kernel_table(isa));
    }
    return all;
}

}  // namespace

TEST_CASE("attention: close to float64, and splitting the context changes no bit") {
    std::mt19937 random(5);
    const int dims = 64;
    const int heads = 3;
    const int context = 700;
    const int block_tokens = 16;
    std::vector<int32_t> table;
    for (int i = 0; i < 44; ++i) table.push_back(43 - i);
    std::vector<float> cache(static_cast<size_t>(44 * 2 * block_tokens * dims));
    for (float& v : cache) v = std::normal_distribution<float>()(random);
    std::vector<float> q(static_cast<size_t>(heads * dims));
    for (float& v : q) v = std::normal_distribution<float>()(random);
    for (const KernelTable* k : paths()) {
        INFO(k->name);
        AttentionJob j;
        j.layer = reinterpret_cast<const uint8_t*>(cache.data());
        j.layer_v = j.layer + static_cast<size_t>(block_tokens * dims) * 4;
        j.block_stride = static_cast<size_t>(2 * block_tokens * dims) * 4;
        j.token_stride = static_cast<size_t>(dims) * 4;
        j.type = DType::f32;
        j.table = table.data();
        j.head_dim = dims;
        j.num_heads = heads;
        j.q = q.data();
        j.num_rows = 1;
        j.first_position = context - 1;
        j.kv_end = context;
        j.scale = 0.125f;
        std::vector<float> scratch(attention_scratch_floats(heads, dims));
        std::vector<float> whole(q.size(), std::nanf(""));
        std::vector<float> split(whole);
        j.scratch = scratch.data();
        j.out = whole.data();
        k->attention(j);
        std::vector<float> partials(static_cast<size_t>(3 * heads * (dims + 16)), std::nanf(""));
        for (int chunk = 0; chunk < 3; ++chunk) {
            AttentionJob part = j;
            part.kv_begin = chunk * kChunkPositions;
            part.kv_end = std::min(context, part.kv_begin + kChunkPositions);
            part.partial = partials.data() + chunk * heads * (dims + 16);
            k->attention(part);
        }
        for (int h = 0; h < heads; ++h) {
            k->merge(partials.data() + h * (dims + 16), static_cast<size_t>(heads * (dims + 16)), 3, dims, split.data() + h * dims);
        }
        CHECK(std::memcmp(whole.data(), split.data(), whole.size() * sizeof(float)) == 0);
        for (int h = 0; h < heads; ++h) {
            std::vector<double> p(static_cast<size_t>(context));
            double total = 0;
            auto at = [&](int t, int kv, int d) {
                const int block = table[static_cast<size_t>(t / block_tokens)];
                return static_cast<double>(cache[static_cast<size_t>(((block * 2 + kv) * block_tokens + t % block_tokens) * dims + d)]);
            };
            for (int t = 0; t < context; ++t) {
                double s = 0;
                for (int d = 0; d < dims; ++d) s += static_cast<double>(q[static_cast<size_t>(h * dims + d)]) * at(t, 0, d);
                p[static_cast<size_t>(t)] = std::exp(s * 0.125);
                total += p[static_cast<size_t>(t)];
            }
            for (int d = 0; d < dims; ++d) {
                double v = 0;
                for (int t = 0; t < context; ++t) v += p[static_cast<size_t>(t)] / total * at(t, 1, d);
                CHECK(static_cast<double>(whole[static_cast<size_t>(h * dims + d)]) == Approx(v).margin(2e-5));
            }
        }
    }
}

TEST_CASE("attention of a row has the same bits alone and among other rows, for every shape") {
    struct Shape {
        int dims, heads, block_tokens, context, rows, window;
        DType type;
        float soft_cap;
    };
    const Shape shapes[] = {{64, 3, 16, 300, 16, 0, DType::f16, 0.0f},  {64, 1, 8, 65, 7, 0, DType::f16, 0.0f},
                            {80, 5, 64, 129, 16, 40, DType::f32, 0.0f}, {16, 4, 32, 64, 3, 0, DType::bf16, 30.0f},
                            {256, 2, 16, 600, 9, 100, DType::f16, 0.0f}, {128, 8, 16, 17, 16, 0, DType::f16, 0.0f}};
    std::mt19937 random(9);
    for (const Shape& s : shapes) {
        CAPTURE(s.dims, s.heads, s.block_tokens, s.context, s.rows, s.window);
        const size_t bytes = dtype_bytes(s.type, 1);
        const int blocks = (s.context + s.block_tokens - 1) / s.block_tokens + 1;
        const auto block_values = static_cast<size_t>(2 * s.block_tokens * s.dims);
        std::vector<uint8_t> cache(static_cast<size_t>(blocks) * block_values * bytes);
        for (size_t i = 0; i < cache.size() / bytes; ++i) {
            const float v = std::normal_distribution<float>()(random);
            const uint16_t half = s.type == DType::f16 ? f32_to_f16(v) : f32_to_bf16(v);
            std::memcpy(cache.data() + i * bytes, s.type == DType::f32 ? static_cast<const void*>(&v) : &half, bytes);
        }
        std::vector<int32_t> table;
        for (int i = 0; i < blocks; ++i) table.push_back(blocks - 1 - i);
        std::vector<float> q(static_cast<size_t>(s.rows * s.heads * s.dims));
        for (float& v : q) v = std::normal_distribution<float>()(random);
        for (const KernelTable* k : paths()) {
            INFO(k->name);
            AttentionJob j;
            j.layer = cache.data();
            j.layer_v = cache.data() + block_values / 2 * bytes;
            j.block_stride = block_values * bytes;
            j.token_stride = static_cast<size_t>(s.dims) * bytes;
            j.type = s.type;
            j.table = table.data();
            j.block_tokens = s.block_tokens;
            j.head_dim = s.dims;
            j.num_heads = s.heads;
            j.q = q.data();
            j.q_stride = j.out_stride = static_cast<size_t>(s.heads * s.dims);
            j.num_rows = s.rows;
            j.first_position = s.context - s.rows;
            j.kv_end = s.context;
            j.window = s.window;
            j.scale = 0.1f;
            j.soft_cap = s.soft_cap;
            std::vector<float> scratch(attention_scratch_floats(s.rows * s.heads, s.dims));
            std::vector<float> together(q.size(), std::nanf("")), alone(together);
            j.scratch = scratch.data();
            j.out = together.data();
            k->attention(j);
            for (int r = 0; r < s.rows; ++r) {
                AttentionJob one = j;
                one.num_rows = 1;
                one.q = q.data() + static_cast<size_t>(r) * j.q_stride;
                one.out = alone.data() + static_cast<size_t>(r) * j.q_stride;
                one.first_position = j.first_position + r;
                one.kv_end = one.first_position + 1;
                k->attention(one);
            }
            CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0);
        }
    }
}
