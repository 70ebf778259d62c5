// Seeded host tensors of any packable type for kernel tests: every bit pattern of quants and sub-scales, modest block scales.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/convert.h"
#include "kernels/tensor.h"

namespace takt::test {

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint32_t bits() {
        state_ += 0x9e3779b97f4a7c15ull;
        uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return static_cast<uint32_t>((z ^ (z >> 31)) >> 16);
    }
    /// In [-1, 1).
    float value() { return static_cast<float>(static_cast<int32_t>(bits())) * 0x1p-31f; }

private:
    uint64_t state_;
};

/// Owns the bytes that `tensor` views.
struct RandomTensor {
    std::vector<uint8_t> bytes;
    HostTensor tensor;

    RandomTensor(DType type, int64_t rows, int64_t cols, uint64_t seed) {
        tensor = HostTensor{nullptr, type, rows, cols};
        bytes.resize(tensor.bytes());
        tensor.data = bytes.data();
        Random random(seed);
        if (type == DType::f32 || type == DType::f16 || type == DType::bf16) {
            for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i) set_plain(type, i, random.value());
            return;
        }
        for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.bits());
        const DTypeInfo info = dtype_info(type);
        for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
            set_scale(at + scale_offset(type), 0.01f + 0.005f * random.value());
            if (minimum_offset(type) >= 0) set_scale(at + static_cast<size_t>(minimum_offset(type)), 0.01f * random.value());
        }
    }

private:
    void set_plain(DType type, size_t i, float v) {
        const uint16_t half = type == DType::f16 ? cpu::f32_to_f16(v) : cpu::f32_to_bf16(v);
        if (type == DType::f32) std::memcpy(bytes.data() + 4 * i, &v, 4);
        if (type != DType::f32) std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    void set_scale(size_t at, float v) {
        const uint16_t half = cpu::f32_to_f16(v);
        std::memcpy(bytes.data() + at, &half, 2);
    }
    static size_t scale_offset(DType t) {
        return t == DType::q2_k ? 80 : t == DType::q3_k ? 108 : t == DType::q6_k ? 208 : 0;
    }
    static int minimum_offset(DType t) {
        if (t == DType::q2_k) return 82;
        return t == DType::q4_1 || t == DType::q5_1 || t == DType::q4_k || t == DType::q5_k ? 2 : -1;
    }
};

constexpr DType kPackableTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                                    DType::q8_0, DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k};

}  // namespace takt::test
