// Attention over int8 K and V on every CPU path that this machine runs: rounding of a row, attention against float64 over the same
// integers and scales, bits that depend on the row and the cache alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "attention_job.h"
#include "catch.h"
#include "cpu_paths.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/kv_place.h"

namespace {

using namespace takt;
using namespace takt::cpu;
using takt::test::machine_kernels;
using takt::test::run_attention;
using takt::test::run_attention_by_rows;
using Shape = takt::test::AttentionShape;

std::vector<float> normals(std::mt19937& random, size_t count) {
    std::vector<float> out(count);
    for (float& v : out) v = std::normal_distribution<float>()(random);
    return out;
}

/// One head's quantised K and V, by position and as the cache holds them; what nobody wrote would poison a result.
struct Cache {
    Cache(const Shape& s, std::mt19937& random) : shape(s) {
        kv.type = DType::i8;
        kv.num_layers = kv.num_kv_heads = 1;
        kv.head_dim = s.dims;
        kv.block_tokens = s.block_tokens;
        kv.num_blocks = (s.context + s.block_tokens - 1) / s.block_tokens + 1;
        const auto count = static_cast<size_t>(s.context * s.dims);
        for (int t = 0; t < 2 * s.context; ++t) scales.push_back(std::uniform_real_distribution<float>(0.002F, 0.02F)(random));
        for (size_t i = 0; i < 2 * count; ++i) integers.push_back(static_cast<int8_t>(static_cast<int>(random() % 255) - 127));
        for (int b = 0; b < kv.num_blocks; ++b) table.push_back(kv.num_blocks - 1 - b);
        bytes.assign(kv.layer_bytes(), 0xff);   // scales that are not numbers
        for (int t = 0; t < s.context; ++t) {
            const int token = t % s.block_tokens;
            const size_t begin = static_cast<size_t>(table[static_cast<size_t>(t / s.block_tokens)]) * kv.head_stride();
            uint8_t* keys = bytes.data() + key_begin(kv, 0) + begin;
            uint8_t* values = bytes.data() + value_begin(kv, 0) + begin;
            place_key(row(0, t), s.block_tokens, s.dims, token, keys);
            std::memcpy(values + static_cast<size_t>(token) * kv.token_stride(), row(1, t), kv.token_stride());
            std::memcpy(keys + kv.scales_begin() + 4 * static_cast<size_t>(token), &scales[static_cast<size_t>(t)], 4);
            std::memcpy(values + kv.scales_begin() + 4 * static_cast<size_t>(token), &scales[static_cast<size_t>(s.context + t)], 4);
        }
    }
    [[nodiscard]] const int8_t* row(int part, int t) const {
        return &integers[static_cast<size_t>((part * shape.context + t) * shape.dims)];
    }
    [[nodiscard]] double at(int part, int t, int d) const {
        return static_cast<double>(row(part, t)[d]) * static_cast<double>(scales[static_cast<size_t>(part * shape.context + t)]);
    }
    /// The same with other scales of one position: of its values `bad`, of its key what write_kv() makes of it.
    [[nodiscard]] Cache with_scales(int position, float bad) const {
        Cache made = *this;
        const size_t begin = static_cast<size_t>(table[static_cast<size_t>(position / shape.block_tokens)]) * kv.head_stride() +
                             kv.scales_begin() + 4 * static_cast<size_t>(position % shape.block_tokens);
        if (std::isnan(bad)) std::memcpy(&made.bytes[key_begin(kv, 0) + begin], &bad, 4);
        std::memcpy(&made.bytes[value_begin(kv, 0) + begin], &bad, 4);
        return made;
    }
    [[nodiscard]] AttentionJob job() const {
        AttentionJob j = takt::test::attention_job(shape);
        j.keys = bytes.data() + key_begin(kv, 0);
        j.values = bytes.data() + value_begin(kv, 0);
        j.block_stride = kv.head_stride();
        j.token_stride = kv.token_stride();
        j.type = DType::i8;
        j.table = table.data();
        return j;
    }

