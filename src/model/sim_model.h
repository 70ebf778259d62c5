// SimModel: the network of the sim device: one operation a step, a chained hash in the KV slots instead of keys and values.
#pragma once

#include "kernels/ops.h"
#include "model/forward.h"

namespace takt {

class SimModel final : public Model {
public:
    /// `end_token` -1: never drawn.
    SimModel(Device& device, int32_t vocab, int32_t max_context, int32_t end_token);

    [[nodiscard]] const ModelConfig& config() const override { return config_; }
    [[nodiscard]] KvLayout kv_layout(DType type, int32_t block_tokens, int32_t num_blocks) const override;
    [[nodiscard]] size_t weight_bytes() const override { return 0; }
    [[nodiscard]] size_t workspace_bytes(const StepCapacity&, const KvLayout&) const override { return 0; }
    [[nodiscard]] int32_t max_work(const StepCapacity&, const KvLayout&, int32_t) const override { return 1; }
    [[nodiscard]] ModelCosts costs() const override;
    Status bind(const StepBuffers& buffers) override;
    Status plan(const StepView&, const StepCapacity&) const override { return {}; }
    Status enqueue(Stream& stream, StepShape shape) override;

private:
    Device& device_;
    ModelConfig config_;
    int32_t end_token_;
    StepBuffers buffers_;
};

}  // namespace takt
