// config.json, generation_config.json and the weight index of a model folder; see model_folder.h.
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <optional>

#include "model/architecture.h"
#include "model/json_keys.h"
#include "model/model_folder.h"

namespace takt {
namespace {

namespace json = boost::json;

/// What transformers' config class of a model_type takes where config.json lacks a key; 0: nothing, or it follows from other keys.
/// A key that is there and null says that there is none.
struct Defaults {
    std::string_view folder_type;
    int32_t num_kv_heads, head_dim, window, max_window_layers;
    double query_scale, attention_soft_cap, logit_soft_cap;
};

constexpr Defaults kDefaults[] = {
    {"llama", 0, 0, 0, 0, 0, 0, 0},
    {"mistral", 8, 0, 4096, 0, 0, 0, 0},
    {"qwen2", 32, 0, 4096, 28, 0, 0, 0},
    {"qwen3", 32, 128, 4096, 28, 0, 0, 0},
    {"gemma2", 4, 256, 4096, 0, 256, 50, 30},
    {"gemma3_text", 4, 256, 4096, 0, 256, 0, 0},
};

const Defaults& defaults_of(const Architecture& architecture) {
    return *std::find_if(std::begin(kDefaults), std::end(kDefaults),
                         [&](const Defaults& d) { return d.folder_type == architecture.folder_type; });
}

/// One set of rotary parameters: the base, and what "rope_type" makes of it in config.rope_factors.
void read_rope_parameters(JsonKeys& keys, const char* name, const json::value& found, ModelConfig& c, double& base) {
    if (!found.is_object()) return keys.fail(name, "an object expected");
    JsonKeys rope(found.get_object(), std::string(name) + ".");
    base = rope.number("rope_theta", base);
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    RopeScaling s;
    s.factor = rope.number("factor", 0);
    s.low_frequency_factor = rope.number("low_freq_factor", 0);
    s.high_frequency_factor = rope.number("high_freq_factor", 0);
    s.original_context = rope.number("original_max_position_embeddings", 0);
    if (rope.number("partial_rotary_factor", 1) != 1) rope.fail("partial_rotary_factor", "not available in this version");
    if (keys.error.empty()) keys.error = rope.error;
    if (!(base > 0)) keys.fail("rope_theta", "a number over 0 expected");
    if (!keys.error.empty() || type == "default") return;
    if (type != "llama3" && type != "linear") {
        return keys.fail(name, "rope scaling \"" + type + "\" is not available in this version (linear and llama3 are)");
    }
    if (auto wrong = apply_rope_scaling(type, s, c)) keys.fail(name, *wrong);
}

/// Older folders: "rope_theta" and "rope_scaling"; newer ones: "rope_parameters" with all of it, in Gemma once for the layers that
/// see everything and once for those with a window.
void read_rope(JsonKeys& keys, const Architecture& architecture, ModelConfig& c) {
    const bool turns_apart = architecture.is_gemma && architecture.qk_norm;
    c.rope_base = keys.number("rope_theta", turns_apart ? 1e6 : 1e4);
    if (turns_apart) c.window_rope_base = keys.number("rope_local_base_freq", 1e4);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        const json::value* found = keys.find(name);
        if (found == nullptr) continue;
        const json::value* full = found->is_object() ? found->get_object().if_contains("full_attention") : nullptr;
        if (full == nullptr) {
            read_rope_parameters(keys, name, *found, c, c.rope_base);
            continue;
        }
        if (const json::value* sliding = found->get_object().if_contains("sliding_attention")) {
            ModelConfig of_windows = c;
            of_windows.rope_factors.clear();
            read_rope_parameters(keys, name, *sliding, of_windows, c.window_rope_base);
            if (!of_windows.rope_factors.empty()) keys.fail(name, "scaling in layers with a window is not available in this version");
        }
        read_rope_parameters(keys, name, *full, c, c.rope_base);
    }
    if (!(c.rope_base > 0)) keys.fail("rope_theta", "a number over 0 expected");
    if (turns_apart && !(c.window_rope_base > 0)) keys.fail("rope_local_base_freq", "a number over 0 expected");
}

/// Which layers look back only "sliding_window" positions: by "layer_types", or as the architecture has it.
void read_windows(JsonKeys& keys, const Architecture& architecture, ModelConfig& c) {
    const std::string_view type = architecture.folder_type;
    const bool in_use = keys.flag("use_sliding_window", type == "mistral" || architecture.is_gemma);
    if (!in_use) return;
    const Defaults& absent = defaults_of(architecture);
    const int32_t window = keys.integer("sliding_window", 1, INT32_MAX, keys.has("sliding_window") ? 0 : absent.window);
    if (window == 0) return;
    const int32_t every = keys.integer("sliding_window_pattern", 1, 1024, architecture.window_every);
    const int32_t first = type == "qwen2" || type == "qwen3" ? keys.integer("max_window_layers", 0, 1024, absent.max_window_layers) : 0;
    for (int32_t layer = 0; layer < c.num_layers; ++layer) {
        const bool has_window = every > 0 ? (layer + 1) % every != 0 : layer >= first;
        c.layer_windows.push_back(has_window ? window : 0);
    }
    const json::value* types = keys.find("layer_types");
    if (types == nullptr) return;
    if (!types->is_array() || types->get_array().size() != static_cast<size_t>(c.num_layers)) {
        return keys.fail("layer_types", "a list with one entry a layer expected");
    }
    for (size_t i = 0; i < c.layer_windows.size(); ++i) {
        const json::value& layer = types->get_array()[i];
        const bool is_sliding = layer == "sliding_attention";
        if (!is_sliding && layer != "full_attention") {
            return keys.fail("layer_types", json::serialize(layer) + " found, full_attention or sliding_attention expected");
        }
        c.layer_windows[i] = is_sliding ? window : 0;
    }
}

void read_gemma(JsonKeys& keys, const Architecture& architecture, ModelConfig& c) {
    const Defaults& absent = defaults_of(architecture);
    const auto cap = [&](const char* key, double if_absent) { return static_cast<float>(keys.number(key, keys.has(key) ? 0 : if_absent)); };
    c.norm_style = NormStyle::one_plus;
    const double scalar = keys.number("query_pre_attn_scalar", absent.query_scale);
    if (!(scalar > 0)) return keys.fail("query_pre_attn_scalar", "a number over 0 expected");
    c.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
    c.attention_soft_cap = cap("attn_logit_softcapping", absent.attention_soft_cap);
    c.logit_soft_cap = cap("final_logit_softcapping", absent.logit_soft_cap);
    if (c.attention_soft_cap < 0) keys.fail("attn_logit_softcapping", "a number over 0 expected");
    if (c.logit_soft_cap < 0) keys.fail("final_logit_softcapping", "a number over 0 expected");
    if (keys.flag("use_bidirectional_attention", false)) keys.fail("use_bidirectional_attention", "not available in this version");
}

/// Keys that would change the result in a way the forward does not have.
void refuse_unknown(JsonKeys& keys, const Architecture& architecture) {
    const std::string expected = architecture.is_gemma ? "gelu_pytorch_tanh" : "silu";
    // Gemma reads hidden_activation alone: its older configs have another word under hidden_act.
    const char* key = architecture.is_gemma ? "hidden_activation" : "hidden_act";
    const std::string activation = keys.text(key, expected);
    if (activation != expected) keys.fail(key, "\"" + activation + "\" is not available in this version (" + expected + " is)");
    if (keys.flag("mlp_bias", false)) keys.fail("mlp_bias", "not available in this version");
    // Qwen2 has biases always and does not look at this key.
    if (!architecture.qkv_bias && keys.flag("attention_bias", false)) keys.fail("attention_bias", "not available in this version");
    if (keys.number("partial_rotary_factor", 1) != 1) keys.fail("partial_rotary_factor", "not available in this version");
}

}  // namespace

