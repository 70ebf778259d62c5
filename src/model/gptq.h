// GPTQ's layout of quantised matrices, as safetensors folders hold them: packed in columns of 32-bit words, with one float16 scale a
// group of inputs. Symmetric ones (zero point in the middle) are exactly Q4_0 or Q8_0 blocks, so reading loses nothing. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/status.h"
#include "kernels/tensor.h"

namespace takt {

struct GptqConfig {
    int32_t bits = 4;          ///< 3, 4 or 8
    int32_t group_size = 128;  ///< inputs that share a scale, a multiple of 32; -1: all. The last group may be shorter
};

/// quantization_config of a config.json; empty where there is none. Other methods, zero points and orders are refused by name.
Result<std::optional<GptqConfig>> parse_gptq_config(std::string_view config_json);

/// The four tensors of one matrix [out][in]. Words are int32.
struct GptqTensors {
    HostTensor qweight;   // [in * bits / 32][out]
    HostTensor qzeros;    // [groups][out * bits / 32]
    HostTensor scales;    // [groups][out] float16
    HostTensor g_idx;     // [in] the group of each input; data null: in order
};

/// A matrix with its own bytes.
struct OwnedTensor {
    std::vector<uint8_t> bytes;
    DType type = DType::q4_0;
    int64_t rows = 0, cols = 0;
    [[nodiscard]] HostTensor view() const { return {bytes.data(), type, rows, cols}; }
};

/// The matrix in blocks: Q4_0 of 3 and 4 bits, Q8_0 of 8.
Result<OwnedTensor> read_gptq(const GptqTensors& tensors, const GptqConfig& config);

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
