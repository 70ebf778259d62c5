// ModelFile: an opened model with its tensors under the names of one architecture, its tokenizer and chat template. Nothing is
// copied: tensors are views into the mapping, which this object owns. All checks happen in open, before memory is taken.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/status.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/gguf.h"
#include "model/mapped_file.h"
#include "model/tokenizer_spec.h"

namespace takt {

/// One layer's tensors. `data` null: the architecture has none.
struct LayerTensors {
    HostTensor attention_norm, q, k, v, q_bias, k_bias, v_bias, q_norm, k_norm, output, mlp_norm, gate, up, down;
};

struct ModelTensors {
    HostTensor embedding;
    HostTensor final_norm;
    HostTensor head;                 // the embedding itself where tied
    std::vector<LayerTensors> layers;
};

class ModelFile {
public:
    static Result<std::unique_ptr<ModelFile>> open(const std::string& path);

    [[nodiscard]] const std::string& path() const { return gguf_.path(); }
    [[nodiscard]] const ModelConfig& config() const { return config_; }
    [[nodiscard]] const ModelTensors& tensors() const { return tensors_; }
    [[nodiscard]] Result<TokenizerSpec> tokenizer_spec() const;
    [[nodiscard]] const std::optional<std::string>& chat_template() const { return chat_template_; }
    [[nodiscard]] const GgufFile& gguf() const { return gguf_; }
    [[nodiscard]] size_t tensor_bytes() const;

private:
    MappedFile mapping_;
    GgufFile gguf_;
    ModelConfig config_;
    ModelTensors tensors_;
    std::optional<std::string> chat_template_;
};

/// The shape of the network from GGUF keys. Errors name the key.
Result<ModelConfig> read_model_config(const GgufFile& file);
/// All tensors of the architecture, each with the shape that the config demands; nothing missing, nothing unknown.
Result<ModelTensors> bind_tensors(const GgufFile& file, const ModelConfig& config);
/// tokenizer.ggml.* keys.
Result<TokenizerSpec> read_tokenizer_spec(const GgufFile& file);

/// A vocabulary of the 256 bytes and an end token, with a plain chat template: for the sim device without a model file.
TokenizerSpec byte_tokenizer_spec();
const char* byte_chat_template();

}  // namespace takt