    Shape shape;
    KvLayout kv;
    std::vector<int8_t> integers;   // K, then V, by position
    std::vector<float> scales;
    std::vector<int32_t> table;
    std::vector<uint8_t> bytes;
};

/// Outputs of a job, each row by chunks of its context that are folded afterwards.
std::vector<float> run_cut(const KernelTable& k, const AttentionJob& whole, const std::vector<float>& q) {
    std::vector<float> out(q.size(), std::nanf(""));
    const size_t stride = static_cast<size_t>(whole.head_dim) + 16;
    const auto heads = static_cast<size_t>(whole.num_heads);
    for (int r = 0; r < whole.num_rows; ++r) {
        AttentionJob j = whole;
        std::vector<float> scratch(attention_scratch_floats(j.num_heads, j.head_dim));
        j.scratch = scratch.data();
        j.num_rows = 1;
        j.first_position += r;
        j.q = q.data() + static_cast<size_t>(r) * whole.q_stride;
        const int context = j.first_position + 1, chunks = (context + kChunkPositions - 1) / kChunkPositions;
        std::vector<float> partials(static_cast<size_t>(chunks) * heads * stride, std::nanf(""));
        for (int c = 0; c < chunks; ++c) {
            j.kv_begin = c * kChunkPositions;
            j.kv_end = std::min(context, j.kv_begin + kChunkPositions);
            j.partial = &partials[static_cast<size_t>(c) * heads * stride];
            k.attention(j);
        }
        for (size_t h = 0; h < heads; ++h) {
            float* to = &out[static_cast<size_t>(r) * whole.out_stride + h * static_cast<size_t>(whole.head_dim)];
            k.merge(&partials[h * stride], heads * stride, chunks, whole.head_dim, to);
        }
    }
    return out;
}

std::vector<double> reference(const Cache& cache, const std::vector<float>& q) {
    const Shape& s = cache.shape;
    std::vector<double> out(q.size(), 0.0);
    for (int n = 0; n < s.rows * s.heads; ++n) {
        const int position = s.context - s.rows + n / s.heads;
        const int first = s.window > 0 ? std::max(position - s.window + 1, 0) : 0;
        const float* query = &q[static_cast<size_t>(n * s.dims)];
        std::vector<double> weights;
        double total = 0;
        for (int t = first; t <= position; ++t) {
            double score = 0;
            for (int d = 0; d < s.dims; ++d) score += static_cast<double>(query[d]) * cache.at(0, t, d);
            score *= 0.1;
            if (s.soft_cap > 0) score = static_cast<double>(s.soft_cap) * std::tanh(score / static_cast<double>(s.soft_cap));
            weights.push_back(std::exp(score));
            total += weights.back();
        }
        for (int t = first; t <= position; ++t) {
            const double weight = weights[static_cast<size_t>(t - first)] / total;
            for (int d = 0; d < s.dims; ++d) out[static_cast<size_t>(n * s.dims + d)] += weight * cache.at(1, t, d);
        }
    }
    return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Head sizes that fill whole passes and that do not; one query a KV head, some, many; windows; a soft cap; context past a chunk.
constexpr Shape kShapes[] = {{64, 3, 16, 300, 16, 0, 0.0F}, {64, 1, 8, 65, 7, 0, 0.0F},     {80, 1, 8, 131, 3, 0, 0.0F},
                             {96, 2, 32, 77, 5, 30, 0.0F},  {128, 8, 16, 17, 16, 0, 0.0F},  {256, 2, 16, 600, 9, 100, 0.0F},
                             {16, 4, 32, 64, 3, 0, 30.0F},  {128, 4, 8, 203, 11, 90, 5.0F}, {80, 5, 64, 129, 16, 40, 0.0F},
                             {64, 9, 32, 513, 1, 0, 0.0F},  {64, 1, 16, 1, 1, 0, 0.0F}};

}  // namespace

TEST_CASE("int8 K and V: a row is rounded to the nearest of 255 steps, with the same bits on every path") {
    std::mt19937 random(3);
    for (const int n : {16, 64, 80, 96, 128, 256}) {
        for (const float spread : {1e-30F, 0.01F, 1.0F, 1e6F}) {
            std::vector<float> x = normals(random, static_cast<size_t>(n));
            for (float& v : x) v *= spread;
            float largest = 0.0F;
            for (const float v : x) largest = std::max(largest, std::abs(v));
            std::vector<int8_t> first;
            for (const KernelTable* k : machine_kernels()) {
                INFO(k->name << ", " << n << " of " << spread);
                std::vector<int8_t> out(static_cast<size_t>(n) + 16, 99);
                const float scale = k->quantise_kv(x.data(), n, out.data());
                CHECK(scale == largest / 127.0F);
                for (int i = 0; i < n; ++i) {
                    const double back = static_cast<double>(out[static_cast<size_t>(i)]) * static_cast<double>(scale);
                    CHECK(std::abs(back - static_cast<double>(x[static_cast<size_t>(i)])) <= 0.50005 * static_cast<double>(scale));
                }
                CHECK(std::count(out.begin() + n, out.end(), 99) == 16);   // nothing behind the row
                if (first.empty()) first = out;
                CHECK(out == first);
            }
        }
    }
    const float halves[16] = {127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 126.5F};   // of the scale 1: ties to even
    const int8_t expected[16] = {127, 0, 2, 2, 0, -2, -2, 126};
    for (const KernelTable* k : machine_kernels()) {
        int8_t out[16];
        CHECK(k->quantise_kv(halves, 16, out) == 1.0F);
        CHECK(std::equal(std::begin(out), std::end(out), std::begin(expected)));
    }
}

TEST_CASE("int8 K and V: a row of zeros has no scale, one that is not finite has none that is a number") {
    for (const KernelTable* k : machine_kernels()) {
        INFO(k->name);
        std::vector<float> x(64, 0.0F);
        std::vector<int8_t> out(64, 99);
        CHECK(k->quantise_kv(x.data(), 64, out.data()) == 0.0F);
        CHECK(std::count(out.begin(), out.end(), 0) == 64);
        for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
            x.assign(64, 1.0F);
            x[37] = bad;
            out.assign(64, 99);
            CHECK(std::isnan(k->quantise_kv(x.data(), 64, out.data())));
            CHECK(std::count(out.begin(), out.end(), 0) == 64);
        }
    }
}

