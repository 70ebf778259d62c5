// The llama family's step as device operations, five a layer; see llama.h. Loading is in llama_load.cpp.
#include "model/llama.h"

#include <algorithm>
#include <cmath>

namespace takt {
namespace {

// The head's rows are padded so that a row of logits begins on a cache line.
constexpr int64_t kLogitAlign = 64;

/// The window outside which no layer looks, 0 if some layer looks everywhere.
int32_t shared_window(const std::vector<int32_t>& windows) {
    if (windows.empty() || std::find(windows.begin(), windows.end(), 0) != windows.end()) return 0;
    return *std::max_element(windows.begin(), windows.end());
}

int64_t vocab_stride(const ModelConfig& c) { return (c.vocab + kLogitAlign - 1) / kLogitAlign * kLogitAlign; }

}  // namespace

KvLayout LlamaModel::kv_layout(DType type, int32_t block_tokens, int32_t num_blocks) const {
    KvLayout kv;
    kv.type = type;
    kv.num_layers = config_.num_layers;
    kv.num_kv_heads = config_.num_kv_heads;
    kv.head_dim = config_.head_dim;
    kv.block_tokens = block_tokens;
    kv.num_blocks = num_blocks;
    return kv;
}

size_t LlamaModel::weight_bytes() const {
    if (head_ == nullptr) return outline_bytes_;
    size_t total = head_->bytes() + embedding_->bytes() + final_norm_.bytes() + inverse_frequencies_.bytes() + window_frequencies_.bytes();
    for (const Layer& layer : layers_) {
        total += layer.qkv->bytes() + layer.output->bytes() + layer.gate_up->bytes() + layer.down->bytes();
        for (const Buffer* b : {&layer.attention_norm, &layer.mlp_norm, &layer.q_norm, &layer.k_norm, &layer.bias,
                                &layer.attention_post_norm, &layer.mlp_post_norm}) {
            total += b->bytes();
        }
    }
    return total;
}

LlamaModel::Sizes LlamaModel::sizes(const StepCapacity& capacity, const KvLayout& kv) const {
    const auto rows = static_cast<size_t>(capacity.max_rows);
    const auto samples = static_cast<size_t>(capacity.max_samples);
    const DeviceCaps& caps = device_.caps();
    const size_t act = dtype_bytes(caps.activation_type, 1);
    const size_t heads = static_cast<size_t>(config_.num_heads) * static_cast<size_t>(config_.head_dim);
    const OpTable& ops = device_.ops();
    Sizes s{};
    s.hidden = rows * static_cast<size_t>(config_.hidden) * dtype_bytes(caps.residual_type, 1);
    s.q = rows * heads * act;
    s.attention = rows * heads * act;
    s.mlp = rows * static_cast<size_t>(config_.ffn) * act;
    s.logits = samples * static_cast<size_t>(vocab_stride(config_)) * sizeof(float);
    s.partials = ops.attention_scratch_bytes(device_, kv, config_.num_heads, capacity.max_work, capacity.max_rows);
    s.sample = ops.sample_workspace_bytes(device_, capacity.max_samples, config_.vocab);
    return s;
}

size_t LlamaModel::workspace_bytes(const StepCapacity& capacity, const KvLayout& kv) const {
    const Sizes s = sizes(capacity, kv);
    const int64_t heads = int64_t{config_.num_heads} * config_.head_dim, kv_heads = int64_t{config_.num_kv_heads} * config_.head_dim;
    const int64_t widest_in = std::max({int64_t{config_.hidden}, heads, int64_t{config_.ffn}});
    const int64_t widest_out = std::max({int64_t{config_.hidden}, heads + 2 * kv_heads, 2 * int64_t{config_.ffn}});
    return device_.linear_scratch_bytes(widest_in, widest_out) + s.hidden + s.q + s.attention + s.mlp + s.logits + s.partials + s.sample;
}

int32_t LlamaModel::max_work(const StepCapacity& capacity, const KvLayout& kv, int32_t max_context) const {
    return device_.ops().max_attention_work(device_, kv, config_.num_heads, capacity.max_rows, capacity.max_segments, max_context);
}

ModelCosts LlamaModel::costs() const {
    ModelCosts c;
    c.weight_bytes = static_cast<double>(weight_bytes());
    double parameters = 0;
    for (const Layer& layer : layers_) {
        for (const Linear* l : {layer.qkv.get(), layer.output.get(), layer.gate_up.get(), layer.down.get()}) {
            parameters += static_cast<double>(l->in_features()) * static_cast<double>(l->out_features());
        }
    }
    c.operations_per_row = 2 * parameters;
    const double heads = static_cast<double>(config_.num_heads) * config_.head_dim * config_.num_layers;
    c.kv_bytes_per_token = 4.0 * config_.num_kv_heads * config_.head_dim * config_.num_layers;
    c.operations_per_pair = 4.0 * heads;
    return c;
}

Status LlamaModel::bind(const StepBuffers& buffers) {
    buffers_ = buffers;
    StepCapacity capacity;
    capacity.max_rows = buffers.max_rows;
    capacity.max_samples = buffers.max_samples;
    capacity.max_work = buffers.max_work;
    const Sizes s = sizes(capacity, buffers.kv);
    Status status;
    auto take = [&](size_t bytes) -> void* {
        Result<Buffer> buffer = device_.alloc(bytes < 64 ? 64 : bytes, MemoryKind::device);
        if (!buffer) {
            status = {kStatusOutOfMemory, "out of memory for activations"};
            return nullptr;
        }
        workspaces_.push_back(std::move(buffer).value());
        return workspaces_.back().data();
    };
    hidden_ = take(s.hidden);
    q_ = take(s.q);
    attention_ = take(s.attention);
    mlp_ = take(s.mlp);
    logits_ = static_cast<float*>(take(s.logits));
    partials_ = take(s.partials);
    sample_ = take(s.sample);
    return status;
}

Status LlamaModel::plan(const StepView& host, const StepCapacity& capacity) const {
    AttentionPlanParams p;
    p.host = host;
    p.capacity = capacity;
    p.num_heads = config_.num_heads;
    p.kv = buffers_.kv;
    p.window = shared_window(config_.layer_windows);
    return device_.ops().plan_attention(device_, p);
}

int32_t LlamaModel::window_of(int32_t layer) const {
    return config_.layer_windows.empty() ? 0 : config_.layer_windows[static_cast<size_t>(layer)];
}

NormParams LlamaModel::norm(const Buffer& weight) const { return {weight.as<float>(), config_.norm_epsilon, config_.norm_style}; }

Status LlamaModel::enqueue_attention(Stream& stream, const Layer& layer, int32_t index, StepShape shape) {
    AttentionInputParams in;
    in.in = buffers_.in;
    in.rows = shape.rows;
    in.hidden = hidden_;
    in.norm = norm(layer.attention_norm);
    in.qkv = layer.qkv.get();
    in.bias = layer.bias.as<float>();
    in.q_norm = norm(layer.q_norm);
    in.k_norm = norm(layer.k_norm);
    const bool turns_apart = window_of(index) > 0 && window_frequencies_;
    in.rope = {config_.rope_style, (turns_apart ? window_frequencies_ : inverse_frequencies_).as<float>(), 1.0f};
    in.num_heads = config_.num_heads;
    in.kv = buffers_.kv;
    in.kv_layer = buffers_.kv_layers[static_cast<size_t>(index)];
    in.q = q_;
    if (Status s = device_.ops().attention_input(stream, in); !s) return s;

    AttentionParams at;
    at.in = buffers_.in;
    at.rows = shape.rows;
    at.decodes = shape.decodes;
    at.q = q_;
    at.num_heads = config_.num_heads;
    at.kv = buffers_.kv;
    at.kv_layer = in.kv_layer;
    at.scale = config_.attention_scale > 0 ? config_.attention_scale : 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    at.window = window_of(index);
    at.soft_cap = config_.attention_soft_cap;
    at.partials = partials_;
    at.out = attention_;
    return device_.ops().attention(stream, at);
}

Status LlamaModel::enqueue_layer(Stream& stream, int32_t index, StepShape shape) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    const OpTable& ops = device_.ops();
    if (Status s = enqueue_attention(stream, layer, index, shape); !s) return s;
    LinearResidualParams out;
    out.in = buffers_.in;
    out.rows = shape.rows;
    out.x = attention_;
    out.linear = layer.output.get();
    out.post_norm = norm(layer.attention_post_norm);
    out.hidden = hidden_;
    if (Status s = ops.linear_residual(stream, out); !s) return s;

