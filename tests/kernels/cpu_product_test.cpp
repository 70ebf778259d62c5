// Packed weights of the CPU device: block layouts against values that another implementation gave, packing there and back, and
// products against float64, equal to the bit over batch sizes and instruction paths.
#include "catch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu_paths.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/row_block.h"
#include "random_tensor.h"

using namespace takt;
using namespace takt::cpu;
using takt::test::kPackableTypes;
using takt::test::product_kernels;
using takt::test::Random;
using takt::test::RandomTensor;

namespace {

uint64_t no_time(void*) { return 0; }

std::unique_ptr<CpuDevice> make_device(CpuArithmetic arithmetic = CpuArithmetic::int16) {
    CpuDeviceOptions options;
    options.num_threads = 1;
    options.arithmetic = arithmetic;
    options.manual = true;
    return std::make_unique<CpuDevice>(options, TimeSource{no_time, nullptr});
}

std::vector<float> dequantised(const HostTensor& t) {
    std::vector<float> out(static_cast<size_t>(t.rows * t.cols));
    for (int64_t r = 0; r < t.rows; ++r) row_to_float(t, r, out.data() + r * t.cols);
    return out;
}

std::vector<float> random_rows(int64_t rows, int64_t cols, uint64_t seed) {
    Random random(seed);
    std::vector<float> x(static_cast<size_t>(rows * cols));
    for (float& v : x) {
        v = random.value();
        v *= std::exp(2.0f * random.value());
    }
    return x;
}

/// rows x matrix on one path: [rows][matrix rows].
std::vector<float> multiply(const PackedMatrix& m, const float* x, int64_t rows, CpuArithmetic arithmetic, const KernelTable& kernels) {
    RowUse use;
    use.add(m.type, kernels);
    std::vector<uint8_t> memory(RowBlock::bytes(rows, m.cols, use, kernels) + 64);
    auto address = (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64;
    RowBlock block(reinterpret_cast<void*>(address), rows, m.cols, arithmetic, use, kernels);
    for (int64_t r = 0; r < rows; ++r) block.set_row(r, x + r * m.cols, NormParams{});
    std::vector<float> out(static_cast<size_t>(rows * m.rows), std::nanf(""));
    std::vector<float> tile(static_cast<size_t>(rows) * kGroupRows, std::nanf(""));
    std::vector<int16_t> pair_sums(static_cast<size_t>(num_blocks(m.cols)) * kGroupRows);
    for (int64_t g = 0; g < m.num_groups; ++g) {
        PackedGroup group = m.group(g);
        group.pair_sums = nullptr;   // the matrix has those of this machine's path
        if (kernels.pair_sums != nullptr && is_pairable(m.type)) {
            kernels.pair_sums(group, pair_sums.data());
            group.pair_sums = pair_sums.data();
        }
        block.multiply(group, 0, rows, tile.data(), kGroupRows);
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t i = 0; i < kGroupRows && g * kGroupRows + i < m.rows; ++i) {
                out[static_cast<size_t>(r * m.rows + g * kGroupRows + i)] = tile[static_cast<size_t>(r * kGroupRows + i)];
            }
        }
    }
    return out;
}

/// Relative root mean square error against float64 over the dequantised weights.
double error_against_float64(const std::vector<float>& weights, const std::vector<float>& x, const std::vector<float>& y,
                             int64_t rows, int64_t outs, int64_t cols) {
    double difference = 0, size = 0;
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < outs; ++o) {
            double want = 0;
            for (int64_t c = 0; c < cols; ++c) {
                want += double{weights[static_cast<size_t>(o * cols + c)]} * double{x[static_cast<size_t>(r * cols + c)]};
            }
            const double off = want - double{y[static_cast<size_t>(r * outs + o)]};
            difference += off * off;
            size += want * want;
        }
    }
    return std::sqrt(difference / size);
}

const PackedMatrix& first_part(const std::unique_ptr<Linear>& linear) {
    return static_cast<CpuLinear*>(linear.get())->parts()[0];
}

}  // namespace

