// Architectures that the parameterised forward runs, and how files name their tensors. Adding a relative of the llama family
// means a row in architecture.cpp and a test. Knows tensors by name only, no file format.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/status.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/model_tensors.h"

namespace takt {

struct Architecture {
    const char* name;           ///< GGUF's general.architecture
    const char* folder_type;    ///< model_type in a Hugging Face config.json
    RopeStyle gguf_rope;        ///< GGUF permutes the rows of q and k of some for interleaved pairs; folders never do
    bool qkv_bias;
    bool qk_norm;
    bool is_gemma;              ///< post norms, GeGLU, scaled embedding; folders store norms less one
    int32_t window_every;       ///< a window in all but every n-th layer, where the file states a window; 0: the file says where
};

/// What all models of an architecture have in common, whatever file they come from. After num_layers, hidden and heads are known.
void apply_architecture(const Architecture& architecture, ModelConfig& config);

const Architecture* find_architecture(std::string_view name);
const Architecture* find_folder_type(std::string_view model_type);
/// "llama, qwen2, ...", for messages.
std::string known_architectures();
std::string known_folder_types();

/// Every tensor of a file (or of all files of a folder) by name; views into mappings.
using TensorMap = std::map<std::string_view, HostTensor>;

enum class TensorNaming : uint8_t { gguf, folder };

/// All tensors of the architecture, each with the shape that the config demands; nothing missing, nothing unknown. Errors begin
/// with `path` and name the tensor.
Result<ModelTensors> bind_tensors(const TensorMap& tensors, TensorNaming naming, const std::string& path, const ModelConfig& config);

/// Rope scaling as files state it; 0: not stated.
struct RopeScaling {
    double factor = 0;
    double low_frequency_factor = 0;    ///< llama3 only, like the next two
    double high_frequency_factor = 0;
    double original_context = 0;
};
/// Fills config.rope_factors for "linear" (all frequencies divided by the factor) or "llama3" (frequencies whose wave is short
/// beside the original context stay, long ones are divided, with a linear passage between). What is wrong, in words, else empty.
std::optional<std::string> apply_rope_scaling(std::string_view type, const RopeScaling& scaling, ModelConfig& config);

}  // namespace takt
