// Architectures, their tensor names in GGUF files and in folders, and the check of every tensor's shape; see architecture.h.
#include "model/architecture.h"

#include <cmath>
#include <numbers>
#include <set>

namespace takt {
namespace {

constexpr Architecture kArchitectures[] = {
    {"llama", "llama", RopeStyle::interleaved, false, false, false, 0},
    {"llama", "mistral", RopeStyle::interleaved, false, false, false, 0},
    {"qwen2", "qwen2", RopeStyle::half, true, false, false, 0},
    {"qwen3", "qwen3", RopeStyle::half, false, true, false, 0},
    {"gemma2", "gemma2", RopeStyle::half, false, false, true, 2},
    {"gemma3", "gemma3_text", RopeStyle::half, false, true, true, 6},
};

struct TensorNames {
    const char *embedding, *final_norm, *head, *layers;
    const char *attention_norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm, *output, *mlp_norm, *gate, *up, *down;
    const char *gemma_mlp_norm, *attention_post_norm, *mlp_post_norm;
};

constexpr TensorNames kGgufNames = {
    "token_embd.weight", "output_norm.weight", "output.weight", "blk.",
    "attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias",
    "attn_q_norm.weight", "attn_k_norm.weight", "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight",
    "ffn_down.weight", "ffn_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight",
};

constexpr TensorNames kFolderNames = {
    "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.",
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight",
    "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight", "pre_feedforward_layernorm.weight", "post_attention_layernorm.weight",
    "post_feedforward_layernorm.weight",
};

/// Takes tensors by name and checks their shapes; what was never taken is unknown.
class TensorBinder {
public:
    TensorBinder(const TensorMap& tensors, std::string path) : tensors_(tensors), path_(std::move(path)) {}
    HostTensor take(const std::string& name, int64_t cols, int64_t rows) {
        const auto at = tensors_.find(name);
        if (at == tensors_.end()) {
            fail("tensor \"" + name + "\" is missing");
            return {};
        }
        taken_.insert(at->first);
        const HostTensor& t = at->second;
        if (t.cols != cols || t.rows != rows) {
            fail("tensor \"" + name + "\": " + std::to_string(t.cols) + " x " + std::to_string(t.rows) + " found, " +
                 std::to_string(cols) + " x " + std::to_string(rows) + " expected");
        }
        if (t.type == DType::i32 || t.type == DType::i8) fail("tensor \"" + name + "\": integers found, weights expected");
        return t;
    }
    HostTensor vector(const std::string& name, int64_t cols) {
        HostTensor t = take(name, cols, 1);
        if (t.data != nullptr && t.type != DType::f32 && t.type != DType::f16 && t.type != DType::bf16) {
            fail("tensor \"" + name + "\": type " + dtype_info(t.type).name + " found, f32, f16 or bf16 expected");
        }
        return t;
    }
    void ignore(std::string_view name) { taken_.insert(name); }
    void finish() {
        for (const auto& [name, tensor] : tensors_) {
            // Older folders carry the rotary frequencies, which follow from the config.
            if (!taken_.contains(name) && !name.ends_with(".rotary_emb.inv_freq")) {
                fail("tensor \"" + std::string(name) + "\" is not of this architecture");
            }
        }
    }
    void fail(const std::string& message) {
        if (error.empty()) error = path_ + ": " + message;
    }
    std::string error;

private:
    const TensorMap& tensors_;
    std::string path_;
    std::set<std::string_view> taken_;
};

LayerTensors bind_layer(TensorBinder& b, const TensorNames& names, const ModelConfig& c, int32_t layer) {
    const std::string p = names.layers + std::to_string(layer) + ".";
    const int64_t q = int64_t{c.num_heads} * c.head_dim;
    const int64_t kv = int64_t{c.num_kv_heads} * c.head_dim;
    LayerTensors t;
    t.attention_norm = b.vector(p + names.attention_norm, c.hidden);
    t.q = b.take(p + names.q, c.hidden, q);
    t.k = b.take(p + names.k, c.hidden, kv);
    t.v = b.take(p + names.v, c.hidden, kv);
    if (c.has_qkv_bias) {
        t.q_bias = b.vector(p + names.q_bias, q);
        t.k_bias = b.vector(p + names.k_bias, kv);
        t.v_bias = b.vector(p + names.v_bias, kv);
    }
    if (c.has_qk_norm) {
        t.q_norm = b.vector(p + names.q_norm, c.head_dim);
        t.k_norm = b.vector(p + names.k_norm, c.head_dim);
    }
    t.output = b.take(p + names.output, q, c.hidden);
    t.mlp_norm = b.vector(p + (c.has_post_norms ? names.gemma_mlp_norm : names.mlp_norm), c.hidden);
    if (c.has_post_norms) {
        t.attention_post_norm = b.vector(p + names.attention_post_norm, c.hidden);
        t.mlp_post_norm = b.vector(p + names.mlp_post_norm, c.hidden);
    }
    t.gate = b.take(p + names.gate, c.hidden, c.ffn);
    t.up = b.take(p + names.up, c.hidden, c.ffn);
    t.down = b.take(p + names.down, c.ffn, c.hidden);
    return t;
}

std::string joined(const char* Architecture::*field) {
    std::string all;
    std::string_view last;
    for (const Architecture& a : kArchitectures) {
        if (last == a.*field) continue;
        last = a.*field;
        all += std::string(all.empty() ? "" : ", ") + a.*field;
    }
    return all;
}

}  // namespace

const Architecture* find_architecture(std::string_view name) {
    for (const Architecture& a : kArchitectures) {
        if (name == a.name) return &a;
    }
    return nullptr;
}

const Architecture* find_folder_type(std::string_view model_type) {
    for (const Architecture& a : kArchitectures) {
        if (model_type == a.folder_type) return &a;
    }
    return nullptr;
}

std::string known_architectures() { return joined(&Architecture::name); }
std::string known_folder_types() { return joined(&Architecture::folder_type); }

void apply_architecture(const Architecture& a, ModelConfig& c) {
    c.architecture = a.name;
    c.has_qkv_bias = a.qkv_bias;
    c.has_qk_norm = a.qk_norm;
    c.has_post_norms = a.is_gemma;
    c.activation = a.is_gemma ? Activation::gelu_tanh : Activation::silu;
    if (a.is_gemma) c.embedding_scale = std::sqrt(static_cast<float>(c.hidden));
}

Result<ModelTensors> bind_tensors(const TensorMap& tensors, TensorNaming naming, const std::string& path, const ModelConfig& c) {
    const TensorNames& names = naming == TensorNaming::gguf ? kGgufNames : kFolderNames;
    TensorBinder b(tensors, path);
    ModelTensors t;
    t.embedding = b.take(names.embedding, c.hidden, c.vocab);
    t.final_norm = b.vector(names.final_norm, c.hidden);
    t.head = c.has_tied_head ? t.embedding : b.take(names.head, c.hidden, c.vocab);
    if (naming == TensorNaming::gguf) b.ignore("rope_freqs.weight");
    if (naming == TensorNaming::folder && c.has_tied_head) b.ignore(names.head);   // some save the tied head a second time
    for (int32_t layer = 0; layer < c.num_layers && b.error.empty(); ++layer) t.layers.push_back(bind_layer(b, names, c, layer));
    b.finish();
    if (!b.error.empty()) return Error{b.error};
    return t;
}

std::optional<std::string> apply_rope_scaling(std::string_view type, const RopeScaling& s, ModelConfig& c) {
    const bool is_llama3 = type == "llama3";
    if (!(s.factor >= 1)) return "rope scaling \"" + std::string(type) + "\": a factor of 1 or more expected";
    if (is_llama3 && !(s.low_frequency_factor > 0 && s.high_frequency_factor > s.low_frequency_factor && s.original_context > 0)) {
        return "rope scaling \"llama3\": low_freq_factor over 0, a larger high_freq_factor and the original context expected";
    }
    c.rope_factors.clear();
    for (int32_t i = 0; i < c.head_dim / 2; ++i) {
        double divisor = s.factor;
        const double waves = s.original_context / (2 * std::numbers::pi * std::pow(c.rope_base, 2.0 * i / c.head_dim));
        if (is_llama3 && waves > s.high_frequency_factor) {
            divisor = 1;
        } else if (is_llama3 && waves >= s.low_frequency_factor) {
            const double smooth = (waves - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
            divisor = 1 / ((1 - smooth) / s.factor + smooth);
        }
        c.rope_factors.push_back(static_cast<float>(divisor));
    }
    return std::nullopt;
}

}  // namespace takt
