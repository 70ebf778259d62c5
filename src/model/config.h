// ModelConfig: the shape of a network, whatever file it came from. Plain data; one parameterised forward reads it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/params.h"

namespace takt {

struct ModelConfig {
    std::string architecture;
    std::string name;
    int32_t num_layers = 0;
    int32_t hidden = 0;
    int32_t num_heads = 0;
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t ffn = 0;
    int32_t vocab = 0;
    int32_t max_context = 0;

    float norm_epsilon = 1e-5f;
    NormStyle norm_style = NormStyle::plain;
    RopeStyle rope_style = RopeStyle::half;
    double rope_base = 10000.0;
    std::vector<float> rope_factors;   // [head_dim / 2] divisors of the frequencies, or empty
    Activation activation = Activation::silu;
    bool has_qkv_bias = false;
    bool has_qk_norm = false;
    bool has_tied_head = false;
    bool has_post_norms = false;       // Gemma: norms of attention and MLP output before they are added
    float embedding_scale = 1.0f;
    float attention_scale = 0.0f;      // on q.k; 0: 1 / sqrt(head_dim)
    std::vector<int32_t> layer_windows;   // [num_layers] positions a row sees, itself included, 0: all; empty: all in every layer
    double window_rope_base = 0;       // of the layers with a window, without rope_factors; 0: they turn as the others
    float attention_soft_cap = 0.0f;
    float logit_soft_cap = 0.0f;
};

}  // namespace takt
