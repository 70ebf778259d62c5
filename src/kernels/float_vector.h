// float_vector: small vectors of a file (norm weights, biases) as float32, for every device's make_vector. Pure.
#pragma once

#include <optional>
#include <string>

#include "kernels/tensor.h"

namespace takt {

/// Writes tensor.cols float32 values to `out`. F32, F16 and BF16, one row; otherwise the reason why not.
std::optional<std::string> read_float_vector(const HostTensor& tensor, float* out);

}  // namespace takt