TEST_CASE("block layouts give the values that the format's own tools give") {
    // FNV-1a over the float32 words of 512 columns that gguf-py dequantised from these bytes.
    const struct { DType type; std::vector<int> scales; uint64_t hash; } cases[] = {
        {DType::q4_0, {0}, 0x42bcf31f45604b25ull},      {DType::q4_1, {0, 2}, 0x4884908bd36ecb25ull},
        {DType::q5_0, {0}, 0x4891f7363f7a4b25ull},      {DType::q5_1, {0, 2}, 0x8b4b7c03800b8b25ull},
        {DType::q8_0, {0}, 0xabc6dfddeaf57b25ull},      {DType::q2_k, {80, 82}, 0xf979ace70c24cb25ull},
        {DType::q3_k, {108}, 0x0b9f2a4a00614b25ull},    {DType::q4_k, {0, 2}, 0xe78df2031f584b25ull},
        {DType::q5_k, {0, 2}, 0x7a93a0ac66f58b25ull},   {DType::q6_k, {208}, 0x9536a5c3a932ab25ull}};
    for (const auto& c : cases) {
        const DTypeInfo info = dtype_info(c.type);
        CAPTURE(info.name);
        std::vector<uint8_t> row(dtype_bytes(c.type, 512));
        for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<uint8_t>(i * 37 + 11 + (i >> 5) * 101);
        for (size_t b = 0; b * info.block_bytes < row.size(); ++b) {
            for (size_t k = 0; k < c.scales.size(); ++k) {
                const uint16_t half = f32_to_f16((k == 0 ? 0.25f : -0.5f) * (1.0f + static_cast<float>(b) / 8.0f));
                std::memcpy(row.data() + b * info.block_bytes + c.scales[k], &half, 2);
            }
        }
        std::vector<float> values(512);
        row_to_float(HostTensor{row.data(), c.type, 1, 512}, 0, values.data());
        uint64_t hash = 0xcbf29ce484222325ull;
        for (const float v : values) {
            uint32_t word = std::bit_cast<uint32_t>(v);
            if (word == 0x80000000u) word = 0;
            hash = (hash ^ word) * 0x100000001b3ull;
        }
        CHECK(hash == c.hash);
    }
}

