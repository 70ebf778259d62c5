// Conversions of small float tensors; pure, knows no device. See float_vector.h.
#include "kernels/float_vector.h"

#include <cstring>

#include "kernels/cpu/convert.h"

namespace takt {

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
        out[i] = tensor.type == DType::f16 ? cpu::f16_to_f32(bits) : cpu::bf16_to_f32(bits);
    }
    return std::nullopt;
}

}  // namespace takt