    MlpInputParams mlp;
    mlp.in = buffers_.in;
    mlp.rows = shape.rows;
    mlp.hidden = hidden_;
    mlp.norm = norm(layer.mlp_norm);
    mlp.gate_up = layer.gate_up.get();
    mlp.activation = config_.activation;
    mlp.out = mlp_;
    if (Status s = ops.mlp_input(stream, mlp); !s) return s;
    out.x = mlp_;
    out.linear = layer.down.get();
    out.post_norm = norm(layer.mlp_post_norm);
    return ops.linear_residual(stream, out);
}

Status LlamaModel::enqueue_head(Stream& stream, StepShape shape) {
    LogitsParams head;
    head.in = buffers_.in;
    head.samples = shape.samples;
    head.hidden = hidden_;
    head.norm = norm(final_norm_);
    head.head = head_.get();
    head.soft_cap = config_.logit_soft_cap;
    head.logits = logits_;
    head.vocab_stride = vocab_stride(config_);
    if (Status s = device_.ops().logits(stream, head); !s) return s;

    SampleParams sample;
    sample.in = buffers_.in;
    sample.samples = shape.samples;
    sample.greedy_only = shape.greedy;
    sample.logits = logits_;
    sample.vocab_stride = head.vocab_stride;
    sample.vocab = num_sampled_tokens_;
    sample.slot_tokens = buffers_.slot_tokens;
    sample.output_counts = buffers_.output_counts;
    sample.prompt_seen = buffers_.prompt_seen;
    sample.workspace = sample_;
    sample.results = buffers_.results;
    sample.result_stride = buffers_.result_stride;
    return device_.ops().sample(stream, sample);
}

Status LlamaModel::enqueue(Stream& stream, StepShape shape) {
    EmbedParams embed;
    embed.in = buffers_.in;
    embed.rows = shape.rows;
    embed.table = embedding_.get();
    embed.slot_tokens = buffers_.slot_tokens;
    embed.scale = config_.embedding_scale;
    embed.hidden = hidden_;
    if (Status s = device_.ops().embed(stream, embed); !s) return s;
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
        if (Status s = enqueue_layer(stream, layer, shape); !s) return s;
    }
    return shape.samples > 0 ? enqueue_head(stream, shape) : Status{};
}

}  // namespace takt
