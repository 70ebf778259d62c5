// ModelFile: an opened model with its tensors under the names of one architecture, its tokenizer and chat template: a GGUF file
// or a Hugging Face folder. Nothing is copied: tensors are views into mappings, which this object owns. All checks happen in
// open, before memory is taken. Immutable after open; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kernels/status.h"
#include "model/architecture.h"
#include "model/config.h"
#include "model/gguf.h"
#include "model/tokenizer_spec.h"

namespace takt {

class ModelFile {
public:
    /// A GGUF file, or a folder with config.json and safetensors. Errors name the file and the thing.
    static Result<std::unique_ptr<ModelFile>> open(const std::string& path);

    ModelFile(const ModelFile&) = delete;
    ModelFile& operator=(const ModelFile&) = delete;
    virtual ~ModelFile() = default;

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] const ModelConfig& config() const { return config_; }
    [[nodiscard]] const ModelTensors& tensors() const { return tensors_; }
    [[nodiscard]] const std::optional<std::string>& chat_template() const { return chat_template_; }
    /// Bytes of all tensors in the file.
    [[nodiscard]] size_t tensor_bytes() const { return tensor_bytes_; }
    /// Read anew at each call: the vocabulary is large and is needed once.
    [[nodiscard]] Result<TokenizerSpec> tokenizer_spec() const;

protected:
    explicit ModelFile(std::string path) : path_(std::move(path)) {}
    [[nodiscard]] virtual Result<TokenizerSpec> read_tokenizer() const = 0;

    std::string path_;
    ModelConfig config_;
    ModelTensors tensors_;
    std::optional<std::string> chat_template_;
    size_t tensor_bytes_ = 0;
};

Result<std::unique_ptr<ModelFile>> open_gguf_model(const std::string& path);
/// See model_folder.h.
Result<std::unique_ptr<ModelFile>> open_model_folder(const std::string& path);

/// All tensors of a GGUF model's files by name.
TensorMap gguf_tensors(std::span<const GgufFile> files);
/// The shape of the network from the first file's keys and the model's tensors. Errors name the key.
Result<ModelConfig> read_model_config(const GgufFile& file, const TensorMap& tensors);
/// The same, and bind_tensors, of a model in one file.
Result<ModelConfig> read_model_config(const GgufFile& file);
Result<ModelTensors> bind_tensors(const GgufFile& file, const ModelConfig& config);
/// tokenizer.ggml.* keys.
Result<TokenizerSpec> read_tokenizer_spec(const GgufFile& file);

/// A vocabulary of the 256 bytes and an end token, with a plain chat template: for the sim device without a model file.
TokenizerSpec byte_tokenizer_spec();
const char* byte_chat_template();

}  // namespace takt