TEST_CASE("int8 attention: float64 over the same integers and scales, for every shape") {
    std::mt19937 random(21);
    for (const Shape& s : kShapes) {
        CAPTURE(s.dims, s.heads, s.block_tokens, s.context, s.rows, s.window);
        const Cache cache(s, random);
        const std::vector<float> q = normals(random, static_cast<size_t>(s.rows * s.heads * s.dims));
        const std::vector<double> expected = reference(cache, q);
        for (const KernelTable* k : machine_kernels()) {
            INFO(k->name);
            const std::vector<float> out = run_attention(*k, cache.job(), q);
            double worst = 0;
            for (size_t i = 0; i < out.size(); ++i) {
                const double off = std::abs(static_cast<double>(out[i]) - expected[i]);
                worst = off <= worst ? worst : off;   // what is not a number counts
            }
            CHECK(worst < 1e-5);   // values up to 2.5
        }
    }
}

TEST_CASE("int8 attention of a row has the same bits alone, among other rows and with its context cut, for every shape") {
    std::mt19937 random(22);
    for (const Shape& s : kShapes) {
        CAPTURE(s.dims, s.heads, s.block_tokens, s.context, s.rows, s.window);
        const Cache cache(s, random);
        const std::vector<float> q = normals(random, static_cast<size_t>(s.rows * s.heads * s.dims));
        for (const KernelTable* k : machine_kernels()) {
            INFO(k->name);
            const std::vector<float> together = run_attention(*k, cache.job(), q);
            CHECK(same_bits(run_attention_by_rows(*k, cache.job(), q), together));
            CHECK(same_bits(run_cut(*k, cache.job(), q), together));
        }
    }
}

// Neighbours in a tile of another row: later positions, and those that a window has left behind.
TEST_CASE("int8 attention: scales that are not finite spoil the rows that see them and change no bit of the others, on every path") {
    std::mt19937 random(24);
    const float infinite = std::numeric_limits<float>::infinity();
    for (const Shape& s : kShapes) {
        CAPTURE(s.dims, s.heads, s.block_tokens, s.context, s.rows, s.window);
        Cache cache(s, random);
        const std::vector<float> q = normals(random, static_cast<size_t>(s.rows * s.heads * s.dims));
        const auto width = static_cast<size_t>(s.heads * s.dims);
        for (const int position : {s.context - 1, s.context - s.rows / 2 - 1, std::max(s.context - s.rows - s.window, 0)}) {
            for (const float bad : {std::nanf(""), infinite, -infinite}) {
                for (const KernelTable* k : machine_kernels()) {
                    CAPTURE(k->name, position, bad);
                    const std::vector<float> good = run_attention(*k, cache.job(), q);
                    const Cache spoilt = cache.with_scales(position, bad);
                    const std::vector<float> out = run_attention(*k, spoilt.job(), q);
                    for (int r = 0; r < s.rows; ++r) {
                        const int own = s.context - s.rows + r;
                        const bool sees = own >= position && (s.window == 0 || own - position < s.window);
                        const float* row = &out[static_cast<size_t>(r) * width];
                        if (sees) {
                            CHECK(std::none_of(row, row + width, [](float v) { return std::isfinite(v); }));
                        } else {
                            CHECK(std::memcmp(row, &good[static_cast<size_t>(r) * width], width * sizeof(float)) == 0);
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("int8 attention: the bits do not depend on the size of the blocks") {
    for (const KernelTable* k : machine_kernels()) {
        INFO(k->name);
        std::vector<float> first;
        for (const int block_tokens : {8, 16, 32, 64}) {
            std::mt19937 random(23);
            const Cache cache({96, 3, block_tokens, 203, 6, 0, 0.0F}, random);
            const std::vector<float> out = run_attention(*k, cache.job(), normals(random, 6 * 3 * 96));
            if (first.empty()) first = out;
            CHECK(same_bits(out, first));
        }
    }
}
