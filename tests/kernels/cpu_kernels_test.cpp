// The CPU kernels of every path that this machine runs against float64, and bit for bit against each other and in every tile.
#include <cmath>
#include <cstring>
#include <random>

#include "catch.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/packed_format.h"
#include "kernels/philox.h"

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

struct Case {
    DType type;
    int64_t blocks;
    std::vector<uint8_t> group;   // random records with finite scales
};

Case random_case(DType type, int64_t blocks, std::mt19937& random) {
    const PackedFormat f = packed_format(type);
    Case c{type, blocks, std::vector<uint8_t>(static_cast<size_t>(blocks * f.record_bytes()) + 8192 + 512)};
    for (uint8_t& b : c.group) b = static_cast<uint8_t>(random());
    for (int64_t b = 0; b < blocks; ++b) {
        for (int i = 0; i < f.scale_bytes / 2; ++i) {
            const float value = std::uniform_real_distribution<float>(-0.1f, 0.1f)(random);
            const uint16_t half = f32_to_f16(value);
            std::memcpy(c.group.data() + b * f.record_bytes() + i * 2, &half, 2);
        }
    }
    return c;
}

struct Rows {
    Rows(int rows, int64_t blocks)
        : values(static_cast<size_t>(rows * blocks * 32)), scales(static_cast<size_t>(rows * blocks)), sums_f(scales), sums(scales.size()) {
        view = {values.data(), scales.data(), sums_f.data(), sums.data(), blocks};
    }
    std::vector<int16_t> values;
    std::vector<float> scales, sums_f;
    std::vector<int32_t> sums;
    QuantRows view;
};

}  // namespace

TEST_CASE("products: close to float64 and the same bits on every path and in every tile") {
    std::mt19937 random(11);
    for (DType type : {DType::q4_0, DType::q4_1, DType::q8_0}) {
        const int64_t blocks = 5;
        const int rows = 7;
        const Case c = random_case(type, blocks, random);
        const PackedGroup group{type, c.group.data(), blocks};
        std::vector<float> x(static_cast<size_t>(rows * blocks * 32));
        for (float& v : x) v = std::normal_distribution<float>()(random);
        std::vector<float> first;
        for (const KernelTable* k : paths()) {
            INFO(k->name << " type " << dtype_info(type).name);
            Rows q(rows, blocks);
            for (int r = 0; r < rows; ++r) {
                k->quantise(x.data() + r * blocks * 32, blocks * 32, 32639, q.values.data() + r * blocks * 32, q.scales.data() + r * blocks,
                            q.sums_f.data() + r * blocks, q.sums.data() + r * blocks);
            }
            std::vector<float> out(static_cast<size_t>(rows) * 32, std::nanf(""));
            for (int r = 0; r < rows; ++r) k->product(group, q.view, r, 1, out.data() + r * 32, 32);
            for (int tile = 2; tile <= k->max_tile_rows; ++tile) {
                std::vector<float> tiled(static_cast<size_t>(tile) * 32, std::nanf(""));
                k->product(group, q.view, 1, tile, tiled.data(), 32);
                CHECK(std::memcmp(tiled.data(), out.data() + 32, tiled.size() * sizeof(float)) == 0);
            }
            std::vector<float> exact(out.size(), std::nanf(""));
            k->product_float(group, x.data(), static_cast<size_t>(blocks * 32), rows, exact.data(), 32);
            double error = 0;
            double norm = 0;
            for (size_t i = 0; i < out.size(); ++i) {
                error += std::pow(static_cast<double>(out[i]) - static_cast<double>(exact[i]), 2);
                norm += std::pow(static_cast<double>(exact[i]), 2);
            }
            CHECK(std::sqrt(error / norm) < 2e-4);
            if (first.empty()) first = out;
            CHECK(std::memcmp(first.data(), out.data(), out.size() * sizeof(float)) == 0);
        }
    }
}

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

TEST_CASE("the generator gives the published words") {
    // Known answers of Philox4x32-10 for counter and key of zeros and of ones.
    CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    const uint32_t f = 0xffffffff;
    CHECK(philox4x32({f, f, f, f}, {f, f}) == std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}
