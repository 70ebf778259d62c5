// Matrices that safetensors folders hold as small integers with a scale, and perhaps a zero point, a group of inputs: the layouts of
// GPTQ, AWQ and compressed-tensors, read into takt's own types. A weight is (quant - zero point) * scale. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/status.h"
#include "kernels/tensor.h"

namespace takt {

struct PackedFormat {
    enum class Layout : uint8_t { gptq, awq, compressed_tensors };
    Layout layout = Layout::gptq;
    int32_t bits = 4;              ///< GPTQ: 3, 4 or 8; AWQ: 4; compressed-tensors: 4 or 8
    int32_t group_size = 128;      ///< inputs that share a scale, a multiple of 32; -1: all. The last group may be shorter
    bool has_zero_points = true;   ///< false: the middle of the range is zero, and no tensor says so
    int32_t zero_point_bias = 0;   ///< added to stored zero points: 1 for GPTQ's first checkpoint format
};

/// quantization_config of a config.json; empty where there is none. What takt does not know is refused by name.
Result<std::optional<PackedFormat>> parse_packed_format(std::string_view config_json);

/// How a layout names the parts of a matrix after its stem ("model.layers.0.mlp.up_proj"). A matrix is there where `quants` is.
struct PackedNames {
    std::string_view quants, zeros, scales, g_idx;
    std::string_view shape;   ///< says what the others say too; empty: none
};
PackedNames packed_names(const PackedFormat& format);

/// The tensors of one matrix [out][in]; data null where absent.
struct PackedTensors {
    /// int32 words: GPTQ [in * bits / 32][out], AWQ [in][out / 8], compressed-tensors [out][in * bits / 32]; there also int8 [out][in].
    HostTensor quants;
    HostTensor zeros;    ///< int32 words: GPTQ and AWQ [groups][out * bits / 32], compressed-tensors [out * bits / 32][groups]
    HostTensor scales;   ///< GPTQ and AWQ [groups][out], compressed-tensors [out][groups]; float16, bfloat16 or float32
    HostTensor g_idx;    ///< int32 [in], the group of each input; absent: in order
};

/// A matrix with its own bytes.
struct OwnedTensor {
    std::vector<uint8_t> bytes;
    DType type = DType::q4_0;
    int64_t rows = 0, cols = 0;
    [[nodiscard]] HostTensor view() const { return {bytes.data(), type, rows, cols}; }
};

/// The matrix in the smallest type that holds quant - zero point as it is: Q4_0 (3 and 4 bits, zero in the middle) or Q8_0 (8 bits
/// likewise, and fewer bits with any zero point); float16, which rounds, where groups are out of order or 8 bits have zero points
/// elsewhere. Scales are float16 in all of them. Errors name the part and both shapes.
Result<OwnedTensor> unpack_weights(const PackedTensors& tensors, const PackedFormat& format);

}  // namespace takt