TEST_CASE("a packed matrix gives back every row to the bit, and both ways of packing agree") {
    const auto device = make_device();
    for (const DType type : kPackableTypes) {
        CAPTURE(dtype_info(type).name);
        const RandomTensor source(type, 75, 512, 7);
        auto made = device->make_linear({&source.tensor, 1}, LinearKind::stacked);
        REQUIRE(made.ok());
        const PackedMatrix& m = first_part(made.value());
        std::vector<float> want(512), got(512);
        std::vector<uint8_t> group(m.group_bytes);
        for (int64_t g = 0; g < m.num_groups; ++g) {
            const int rows = static_cast<int>(std::min<int64_t>(32, 75 - g * 32));
            const StripSource low{&source.tensor, g * 32, std::min(rows, 16)};
            const StripSource high{&source.tensor, g * 32 + 16, std::max(rows - 16, 0)};
            pack_group(low, high, group.data());
            CHECK(std::memcmp(group.data(), m.group(g).data, m.group_bytes) == 0);
        }
        for (int64_t r = 0; r < 75; ++r) {
            row_to_float(source.tensor, r, want.data());
            m.read_row(r, got.data());
            REQUIRE(std::memcmp(want.data(), got.data(), 512 * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("columns that are no whole number of blocks are refused by name") {
    const auto device = make_device();
    const std::vector<uint8_t> bytes(4096);
    const HostTensor tensor{bytes.data(), DType::q4_k, 2, 576};
    const auto made = device->make_linear({&tensor, 1}, LinearKind::stacked);
    REQUIRE(!made.ok());
    CHECK(made.error().find("q4_k") != std::string::npos);
    CHECK(made.error().find("576") != std::string::npos);
}

TEST_CASE("products are near float64, in each arithmetic, for every type") {
    const int64_t rows = 5, outs = 75, cols = 512;
    const auto x = random_rows(rows, cols, 3);
    const auto device = make_device();
    for (const DType type : kPackableTypes) {
        const RandomTensor source(type, outs, cols, 11);
        const auto weights = dequantised(source.tensor);
        auto made = device->make_linear({&source.tensor, 1}, LinearKind::stacked);
        REQUIRE(made.ok());
        for (const KernelTable* path : product_kernels()) {
            CAPTURE(dtype_info(type).name, path->name);
            auto error = [&](CpuArithmetic arithmetic) {
                const auto y = multiply(first_part(made.value()), x.data(), rows, arithmetic, *path);
                return error_against_float64(weights, x, y, rows, outs, cols);
            };
            CHECK(error(CpuArithmetic::float32) < 2e-6);
            CHECK(error(CpuArithmetic::int16) < 1.5e-4);
            CHECK(error(CpuArithmetic::bf16) < 1e-2);
            CHECK(error(CpuArithmetic::int8) < 3e-2);
        }
    }
}

TEST_CASE("a row's product has the same bits at every batch size and on every path") {
    const int64_t outs = 75;
    const auto device = make_device();
    for (const DType type : kPackableTypes) {
        const int64_t cols = is_k_type(type) ? 512 : 576;   // two whole spans, or a part of a third
        const auto x = random_rows(103, cols, 5);
        const RandomTensor source(type, outs, cols, 13);
        auto made = device->make_linear({&source.tensor, 1}, LinearKind::stacked);
        REQUIRE(made.ok());
        for (const CpuArithmetic arithmetic : {CpuArithmetic::int16, CpuArithmetic::int8, CpuArithmetic::float32}) {
            const auto want = multiply(first_part(made.value()), x.data(), 103, arithmetic, portable_kernels());
            for (const KernelTable* path : product_kernels()) {
                CAPTURE(dtype_info(type).name, path->name, static_cast<int>(arithmetic));
                for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 24, 33, 64, 103}) {
                    const int64_t first = 103 - count;
                    const auto got = multiply(first_part(made.value()), x.data() + first * cols, count, arithmetic, *path);
                    REQUIRE(std::memcmp(got.data(), want.data() + first * outs, got.size() * sizeof(float)) == 0);
                }
            }
        }
    }
}

TEST_CASE("a column that is not finite makes its row's products so, wherever it stands") {
    const int64_t cols = 512;
    const auto device = make_device();
    const RandomTensor source(DType::q4_1, 32, cols, 23);
    auto made = device->make_linear({&source.tensor, 1}, LinearKind::stacked);
    REQUIRE(made.ok());
    for (const KernelTable* path : product_kernels()) {
        for (const CpuArithmetic arithmetic : {CpuArithmetic::int16, CpuArithmetic::int8}) {
            for (const float broken : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
                for (const int64_t column : {0, 17, 40, 255, 256, 511}) {
                    CAPTURE(path->name, static_cast<int>(arithmetic), broken, column);
                    auto x = random_rows(1, cols, 29);
                    x[static_cast<size_t>(column)] = broken;
                    const auto y = multiply(first_part(made.value()), x.data(), 1, arithmetic, *path);
                    CHECK(std::none_of(y.begin(), y.end(), [](float v) { return std::isfinite(v); }));
                }
            }
        }
    }
}

TEST_CASE("sums at the ends of the integer range do not overflow") {
    // Rows of the least and of the greatest integer throughout, and of both in turns: by rows the high bytes of columns that are
    // multiplied in pairs are alike or opposite.
    const int64_t cols = 256, rows = 32;   // enough for panels
    std::vector<float> x(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) x[static_cast<size_t>(r * cols + c)] = ((c >> r % 8 ^ r / 8) & 1) == 0 ? -1.0f : 1.0f;
    }
    // And of every second column alone: their mean lets them be as great as one may be.
    for (int64_t r = rows / 2; r < rows; ++r) {
        for (int64_t c = r / 8 % 2; c < cols; c += 2) x[static_cast<size_t>(r * cols + c)] = 0.0f;
    }
    std::fill(x.end() - cols, x.end(), 1.0f);
    std::fill(x.end() - 2 * cols, x.end() - cols, -1.0f);
    const auto device = make_device();
    for (const DType type : kPackableTypes) {
        if (is_plain(type)) continue;
        RandomTensor source(type, 32, cols, 17);
        // All quants and sub-scales at their largest (Q6_K: -32 times -128), under the scales that the source has.
        const DTypeInfo info = dtype_info(type);
        std::vector<uint8_t> kept = source.bytes;
        const uint8_t most = type == DType::q8_0 ? 0x80 : type == DType::q6_k ? 0 : 0xff;
        std::fill(source.bytes.begin(), source.bytes.end(), most);
        for (size_t b = 0; type == DType::q6_k && b < source.bytes.size(); b += info.block_bytes) {
            std::memset(source.bytes.data() + b + 192, 0x80, 16);
        }
        for (size_t b = 0; b < source.bytes.size(); b += info.block_bytes) {
            const size_t at = b + (type == DType::q2_k ? 80 : type == DType::q3_k ? 108 : type == DType::q6_k ? 208 : 0);
            std::memcpy(source.bytes.data() + at, kept.data() + at, 2);
            if (packed_format(type).has_min) std::memcpy(source.bytes.data() + at + 2, kept.data() + at + 2, 2);
        }
        const auto weights = dequantised(source.tensor);
        auto made = device->make_linear({&source.tensor, 1}, LinearKind::stacked);
        REQUIRE(made.ok());
        for (const KernelTable* path : product_kernels()) {
            CAPTURE(dtype_info(type).name, path->name);
            const auto y = multiply(first_part(made.value()), x.data(), rows, CpuArithmetic::int16, *path);
            CHECK(error_against_float64(weights, x, y, rows, 32, cols) < 1e-5);
            CHECK(y == multiply(first_part(made.value()), x.data(), rows, CpuArithmetic::int16, portable_kernels()));
        }
    }
}
