// takt::quantize: quantised copies of model files. Plain data and one function; no engine needed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace takt {

/// What became of one tensor. Types are named as `takt inspect` names them.
struct QuantizedTensorReport {
    std::string name;
    std::string from, to;        ///< the same: copied as it was
    double relative_error = 0;   ///< root mean square of the difference over that of the weights
    double largest_error = 0;    ///< largest difference of a weight
};

struct QuantizeReport {
    int64_t bytes_in = 0, bytes_out = 0;   ///< of all tensors
};

/// Writes a copy of the model `in` to `out` with its matrices in `format`: q8_0, q4_0, q4_1, q4_k or q6_k of a GGUF file (`out` appears
/// only when it is whole); w8, w4g128 or w3g128 of a Hugging Face folder, in GPTQ layout (`out` is a new or empty folder). `on_tensor`
/// is called on the caller's thread, once a tensor, in file order; what it throws ends the work, leaves nothing of `out` and goes on to
/// the caller. Any thread; takes all cores while it runs.
/// @throws config_error for a format that is not available, load_error with the file's name otherwise.
QuantizeReport quantize(const std::string& in, const std::string& out, const std::string& format,
                        const std::function<void(const QuantizedTensorReport&)>& on_tensor = {});

}  // namespace takt
