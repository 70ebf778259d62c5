// A SyntheticModel as a GGUF file: keys, tokenizer and tensors as converters write them. Test code only; pure.
#pragma once

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "model/gguf.h"
#include "synthetic_model.h"

namespace takt::test {

/// Appends GGUF's little-endian values.
class GgufWriter {
public:
    template <class T>
    void raw(T value) {
        const size_t at = bytes.size();
        bytes.resize(at + sizeof(T));
        std::memcpy(bytes.data() + at, &value, sizeof(T));
    }
    void text(const std::string& value) {
        raw<uint64_t>(value.size());
        bytes.insert(bytes.end(), value.begin(), value.end());
    }
    void key(const std::string& name, GgufType type) {
        text(name);
        raw(static_cast<uint32_t>(type));
        ++num_keys;
    }
    void integer(const std::string& name, int64_t value) {
        key(name, GgufType::u32);
        raw(static_cast<uint32_t>(value));
    }
    void number(const std::string& name, double value) {
        key(name, GgufType::f32);
        raw(static_cast<float>(value));
    }
    void string(const std::string& name, const std::string& value) {
        key(name, GgufType::string);
        text(value);
    }
    void strings(const std::string& name, const std::vector<std::string>& values) {
        key(name, GgufType::array);
        raw(static_cast<uint32_t>(GgufType::string));
        raw<uint64_t>(values.size());
        for (const std::string& v : values) text(v);
    }
    void integers(const std::string& name, const std::vector<int32_t>& values) {
        key(name, GgufType::array);
        raw(static_cast<uint32_t>(GgufType::i32));
        raw<uint64_t>(values.size());
        for (const int32_t v : values) raw(v);
    }
    void align(size_t to) { bytes.resize((bytes.size() + to - 1) / to * to); }

