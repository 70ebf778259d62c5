// DType: element types of tensors, plain and block-quantised, with their sizes. Numbers are takt's own, not a file format's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace takt {

enum class DType : uint8_t {
    f32, f16, bf16, i8, i32, u8, fp8_e4m3,
    q4_0, q4_1, q5_0, q5_1, q8_0,              // blocks of 32
    q2_k, q3_k, q4_k, q5_k, q6_k,              // super-blocks of 256
};

struct DTypeInfo {
    const char* name;
    uint32_t block_elements;   ///< elements a block (1 for plain types)
    uint32_t block_bytes;
};

constexpr DTypeInfo dtype_info(DType t) {
    switch (t) {
        case DType::f32: return {"f32", 1, 4};
        case DType::f16: return {"f16", 1, 2};
        case DType::bf16: return {"bf16", 1, 2};
        case DType::i8: return {"i8", 1, 1};
        case DType::i32: return {"i32", 1, 4};
        case DType::u8: return {"u8", 1, 1};
        case DType::fp8_e4m3: return {"fp8_e4m3", 1, 1};
        case DType::q4_0: return {"q4_0", 32, 18};
        case DType::q4_1: return {"q4_1", 32, 20};
        case DType::q5_0: return {"q5_0", 32, 22};
        case DType::q5_1: return {"q5_1", 32, 24};
        case DType::q8_0: return {"q8_0", 32, 34};
        case DType::q2_k: return {"q2_k", 256, 84};
        case DType::q3_k: return {"q3_k", 256, 110};
        case DType::q4_k: return {"q4_k", 256, 144};
        case DType::q5_k: return {"q5_k", 256, 176};
        case DType::q6_k: return {"q6_k", 256, 210};
    }
    return {"?", 1, 1};
}

/// Bytes of `count` elements of `t` stored row-contiguously; `count` must be a whole number of blocks.
constexpr size_t dtype_bytes(DType t, size_t count) {
    const DTypeInfo info = dtype_info(t);
    return count / info.block_elements * info.block_bytes;
}

}  // namespace takt
