// Paged attention of every CPU path that this machine runs: against float64, and with the context split into chunks.
#include <cmath>
#include <cstring>
#include <random>

#include "catch.h"
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