Result<ModelConfig> parse_folder_config(std::string_view text) {
    Result<json::object> root = parse_object(text);
    if (!root) return Error{root.error()};
    JsonKeys keys(root.value());
    const std::string type = keys.text("model_type");
    const Architecture* architecture = find_folder_type(type);
    if (architecture == nullptr) {
        return Error{"model_type \"" + type + "\" is not available in this version (" + known_folder_types() + " are)"};
    }
    constexpr int64_t kMax = 1 << 24;
    ModelConfig c;
    c.rope_style = RopeStyle::half;
    c.num_layers = keys.integer("num_hidden_layers", 1, 1024);
    c.hidden = keys.integer("hidden_size", 32, kMax);
    c.ffn = keys.integer("intermediate_size", 32, kMax);
    c.vocab = keys.integer("vocab_size", 1, kMax);
    c.num_heads = keys.integer("num_attention_heads", 1, 4096);
    c.max_context = keys.integer("max_position_embeddings", 1, kMax);
    if (!keys.error.empty()) return Error{keys.error};
    const Defaults& absent = defaults_of(*architecture);
    const auto unless_absent = [&](const char* key, int32_t value, int32_t if_absent) {
        return keys.integer(key, 1, 4096, keys.has(key) || if_absent == 0 ? value : if_absent);
    };
    c.num_kv_heads = unless_absent("num_key_value_heads", c.num_heads, absent.num_kv_heads);
    c.head_dim = unless_absent("head_dim", c.hidden / c.num_heads, absent.head_dim);
    c.norm_epsilon = static_cast<float>(keys.number("rms_norm_eps", 1e-6));
    c.has_tied_head = keys.flag("tie_word_embeddings", architecture->is_gemma);
    if (!(c.norm_epsilon > 0)) keys.fail("rms_norm_eps", "a number over 0 expected");
    if (!keys.error.empty()) return Error{keys.error};
    if (c.num_heads % c.num_kv_heads != 0) {
        return Error{"num_attention_heads: " + std::to_string(c.num_heads) + " found, a multiple of num_key_value_heads (" +
                     std::to_string(c.num_kv_heads) + ") expected"};
    }
    if (c.head_dim < 2 || c.head_dim % 2 != 0) {
        return Error{"key \"head_dim\": " + std::to_string(c.head_dim) + " found, an even number from 2 expected"};
    }
    apply_architecture(*architecture, c);
    read_rope(keys, *architecture, c);
    read_windows(keys, *architecture, c);
    if (architecture->is_gemma) read_gemma(keys, *architecture, c);
    refuse_unknown(keys, *architecture);
    if (!keys.error.empty()) return Error{keys.error};
    return c;
}

