// Paged attention of every CPU path that this machine runs: against float64, and with the context split into chunks.
#include <cmath>
#include <cstring>
#include <random>

#include "attention_job.h"
#include "catch.h"
#include "cpu_paths.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/kv_place.h"
#include "kernels/cpu/kernel_table.h"

using namespace takt;
using namespace takt::cpu;
using takt::test::machine_kernels;

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
    for (const KernelTable* k : machine_kernels()) {
        INFO(k->name);
        AttentionJob j;
        j.keys = reinterpret_cast<const uint8_t*>(cache.data());
        j.values = j.keys + static_cast<size_t>(block_tokens * dims) * 4;
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
                const auto block = static_cast<size_t>(table[static_cast<size_t>(t / block_tokens)] * 2 + kv) * block_tokens * dims;
                const int token = t % block_tokens;
                const size_t in_block = kv == 0 ? key_offset(block_tokens, dims, token, d) : static_cast<size_t>(token * dims + d);
                return static_cast<double>(cache[block + in_block]);
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

TEST_CASE("a token's key goes to where the panels hold it, in blocks of every size") {
    for (const int block_tokens : {8, 16, 32, 64}) {
        constexpr int dims = 32;
        std::vector<uint16_t> head(static_cast<size_t>(block_tokens) * dims, 0xffff);
        for (int token = block_tokens - 1; token >= 0; --token) {
            uint16_t key[dims];
            for (int d = 0; d < dims; ++d) key[d] = static_cast<uint16_t>(token * dims + d);
            place_key(key, block_tokens, dims, token, reinterpret_cast<uint8_t*>(head.data()));
        }
        const int width = std::min(block_tokens, 16);   // a panel: [dimension][width]
        for (int token = 0; token < block_tokens; ++token) {
            for (int d = 0; d < dims; ++d) {
                const int at = token / width * width * dims + d * width + token % width;
                CHECK(head[static_cast<size_t>(at)] == token * dims + d);
            }
        }
    }
}

TEST_CASE("attention: the bits do not depend on the size of the blocks, nor on what lies behind the context") {
    const int dims = 64, heads = 3, context = 203;
    std::mt19937 random(11);
    std::vector<uint16_t> keys(256 * dims), values(keys.size());
    for (auto& v : keys) v = f32_to_f16(std::normal_distribution<float>()(random));
    for (auto& v : values) v = f32_to_f16(std::normal_distribution<float>()(random));
    std::vector<float> q(heads * dims);
    for (float& v : q) v = std::normal_distribution<float>()(random);
    for (const KernelTable* k : machine_kernels()) {
        INFO(k->name);
        std::vector<float> first;
        for (const int block_tokens : {8, 16, 32, 64}) {
            const int blocks = 256 / block_tokens;
            const auto half = static_cast<size_t>(block_tokens) * dims;
            std::vector<uint16_t> cache(static_cast<size_t>(blocks) * 2 * half, 0x7e00);   // NaN where nothing was written
            std::vector<int32_t> table;
            for (int b = 0; b < blocks; ++b) table.push_back(blocks - 1 - b);
            for (int t = 0; t < context; ++t) {
                uint16_t* block = cache.data() + static_cast<size_t>(table[static_cast<size_t>(t / block_tokens)]) * 2 * half;
                const int token = t % block_tokens;
                place_key(&keys[static_cast<size_t>(t * dims)], block_tokens, dims, token, reinterpret_cast<uint8_t*>(block));
                std::memcpy(block + half + static_cast<size_t>(token * dims), &values[static_cast<size_t>(t * dims)], 2 * dims);
            }
            AttentionJob j;
            j.keys = reinterpret_cast<const uint8_t*>(cache.data());
            j.values = j.keys + half * 2;
            j.block_stride = half * 4;
            j.token_stride = 2 * dims;
            j.type = DType::f16;
            j.table = table.data();
            j.block_tokens = block_tokens;
            j.head_dim = dims;
            j.num_heads = heads;
            j.q = q.data();
            j.num_rows = 1;
            j.first_position = context - 1;
            j.kv_end = context;
            j.scale = 0.125f;
            std::vector<float> scratch(attention_scratch_floats(heads, dims)), out(q.size(), std::nanf(""));
            j.scratch = scratch.data();
            j.out = out.data();
            k->attention(j);
            CHECK(std::isfinite(out[0]));
            if (first.empty()) first = out;
            CHECK(std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("attention of a row has the same bits alone and among other rows, for every shape") {
    const std::pair<DType, takt::test::AttentionShape> shapes[] = {
        {DType::f16, {64, 3, 16, 300, 16, 0, 0.0f}},  {DType::f16, {64, 1, 8, 65, 7, 0, 0.0f}},
        {DType::f32, {80, 5, 64, 129, 16, 40, 0.0f}}, {DType::bf16, {16, 4, 32, 64, 3, 0, 30.0f}},
        {DType::f16, {256, 2, 16, 600, 9, 100, 0.0f}}, {DType::f16, {128, 8, 16, 17, 16, 0, 0.0f}}};
    std::mt19937 random(9);
    for (const auto& [type, s] : shapes) {
        CAPTURE(s.dims, s.heads, s.block_tokens, s.context, s.rows, s.window);
        const size_t bytes = dtype_bytes(type, 1);
        const int blocks = (s.context + s.block_tokens - 1) / s.block_tokens + 1;
        const auto block_values = static_cast<size_t>(2 * s.block_tokens * s.dims);
        std::vector<uint8_t> cache(static_cast<size_t>(blocks) * block_values * bytes);
        for (size_t i = 0; i < cache.size() / bytes; ++i) {
            const float v = std::normal_distribution<float>()(random);
            const uint16_t half = type == DType::f16 ? f32_to_f16(v) : f32_to_bf16(v);
            std::memcpy(cache.data() + i * bytes, type == DType::f32 ? static_cast<const void*>(&v) : &half, bytes);
        }
        std::vector<int32_t> table;
        for (int i = 0; i < blocks; ++i) table.push_back(blocks - 1 - i);
        std::vector<float> q(static_cast<size_t>(s.rows * s.heads * s.dims));
        for (float& v : q) v = std::normal_distribution<float>()(random);
        for (const KernelTable* k : machine_kernels()) {
            INFO(k->name);
            AttentionJob j = takt::test::attention_job(s);
            j.keys = cache.data();
            j.values = cache.data() + block_values / 2 * bytes;
            j.block_stride = block_values * bytes;
            j.token_stride = static_cast<size_t>(s.dims) * bytes;
            j.type = type;
            j.table = table.data();
            const std::vector<float> together = takt::test::run_attention(*k, j, q), alone = takt::test::run_attention_by_rows(*k, j, q);
            CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0);
        }
    }
}
