// See sim_model.h.
#include "model/sim_model.h"

namespace takt {

SimModel::SimModel(Device& device, int32_t vocab, int32_t max_context, int32_t end_token)
    : device_(device), end_token_(end_token) {
    config_.architecture = "sim";
    config_.name = "sim";
    config_.num_layers = 1;
    config_.vocab = vocab;
    config_.max_context = max_context;
}

KvLayout SimModel::kv_layout(DType, int32_t block_tokens, int32_t num_blocks) const {
    KvLayout kv;
    kv.type = DType::u8;
    kv.num_layers = 1;
    kv.num_kv_heads = 1;
    kv.head_dim = 8;
    kv.block_tokens = block_tokens;
    kv.num_blocks = num_blocks;
    return kv;
}

ModelCosts SimModel::costs() const {
    // A 7B model in bf16, as the built-in profile is.
    ModelCosts c;
    c.weight_bytes = 13.5e9;
    c.operations_per_row = 13.5e9;
    c.kv_bytes_per_token = 131072;
    c.operations_per_pair = 524288;
    return c;
}

Status SimModel::bind(const StepBuffers& buffers) {
    buffers_ = buffers;
    return {};
}

Status SimModel::enqueue(Stream& stream, StepShape shape) {
    SimStepParams p;
    p.in = buffers_.in;
    p.rows = shape.rows;
    p.samples = shape.samples;
    p.kv = buffers_.kv;
    p.kv_layer = buffers_.kv_layers[0];
    p.vocab = config_.vocab;
    p.end_token = end_token_;
    p.slot_tokens = buffers_.slot_tokens;
    p.results = buffers_.results;
    p.result_stride = buffers_.result_stride;
    return device_.ops().sim_step(stream, p);
}

}  // namespace takt