Result<std::vector<int32_t>> parse_end_token_ids(std::string_view text) {
    Result<json::object> root = parse_object(text);
    if (!root) return Error{root.error()};
    std::vector<int32_t> ids;
    const json::value* found = root.value().if_contains("eos_token_id");
    if (found == nullptr || found->is_null()) return ids;
    const auto take = [&](const json::value& v) {
        const bool good = v.is_int64() && v.get_int64() >= 0 && v.get_int64() <= INT32_MAX;
        if (good) ids.push_back(static_cast<int32_t>(v.get_int64()));
        return good;
    };
    const bool good = found->is_array() ? std::all_of(found->get_array().begin(), found->get_array().end(), take) : take(*found);
    if (!good) return Error{"key \"eos_token_id\": " + json::serialize(*found) + " found, token ids expected"};
    return ids;
}

Result<std::map<std::string, std::string>> parse_weight_index(std::string_view text) {
    Result<json::object> root = parse_object(text);
    if (!root) return Error{root.error()};
    const json::value* map = root.value().if_contains("weight_map");
    if (map == nullptr || !map->is_object() || map->get_object().empty()) return Error{"no \"weight_map\""};
    std::map<std::string, std::string> files;
    for (const auto& [name, value] : map->get_object()) {
        const std::string file = value.is_string() ? std::string(value.get_string()) : std::string();
        // A file beside the index, never a path that leads elsewhere.
        if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..") {
            return Error{"tensor \"" + std::string(name) + "\": " + json::serialize(value) + " found, a file name expected"};
        }
        files.emplace(std::string(name), file);
    }
    return files;
}

}  // namespace takt
