// config.json, generation_config.json and the weight index of a model folder; see model_folder.h.
#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <optional>

#include "model/architecture.h"
#include "model/model_folder.h"

namespace takt {
namespace {

namespace json = boost::json;

Result<json::object> parse_object(std::string_view text) {
    json::error_code failure;
    json::value root = json::parse(json::string_view(text.data(), text.size()), failure);
    if (failure) return Error{"not valid JSON: " + failure.message()};
    if (!root.is_object()) return Error{"not a JSON object"};
    return std::move(root.as_object());
}

/// Reads keys of one object and remembers the first error. null counts as absent.
class JsonKeys {
public:
    explicit JsonKeys(const json::object& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

    [[nodiscard]] const json::value* find(const char* key) const {
        const json::value* v = object_.if_contains(key);
        return v == nullptr || v->is_null() ? nullptr : v;
    }
    int32_t integer(const char* key, int64_t min, int64_t max, std::optional<int64_t> otherwise = std::nullopt) {
        const json::value* v = find(key);
        if (v == nullptr && otherwise) return static_cast<int32_t>(*otherwise);
        if (v == nullptr) return fail(key, "is missing"), 0;
        if (!v->is_int64() || v->get_int64() < min || v->get_int64() > max) {
            return fail(key, json::serialize(*v) + " found, " + std::to_string(min) + " to " + std::to_string(max) + " expected"), 0;
        }
        return static_cast<int32_t>(v->get_int64());
    }
    double number(const char* key, double otherwise) {
        const json::value* v = find(key);
        if (v == nullptr) return otherwise;
        if (!v->is_number() || !std::isfinite(v->to_number<double>())) return fail(key, "a number expected"), 0.0;
        return v->to_number<double>();
    }
    bool flag(const char* key, bool otherwise) {
        const json::value* v = find(key);
        if (v == nullptr) return otherwise;
        if (!v->is_bool()) return fail(key, "true or false expected"), false;
        return v->get_bool();
    }
    std::string text(const char* key, std::string otherwise = {}) {
        const json::value* v = find(key);
        if (v == nullptr) return otherwise;
        if (!v->is_string()) return fail(key, "a string expected"), std::string();
        return std::string(v->get_string());
    }
    void fail(const char* key, const std::string& message) {
        if (error.empty()) error = "key \"" + prefix_ + key + "\": " + message;
    }
    std::string error;

private:
    const json::object& object_;
    std::string prefix_;
};

/// Older folders: "rope_theta" and "rope_scaling" {type or rope_type, ...}; newer ones: "rope_parameters" with all of it.
void read_rope(JsonKeys& keys, ModelConfig& c) {
    c.rope_base = keys.number("rope_theta", 10000.0);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        const json::value* found = keys.find(name);
        if (found == nullptr) continue;
        if (!found->is_object()) return keys.fail(name, "an object expected");
        JsonKeys rope(found->get_object(), std::string(name) + ".");
        c.rope_base = rope.number("rope_theta", c.rope_base);
        const std::string type = rope.text("rope_type", rope.text("type", "default"));
        RopeScaling s;
        s.factor = rope.number("factor", 0);
        s.low_frequency_factor = rope.number("low_freq_factor", 0);
        s.high_frequency_factor = rope.number("high_freq_factor", 0);
        s.original_context = rope.number("original_max_position_embeddings", 0);
        if (rope.number("partial_rotary_factor", 1) != 1) rope.fail("partial_rotary_factor", "not available in this version");
        if (!rope.error.empty()) {
            keys.error = keys.error.empty() ? rope.error : keys.error;
            return;
        }
        if (!(c.rope_base > 0)) return keys.fail("rope_theta", "a number over 0 expected");
        if (type == "default") continue;
        if (type != "llama3" && type != "linear") {
            return keys.fail(name, "rope scaling \"" + type + "\" is not available in this version (linear and llama3 are)");
        }
        if (auto wrong = apply_rope_scaling(type, s, c)) return keys.fail(name, *wrong);
    }
    if (!(c.rope_base > 0)) keys.fail("rope_theta", "a number over 0 expected");
}

/// Keys that would change the result in a way the forward does not have.
void refuse_unknown(JsonKeys& keys, const Architecture& architecture, const ModelConfig& c) {
    const std::string activation = keys.text("hidden_act", "silu");
    if (activation != "silu") keys.fail("hidden_act", "\"" + activation + "\" is not available in this version (silu is)");
    if (keys.flag("mlp_bias", false)) keys.fail("mlp_bias", "not available in this version");
    // Qwen2 has biases always and does not look at this key.
    if (!architecture.qkv_bias && keys.flag("attention_bias", false)) keys.fail("attention_bias", "not available in this version");
    if (keys.find("quantization_config") != nullptr) keys.fail("quantization_config", "not available in this version");
    if (keys.number("partial_rotary_factor", 1) != 1) keys.fail("partial_rotary_factor", "not available in this version");
    const bool has_window = keys.flag("use_sliding_window", std::string_view(architecture.folder_type) == "mistral");
    const int32_t window = keys.integer("sliding_window", 0, INT32_MAX, 0);
    if (has_window && window > 0 && window < c.max_context) {
        keys.fail("sliding_window", "a window of " + std::to_string(window) + " is not available in this version");
    }
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
    c.architecture = architecture->name;
    c.rope_style = RopeStyle::half;
    c.has_qkv_bias = architecture->qkv_bias;
    c.has_qk_norm = architecture->qk_norm;
    c.num_layers = keys.integer("num_hidden_layers", 1, 1024);
    c.hidden = keys.integer("hidden_size", 32, kMax);
    c.ffn = keys.integer("intermediate_size", 32, kMax);
    c.vocab = keys.integer("vocab_size", 1, kMax);
    c.num_heads = keys.integer("num_attention_heads", 1, 4096);
    c.max_context = keys.integer("max_position_embeddings", 1, kMax);
    if (!keys.error.empty()) return Error{keys.error};
    c.num_kv_heads = keys.integer("num_key_value_heads", 1, 4096, c.num_heads);
    c.head_dim = keys.integer("head_dim", 1, 1024, c.hidden / c.num_heads);
    c.norm_epsilon = static_cast<float>(keys.number("rms_norm_eps", 1e-6));
    c.has_tied_head = keys.flag("tie_word_embeddings", false);
    if (!(c.norm_epsilon > 0)) keys.fail("rms_norm_eps", "a number over 0 expected");
    if (!keys.error.empty()) return Error{keys.error};
    if (c.num_heads % c.num_kv_heads != 0) return Error{"num_attention_heads is no multiple of num_key_value_heads"};
    if (c.head_dim % 2 != 0) return Error{"key \"head_dim\": " + std::to_string(c.head_dim) + " found, an even number expected"};
    read_rope(keys, c);
    refuse_unknown(keys, *architecture, c);
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
