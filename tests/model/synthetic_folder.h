// A SyntheticModel as a Hugging Face folder: config.json, one or several safetensors files, tokenizer files. Test code only.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "synthetic_model.h"
#include "temporary_folder.h"

namespace takt::test {

namespace json = boost::json;

/// One safetensors file of `header` and `data`.
inline std::vector<uint8_t> safetensors_bytes(const std::string& header, const std::vector<uint8_t>& data) {
    const uint64_t length = header.size();
    std::vector<uint8_t> out(8 + header.size() + data.size());
    std::memcpy(out.data(), &length, 8);
    std::copy(header.begin(), header.end(), out.begin() + 8);
    std::copy(data.begin(), data.end(), out.begin() + 8 + static_cast<std::ptrdiff_t>(header.size()));
    return out;
}

inline std::vector<uint8_t> safetensors_of(std::span<const SyntheticTensor> tensors) {
    json::object header{{"__metadata__", {{"format", "pt"}}}};
    std::vector<uint8_t> data;
    for (const SyntheticTensor& t : tensors) {
        const size_t begin = data.size();
        data.insert(data.end(), t.bytes.begin(), t.bytes.end());
        json::array shape;
        if (!t.is_vector) shape.push_back(t.rows);
        shape.push_back(t.cols);
        const char* type = t.type == DType::f32 ? "F32" : t.type == DType::f16 ? "F16" : "BF16";
        header[t.name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    }
    return safetensors_bytes(json::serialize(header), data);
}

inline json::object folder_config(const SyntheticShape& s) {
    const std::string type = s.architecture == "gemma3" ? "gemma3_text" : s.architecture;
    json::object c{{"model_type", type}, {"hidden_size", s.hidden}, {"num_hidden_layers", s.layers},
                   {"num_attention_heads", s.heads}, {"num_key_value_heads", s.kv_heads}, {"head_dim", s.head_dim},
                   {"intermediate_size", s.ffn}, {"vocab_size", s.vocab}, {"max_position_embeddings", s.context},
                   {"rms_norm_eps", s.epsilon}, {"rope_theta", s.rope_base}, {"tie_word_embeddings", s.tied},
                   {"eos_token_id", kSyntheticEnd}};
    c[s.is_gemma() ? "hidden_activation" : "hidden_act"] = s.is_gemma() ? "gelu_pytorch_tanh" : "silu";
    if (s.window > 0) c["sliding_window"] = s.window;
    if (s.window == 0) c["sliding_window"] = nullptr;
    if (s.architecture == "gemma3") c["rope_local_base_freq"] = s.window_rope_base;
    if (s.is_gemma()) c["query_pre_attn_scalar"] = s.head_dim;   // not the default, which is 256
    if (s.attention_cap > 0) c["attn_logit_softcapping"] = s.attention_cap;
    if (s.logit_cap > 0) c["final_logit_softcapping"] = s.logit_cap;
    if (s.llama3_factor > 0) {
        c["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", s.llama3_factor}, {"low_freq_factor", kLlama3Low},
                             {"high_freq_factor", kLlama3High}, {"original_max_position_embeddings", kLlama3Context}};
    }
    return c;
}

inline json::object folder_tokenizer() {
    json::object vocab;
    const std::vector<std::string> tokens = SyntheticModel::tokens();
    for (size_t id = 0; id + 1 < tokens.size(); ++id) vocab[tokens[id]] = id;
    json::array merges;
    for (const auto& [left, right] : SyntheticModel::merges()) merges.push_back(json::array{json::value(left), json::value(right)});
    const json::object byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    return {{"version", "1.0"},
            {"added_tokens", json::array{json::object{{"id", kSyntheticEnd}, {"content", "<|end|>"}, {"special", true}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer", byte_level},
            {"post_processor", nullptr},
            {"decoder", byte_level},
            {"model", json::object{{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

/// Writes the model into `folder`; over 1 file: with an index.
inline void write_folder(const SyntheticModel& model, const TemporaryFolder& folder, size_t num_files = 1) {
    folder.write("config.json", json::serialize(folder_config(model.shape())));
    folder.write("tokenizer.json", json::serialize(folder_tokenizer()));
    folder.write("tokenizer_config.json", std::string(R"({"eos_token": "<|end|>", "chat_template": "from the config"})"));
    folder.write("generation_config.json", std::string(R"({"eos_token_id": [299, 298]})"));
    const std::span<const SyntheticTensor> all(model.tensors());
    if (num_files == 1) {
        folder.write("model.safetensors", safetensors_of(all));
        return;
    }
    json::object map;
    for (size_t f = 0; f < num_files; ++f) {
        const size_t begin = all.size() * f / num_files, end = all.size() * (f + 1) / num_files;
        const std::string name = "model-" + std::to_string(f) + ".safetensors";
        folder.write(name, safetensors_of(all.subspan(begin, end - begin)));
        for (size_t i = begin; i < end; ++i) map[all[i].name] = name;
    }
    folder.write("model.safetensors.index.json", json::serialize(json::object{{"weight_map", map}}));
}

}  // namespace takt::test
