// One parameter struct an operation of the op table. All pointers are device addresses unless said; `rows` is the shape's padded
// row count (buffers hold that many rows), the true counts are in `in.header`. Shapes are in brackets; activation buffers have
// caps().activation_type elements, the residual caps().residual_type, norms and biases are float32.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/kv_layout.h"
#include "kernels/step_input.h"

namespace takt {

enum class Activation : uint8_t { silu, gelu_tanh };
enum class NormStyle : uint8_t { plain, one_plus };   ///< x * w, or x * (1 + w) (Gemma from Hugging Face folders)

struct NormParams {
    const float* weight = nullptr;   // [dim]; null: no norm
    float epsilon = 1e-5f;
    NormStyle style = NormStyle::plain;
};

/// hidden[r] = table[token(r)] * scale; token(r) from the row or, where negative, from slot_tokens[~token].
struct EmbedParams {
    StepView in;
    int32_t rows = 0;
    const Embedding* table = nullptr;
    const int32_t* slot_tokens = nullptr;   // [num_slots]
    float scale = 1.0f;
    void* hidden = nullptr;                 // [rows][hidden] residual type
};

enum class RopeStyle : uint8_t { none, interleaved, half };   ///< pairs (2i, 2i+1), or (i, i + dim/2)

struct RopeParams {
    RopeStyle style = RopeStyle::half;
    const float* inverse_frequencies = nullptr;   // [head_dim / 2], scaling already applied
    float magnitude = 1.0f;
};

/// norm -> q, k, v (+ bias) -> optional per-head norm of q and k -> RoPE -> K and V into the paged cache, q out.
struct AttentionInputParams {
    StepView in;
    int32_t rows = 0;
    const void* hidden = nullptr;        // [rows][hidden] residual
    NormParams norm;
    const Linear* qkv = nullptr;         // [(num_heads + 2 num_kv_heads) * head_dim][hidden]
    const float* bias = nullptr;         // [(num_heads + 2 num_kv_heads) * head_dim] or null
    NormParams q_norm, k_norm;           // over head_dim; weight null: none
    RopeParams rope;
    int32_t num_heads = 0;
    KvLayout kv;
    void* kv_layer = nullptr;            // this layer's cache
    void* q = nullptr;                   // out [rows][num_heads][head_dim] activation
};

/// Paged GQA attention with online softmax. One work list a step, shared by all layers (of one window).
struct AttentionParams {
    StepView in;
    int32_t rows = 0;
    bool decodes = false;                // every segment of the step has one row
    const void* q = nullptr;             // [rows][num_heads][head_dim]
    int32_t num_heads = 0;
    KvLayout kv;
    const void* kv_layer = nullptr;
    float scale = 1.0f;                  // on q.k
    float soft_cap = 0.0f;               // 0: off; scores = cap * tanh(scores / cap)
    int32_t window = 0;                  // 0: all; else positions (p - window, p]
    void* partials = nullptr;            // scratch, `attention_scratch_bytes`
    void* out = nullptr;                 // [rows][num_heads * head_dim] activation
};

/// hidden += post_norm(x W^T + bias): the output projection and the MLP's down projection.
struct LinearResidualParams {
    StepView in;
    int32_t rows = 0;
    const void* x = nullptr;             // [rows][in_features] activation
    const Linear* linear = nullptr;      // [hidden][in_features]
    const float* bias = nullptr;         // [hidden] or null
    NormParams post_norm;                // Gemma: norm of the branch before it is added; weight null: none
    void* hidden = nullptr;              // in and out [rows][hidden] residual
};

/// norm -> gate, up -> activation(gate) * up.
struct MlpInputParams {
    StepView in;
    int32_t rows = 0;
    const void* hidden = nullptr;
    NormParams norm;
    const Linear* gate_up = nullptr;     // gate and up: [2 * ffn][hidden]
    Activation activation = Activation::silu;
    void* out = nullptr;                 // [rows][ffn] activation
};

/// logits of the sampled rows: final norm -> head -> soft-cap. Rows of `in.samples` with row -1 are skipped.
struct LogitsParams {
    StepView in;
    int32_t samples = 0;                 // padded
    const void* hidden = nullptr;        // [rows][hidden]
    NormParams norm;
    const Linear* head = nullptr;        // [vocab][hidden]
    float soft_cap = 0.0f;
    float* logits = nullptr;             // out [samples][vocab_stride] float32
    int64_t vocab_stride = 0;
};

/// Sampling per `in.samples`: contract section 4's order. `greedy_only`: every sample is temperature 0 without penalties, bias or
/// top logprobs, and the operation may be an argmax. Writes slot_tokens and the pinned results of in.header->result_index.
struct SampleParams {
    StepView in;
    int32_t samples = 0;                 // padded
    bool greedy_only = false;
    const float* logits = nullptr;       // [samples][vocab_stride]
    int64_t vocab_stride = 0;
    int32_t vocab = 0;                   // ids >= vocab are padding of the matrix and are never sampled
    int32_t* slot_tokens = nullptr;      // [num_slots]
    uint16_t* output_counts = nullptr;   // [num_slots][vocab] or null (no request may then use penalties)
    uint8_t* prompt_seen = nullptr;      // [num_slots][vocab]
    void* workspace = nullptr;           // `sample_workspace_bytes`
    void* results = nullptr;             // pinned: two blocks of step_result_bytes(max_samples)
    size_t result_stride = 0;            // bytes from one block to the other
};

/// The sim device's whole forward: KV slot p of a row holds hash(slot p - 1 through the block table, token); the sampled token is
/// a function of the last row's hash. Its duration comes from the device's cost function over the header's counts.
struct SimStepParams {
    StepView in;
    int32_t rows = 0;
    int32_t samples = 0;
    KvLayout kv;                         // one layer, one head, 8 bytes a token: K is the hash, V its complement
    void* kv_layer = nullptr;
    int32_t vocab = 0;
    int32_t end_token = -1;              // drawn with a small chance from the hash; -1: never
    int32_t* slot_tokens = nullptr;
    void* results = nullptr;
    size_t result_stride = 0;
};

/// Host-side plan of the attention work list: pure, no device calls.
struct AttentionPlanParams {
    StepView host;                       // pinned copy: header counts, segments and rows are filled
    StepCapacity capacity;
    int32_t num_heads = 0;
    KvLayout kv;
    int32_t window = 0;                  // smallest positive window all layers share, 0: none
    bool deterministic = false;
};

}  // namespace takt
