// Conversions of small float tensors; pure, knows no device. See float_vector.h.
#include "kernels/float_vector.h"

#include <bit>
#include <cstring>

namespace takt {

float bfloat_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float half_to_float(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
    // Subnormal: mantissa x 2^-24, exact in float32.
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
}

std::optional<std::string> read_float_vector(const HostTensor& tensor, float* out) {
    if (tensor.rows != 1) {
        return "a vector was expected, found " + std::to_string(tensor.rows) + " rows";
    }
    const auto n = static_cast<size_t>(tensor.cols);
    const auto* bytes = static_cast<const uint8_t*>(tensor.data);
    if (tensor.type == DType::f32) {
        std::memcpy(out, bytes, n * sizeof(float));
        return std::nullopt;
    }
    if (tensor.type != DType::f16 && tensor.type != DType::bf16) {
        return std::string("a vector of type ") + dtype_info(tensor.type).name + " is not supported; f32, f16 and bf16 are";
    }
    for (size_t i = 0; i < n; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
        out[i] = tensor.type == DType::f16 ? half_to_float(bits) : bfloat_to_float(bits);
    }
    return std::nullopt;
}

}  // namespace takt
