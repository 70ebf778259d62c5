// Writing of quantised matrices in GPTQ's layout, as safetensors folders hold them: small integers packed along the inputs into 32-bit
// words, with one float16 scale a group of inputs. packed_weights.h reads it and its relatives. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace takt {

struct GptqConfig {
    int32_t bits = 4;          ///< 3, 4 or 8
    int32_t group_size = 128;  ///< inputs that share a scale, a multiple of 32; -1: all. The last group may be shorter
};

/// The packed forms of a matrix.
struct GptqMatrix {
    std::vector<uint32_t> qweight, qzeros;
    std::vector<uint16_t> scales;
    std::vector<int32_t> g_idx;
    int64_t rows = 0, cols = 0, groups = 0;   // of the matrix: out and in
    double relative_error = 0, largest_error = 0;
};

/// Rounds a matrix whose rows are a whole number of 32 inputs; scales by least squares. rows * bits must fill whole words.
GptqMatrix write_gptq(const HostTensor& matrix, const GptqConfig& config);

}  // namespace takt
