// HostTensor: a non-owning view of a tensor in host memory (usually a mapped file). No ownership, no device calls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace takt {

/// Row-major; `rows` x `cols`, a vector has rows == 1. `data` is valid as long as its file mapping. Rows are contiguous
/// (quantised types: each row is a whole number of blocks). Weights of a linear layer: rows = out_features, cols = in_features.
struct HostTensor {
    const void* data = nullptr;
    DType type = DType::f32;
    int64_t rows = 0;
    int64_t cols = 0;

    [[nodiscard]] size_t row_bytes() const { return dtype_bytes(type, static_cast<size_t>(cols)); }
    [[nodiscard]] size_t bytes() const { return row_bytes() * static_cast<size_t>(rows); }
    [[nodiscard]] const uint8_t* row(int64_t r) const {
        return static_cast<const uint8_t*>(data) + row_bytes() * static_cast<size_t>(r);
    }
};

}  // namespace takt
