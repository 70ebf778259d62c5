// LlamaModel: the parameterised forward of the llama family (the rows of architecture.cpp): embedding, layers of attention and gated MLP
// with RMS norms, head, sampling. Engine thread. Owns weights in device layout and activations; see forward.h.
#pragma once

#include <functional>
#include <optional>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/forward.h"
#include "model/model_file.h"

namespace takt {

struct LoadOptions {
    int32_t max_context = 0;   ///< 0: the file's
    int32_t num_tokens = 0;    ///< the tokenizer's: rows of the head beyond it are padding and never sampled; 0: all are tokens
    std::function<void(std::string_view phase, uint64_t done, uint64_t total)> on_progress;
};

class LlamaModel final : public Model {
public:
    /// Puts the weights into device layout. The file may be closed afterwards.
    static Result<std::unique_ptr<Model>> load(Device& device, const ModelFile& file, const LoadOptions& options);
    /// The same model without its weights, for the memory plan: every size is right, nothing may be bound or run.
    static std::unique_ptr<Model> outline(Device& device, const ModelFile& file, const LoadOptions& options);

    [[nodiscard]] const ModelConfig& config() const override { return config_; }
    [[nodiscard]] KvLayout kv_layout(DType type, int32_t block_tokens, int32_t num_blocks) const override;
    [[nodiscard]] size_t weight_bytes() const override;
    [[nodiscard]] size_t workspace_bytes(const StepCapacity& capacity, const KvLayout& kv) const override;
    [[nodiscard]] int32_t max_work(const StepCapacity& capacity, const KvLayout& kv, int32_t max_context) const override;
    [[nodiscard]] ModelCosts costs() const override;
    Status bind(const StepBuffers& buffers) override;
    Status plan(const StepView& host, const StepCapacity& capacity) const override;
    Status enqueue(Stream& stream, StepShape shape) override;

private:
    struct Layer {
        Buffer attention_norm, mlp_norm, q_norm, k_norm, bias, attention_post_norm, mlp_post_norm;
        std::unique_ptr<Linear> qkv, output, gate_up, down;
    };
    struct Sizes {
        size_t hidden, q, attention, mlp, logits, partials, sample;
    };
    LlamaModel(Device& device, const ModelFile& file, const LoadOptions& options);
    Status enqueue_layer(Stream& stream, int32_t index, StepShape shape);
    Status enqueue_attention(Stream& stream, const Layer& layer, int32_t index, StepShape shape);
    Status enqueue_head(Stream& stream, StepShape shape);
    [[nodiscard]] int32_t window_of(int32_t layer) const;
    [[nodiscard]] NormParams norm(const Buffer& weight) const;
    [[nodiscard]] Sizes sizes(const StepCapacity& capacity, const KvLayout& kv) const;
    friend class LlamaLoader;

    Device& device_;
    ModelConfig config_;
    int32_t num_sampled_tokens_ = 0;
    size_t outline_bytes_ = 0;      // of the weights, where they are not loaded
    std::unique_ptr<Linear> head_;
    std::unique_ptr<Embedding> embedding_;   // may share the head's storage: destroyed first
    Buffer final_norm_, inverse_frequencies_, window_frequencies_;   // the last: of layers with a window, empty where all turn alike
    std::vector<Layer> layers_;

    StepBuffers buffers_;
    std::vector<Buffer> workspaces_;
    void* hidden_ = nullptr;
    void* q_ = nullptr;
    void* attention_ = nullptr;
    void* mlp_ = nullptr;
    float* logits_ = nullptr;
    void* partials_ = nullptr;
    void* sample_ = nullptr;
};

}  // namespace takt