    std::vector<uint8_t> bytes;
    uint64_t num_keys = 0;
};

inline uint32_t gguf_type_id(DType type) {
    static constexpr std::pair<DType, uint32_t> kIds[] = {
        {DType::f32, 0},  {DType::f16, 1},   {DType::q4_0, 2},  {DType::q4_1, 3},  {DType::q5_0, 6},  {DType::q5_1, 7},  {DType::q8_0, 8},
        {DType::q2_k, 10}, {DType::q3_k, 11}, {DType::q4_k, 12}, {DType::q5_k, 13}, {DType::q6_k, 14}, {DType::bf16, 30}};
    for (const auto& [known, id] : kIds) {
        if (known == type) return id;
    }
    return 0;
}

/// "model.layers.1.self_attn.q_proj.weight" -> "blk.1.attn_q.weight".
inline std::string gguf_name(std::string name, bool is_gemma) {
    if (is_gemma) {
        const std::string post = "post_attention_layernorm.";
        if (const size_t at = name.find(post); at != std::string::npos) name.replace(at, post.size(), "post_attention_norm.");
    }
    static constexpr std::array<std::pair<const char*, const char*>, 17> kParts = {{
        {"model.embed_tokens.", "token_embd."}, {"model.norm.", "output_norm."}, {"lm_head.", "output."}, {"model.layers.", "blk."},
        {"input_layernorm.", "attn_norm."}, {"post_attention_layernorm.", "ffn_norm."}, {"self_attn.q_proj.", "attn_q."},
        {"self_attn.k_proj.", "attn_k."}, {"self_attn.v_proj.", "attn_v."}, {"self_attn.o_proj.", "attn_output."},
        {"self_attn.q_norm.", "attn_q_norm."}, {"self_attn.k_norm.", "attn_k_norm."}, {"mlp.gate_proj.", "ffn_gate."},
        {"mlp.up_proj.", "ffn_up."}, {"mlp.down_proj.", "ffn_down."}, {"pre_feedforward_layernorm.", "ffn_norm."},
        {"post_feedforward_layernorm.", "post_ffw_norm."},
    }};
    for (const auto& [folder, gguf] : kParts) {
        if (const size_t at = name.find(folder); at != std::string::npos) name.replace(at, std::strlen(folder), gguf);
    }
    return name;
}

/// Rows of q and k of `llama` stand so that interleaved pairs turn as the two halves of a head do elsewhere.
inline std::vector<uint8_t> gguf_bytes(const SyntheticModel& model, const SyntheticTensor& t) {
    const bool is_turned = t.name.ends_with("q_proj.weight") || t.name.ends_with("k_proj.weight");
    if (model.shape().architecture != "llama" || !is_turned) return t.bytes;
    const size_t row_bytes = t.bytes.size() / static_cast<size_t>(t.rows);
    const int64_t dim = model.shape().head_dim;
    std::vector<uint8_t> out;
    for (int64_t r = 0; r < t.rows; ++r) {
        const int64_t in_head = r % dim;
        const int64_t from = r - in_head + in_head % 2 * (dim / 2) + in_head / 2;
        const auto* row = t.bytes.data() + static_cast<size_t>(from) * row_bytes;
        out.insert(out.end(), row, row + row_bytes);
    }
    return out;
}

inline void write_gguf_keys(GgufWriter& w, const SyntheticShape& s) {
    const std::string a = s.architecture + ".";
    w.string("general.architecture", s.architecture);
    w.string("general.name", "synthetic");
    w.integer(a + "block_count", s.layers);
    w.integer(a + "embedding_length", s.hidden);
    w.integer(a + "feed_forward_length", s.ffn);
    w.integer(a + "attention.head_count", s.heads);
    w.integer(a + "attention.head_count_kv", s.kv_heads);
    w.integer(a + "attention.key_length", s.head_dim);
    w.integer(a + "attention.value_length", s.head_dim);
    w.integer(a + "context_length", s.context);
    w.number(a + "attention.layer_norm_rms_epsilon", s.epsilon);
    w.number(a + "rope.freq_base", s.rope_base);
    if (s.window > 0) w.integer(a + "attention.sliding_window", s.window);
    if (s.architecture == "gemma3") w.number(a + "rope.freq_base_swa", s.window_rope_base);
    if (s.attention_cap > 0) w.number(a + "attn_logit_softcapping", s.attention_cap);
    if (s.logit_cap > 0) w.number(a + "final_logit_softcapping", s.logit_cap);
    if (s.llama3_factor > 0) {
        w.string(a + "rope.scaling.type", "llama3");
        w.number(a + "rope.scaling.factor", s.llama3_factor);
        w.number(a + "rope.scaling.low_freq_factor", kLlama3Low);
        w.number(a + "rope.scaling.high_freq_factor", kLlama3High);
        w.integer(a + "rope.scaling.original_context_length", static_cast<int64_t>(kLlama3Context));
    }
    w.string("tokenizer.ggml.model", "gpt2");
    w.string("tokenizer.ggml.pre", "gpt-2");
    w.strings("tokenizer.ggml.tokens", SyntheticModel::tokens());
    std::vector<int32_t> types(kSyntheticTokens, 1);
    types.back() = 3;
    w.integers("tokenizer.ggml.token_type", types);
    std::vector<std::string> merges;
    for (const auto& [left, right] : SyntheticModel::merges()) merges.push_back(left + " " + right);
    w.strings("tokenizer.ggml.merges", merges);
    w.integer("tokenizer.ggml.eos_token_id", kSyntheticEnd);
    w.string("tokenizer.chat_template", "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}");
}

/// A whole file of keys and tensors.
inline std::vector<uint8_t> gguf_file(const SyntheticModel& model, const GgufWriter& keys, std::span<const SyntheticTensor> tensors) {
    GgufWriter out;
    for (const char c : {'G', 'G', 'U', 'F'}) out.raw(c);
    out.raw<uint32_t>(3);
    out.raw<uint64_t>(tensors.size());
    out.raw<uint64_t>(keys.num_keys);
    out.bytes.insert(out.bytes.end(), keys.bytes.begin(), keys.bytes.end());
    uint64_t offset = 0;
    for (const SyntheticTensor& t : tensors) {
        out.text(gguf_name(t.name, model.shape().is_gemma()));
        out.raw<uint32_t>(t.is_vector ? 1 : 2);
        out.raw(static_cast<uint64_t>(t.cols));
        if (!t.is_vector) out.raw(static_cast<uint64_t>(t.rows));
        out.raw(gguf_type_id(t.type));
        out.raw(offset);
        offset += (t.bytes.size() + 31) / 32 * 32;
    }
    for (const SyntheticTensor& t : tensors) {
        out.align(32);
        const std::vector<uint8_t> bytes = gguf_bytes(model, t);
        out.bytes.insert(out.bytes.end(), bytes.begin(), bytes.end());
    }
    return std::move(out.bytes);
}

inline std::vector<uint8_t> synthetic_gguf(const SyntheticModel& model) {
    GgufWriter keys;
    write_gguf_keys(keys, model.shape());
    return gguf_file(model, keys, model.tensors());
}

/// The model split into `count` files; `num_lost` tensors are left out of the last one.
inline std::vector<std::vector<uint8_t>> synthetic_gguf_parts(const SyntheticModel& model, size_t count, size_t num_lost = 0) {
    const std::span<const SyntheticTensor> all(model.tensors());
    std::vector<std::vector<uint8_t>> parts;
    for (size_t i = 0; i < count; ++i) {
        GgufWriter keys;
        if (i == 0) write_gguf_keys(keys, model.shape());
        keys.integer("split.no", static_cast<int64_t>(i));
        keys.integer("split.count", static_cast<int64_t>(count));
        keys.integer("split.tensors.count", static_cast<int64_t>(all.size()));
        const size_t begin = all.size() * i / count;
        const size_t end = all.size() * (i + 1) / count - (i + 1 == count ? num_lost : 0);
        parts.push_back(gguf_file(model, keys, all.subspan(begin, end - begin)));
    }
    return parts;
}

}  // namespace takt::test
