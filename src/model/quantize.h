// Quantised copies of models: of GGUF files with every matrix in another block format, of folders in GPTQ layout; keys and vectors as
// they were. Tensor by tensor: needs memory for one. Pure but for the files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/dtype.h"
#include "kernels/status.h"
#include "model/gptq.h"

namespace takt {

/// What became of one tensor.
struct QuantizedTensor {
    std::string name;
    DType from = DType::f32;
    DType to = DType::f32;       ///< the same as `from`: copied
    double relative_error = 0;   ///< root of the mean squared difference over that of the weights, both as read
    double largest_error = 0;    ///< largest difference of a weight
};

struct QuantizeTotals {
    uint64_t bytes_in = 0, bytes_out = 0;   // of all tensors
};

/// The block type of a format's name (q8_0, q4_0, q4_1, q4_k, q6_k), or an Error that lists them.
Result<DType> quantize_format(const std::string& name);

/// Writes a copy of the GGUF model at `in` (one file, or the first of a split model) to the one file `out`, which appears only when
/// it is whole. Matrices go to `format`; embedding and head to q8_0, or q6_k with q4_k and q6_k; where a row is no whole number of
/// 256-blocks, q4_1 stands in for q4_k and q8_0 for q6_k. `on_tensor` is called once a tensor, on the caller's thread.
Result<QuantizeTotals> quantize_gguf(const std::string& in, const std::string& out, DType format,
                                     const std::function<void(const QuantizedTensor&)>& on_tensor);

/// The GPTQ layout of a format's name: w8 (one scale a row), w4g128, w3g128; empty for another name.
std::optional<GptqConfig> gptq_format(const std::string& name);

/// Writes a copy of the Hugging Face folder `in` to the folder `out`, which must not exist or be empty: the layers' matrices in GPTQ layout
/// in one model.safetensors, everything else as it was. `on_tensor` as above; `to` is q4_0 or q8_0, which the copy is read as.
Result<QuantizeTotals> quantize_folder(const std::string& in, const std::string& out, const GptqConfig& format,
                                       const std::function<void(const QuantizedTensor&)>& on_tensor);

}  // namespace takt
