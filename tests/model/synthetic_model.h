// SyntheticModel: a small random network of the llama family with every weight known in float64: the source of model files for
// tests (synthetic_gguf.h, synthetic_folder.h) and of a plain float64 forward to judge them by. Test code only; pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "block_values.h"
#include "kernels/dtype.h"
#include "model/tokenizer_vocabulary.h"

namespace takt::test {

struct SyntheticShape {
    std::string architecture = "llama";   ///< llama, mistral, qwen2, qwen3, gemma2, gemma3
    int32_t layers = 2, hidden = 64, heads = 4, kv_heads = 2, head_dim = 16, ffn = 96;
    int32_t vocab = 320;                  ///< rows of the head; the tokenizer has 300, the rest is padding
    int32_t context = 512;
    bool tied = false;
    DType matrices = DType::q4_1;         ///< of the layers' matrices
    DType tables = DType::q8_0;           ///< of embedding and head
    DType vectors = DType::f32;
    double rope_base = 10000;
    double epsilon = 1e-5;
    double llama3_factor = 0;             ///< over 0: llama3 rope scaling with low 1, high 4, original context 64
    int32_t window = 0;                   ///< of the layers that the architecture gives one
    double window_rope_base = 500;        ///< gemma3: of those layers
    double attention_cap = 0, logit_cap = 0;   ///< gemma2
    bool norms_less_one = false;          ///< folders of Gemma store norm weights so
    uint64_t seed = 1;

    [[nodiscard]] bool has_bias() const { return architecture == "qwen2"; }
    [[nodiscard]] bool has_qk_norm() const { return architecture == "qwen3" || architecture == "gemma3"; }
    [[nodiscard]] bool is_gemma() const { return architecture == "gemma2" || architecture == "gemma3"; }
    [[nodiscard]] int32_t window_of(int32_t layer) const {
        if (architecture == "mistral") return window;
        if (architecture == "gemma2") return layer % 2 == 0 ? window : 0;
        return architecture == "gemma3" && layer % 6 != 5 ? window : 0;
    }
};

constexpr int32_t kSyntheticTokens = 300;
constexpr int32_t kSyntheticEnd = 299;
constexpr double kLlama3Low = 1, kLlama3High = 4, kLlama3Context = 64;

struct SyntheticTensor {
    std::string name;   // as in folders; "" beyond the layer prefix never occurs
    DType type = DType::f32;
    int64_t rows = 0, cols = 0;
    bool is_vector = false;
    std::vector<uint8_t> bytes;
    std::vector<double> values;

    [[nodiscard]] const double* row(int64_t r) const { return values.data() + r * cols; }
};

class SyntheticModel {
public:
    explicit SyntheticModel(const SyntheticShape& shape) : shape_(shape), random_(shape.seed) {
        const SyntheticShape& s = shape_;
        const double table = 3 / std::sqrt(s.hidden);
        add("model.embed_tokens.weight", s.tables, s.vocab, s.hidden, table);
        for (int32_t i = 0; i < s.layers; ++i) add_layer("model.layers." + std::to_string(i) + ".");
        add_norm("model.norm.weight", s.hidden);
        if (!s.tied) add("lm_head.weight", s.tables, s.vocab, s.hidden, table);
    }

    [[nodiscard]] const SyntheticShape& shape() const { return shape_; }
    [[nodiscard]] const std::vector<SyntheticTensor>& tensors() const { return tensors_; }
    [[nodiscard]] const SyntheticTensor& tensor(const std::string& name) const { return tensors_.at(by_name_.at(name)); }
    [[nodiscard]] bool has(const std::string& name) const { return by_name_.contains(name); }

    /// Token spellings: the 256 bytes, merged words, filler, and <|end|> as the last one.
    [[nodiscard]] static std::vector<std::string> tokens() {
        std::vector<std::string> all;
        for (int b = 0; b < 256; ++b) all.push_back(to_byte_alphabet(std::string(1, static_cast<char>(b))));
        for (const auto& [left, right] : merges()) all.push_back(left + right);
        while (all.size() + 1 < kSyntheticTokens) all.push_back("filler" + std::to_string(all.size()));
        all.emplace_back("<|end|>");
        return all;
    }
    [[nodiscard]] static std::vector<std::pair<std::string, std::string>> merges() {
        return {{"t", "h"}, {"th", "e"}, {"i", "n"}, {"in", "g"}, {"a", "n"}, {"an", "d"}};
    }

private:
    void add(const std::string& name, DType type, int64_t rows, int64_t cols, double deviation, double mean = 0) {
        SyntheticTensor t;
        t.name = name;
        t.type = type;
        t.rows = rows;
        t.cols = cols;
        t.bytes = random_weights(type, static_cast<size_t>(rows * cols), deviation, random_, mean);
        t.values = weight_values(type, t.bytes);
        by_name_.emplace(name, tensors_.size());
        tensors_.push_back(std::move(t));
    }
    void add_vector(const std::string& name, int64_t cols, double mean, double deviation) {
        add(name, shape_.vectors, 1, cols, deviation, mean);
        tensors_.back().is_vector = true;
    }
    void add_norm(const std::string& name, int64_t cols) { add_vector(name, cols, shape_.norms_less_one ? 0 : 1, 0.2); }
    void add_layer(const std::string& p) {
        const SyntheticShape& s = shape_;
        const int64_t q = int64_t{s.heads} * s.head_dim, kv = int64_t{s.kv_heads} * s.head_dim;
        const double inner = 1 / std::sqrt(s.hidden);
        add_norm(p + "input_layernorm.weight", s.hidden);
        for (const auto& [name, rows] : {std::pair("q", q), std::pair("k", kv), std::pair("v", kv)}) {
            add(p + "self_attn." + name + "_proj.weight", s.matrices, rows, s.hidden, 1.5 * inner);
            if (s.has_bias()) add_vector(p + "self_attn." + name + "_proj.bias", rows, 0, 0.3);
        }
        if (s.has_qk_norm()) {
            add_norm(p + "self_attn.q_norm.weight", s.head_dim);
            add_norm(p + "self_attn.k_norm.weight", s.head_dim);
        }
        add(p + "self_attn.o_proj.weight", s.matrices, s.hidden, q, 0.5 / std::sqrt(q));
        add_norm(p + "post_attention_layernorm.weight", s.hidden);
        if (s.is_gemma()) add_norm(p + "pre_feedforward_layernorm.weight", s.hidden);
        if (s.is_gemma()) add_norm(p + "post_feedforward_layernorm.weight", s.hidden);
        add(p + "mlp.gate_proj.weight", s.matrices, s.ffn, s.hidden, inner);
        add(p + "mlp.up_proj.weight", s.matrices, s.ffn, s.hidden, inner);
        add(p + "mlp.down_proj.weight", s.matrices, s.hidden, s.ffn, 0.7 / std::sqrt(s.ffn));
    }

    SyntheticShape shape_;
    std::mt19937_64 random_;
    std::vector<SyntheticTensor> tensors_;
    std::map<std::string, size_t> by_name_;
};

/// The forward in float64, written for reading: one position after the other over all earlier keys and values.
class ReferenceForward {
public:
    explicit ReferenceForward(const SyntheticModel& model) : model_(model), s_(model.shape()) {}

    /// Logits after the last of `tokens` appended so far, [vocab].
    std::vector<double> append(int32_t token) {
        keys_.resize(static_cast<size_t>(s_.layers));
        values_.resize(static_cast<size_t>(s_.layers));
        const double* embedding = model_.tensor("model.embed_tokens.weight").row(token);
        std::vector<double> h(embedding, embedding + s_.hidden);
        for (double& v : h) v *= s_.is_gemma() ? std::sqrt(s_.hidden) : 1;
        for (int32_t layer = 0; layer < s_.layers; ++layer) run_layer(layer, h);
        ++position_;
        const char* head = s_.tied ? "model.embed_tokens.weight" : "lm_head.weight";
        Vector logits = product(head, normed(h, "model.norm.weight"));
        for (double& v : logits) v = capped(v, s_.logit_cap);
        return logits;
    }

private:
    using Vector = std::vector<double>;

    Vector normed(std::span<const double> x, const std::string& weight) const {
        double squares = 0;
        for (const double v : x) squares += v * v;
        const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + s_.epsilon);
        Vector out;
        const double one = s_.norms_less_one ? 1 : 0;
        for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * (model_.tensor(weight).values[i] + one));
        return out;
    }
    Vector product(const std::string& weight, const Vector& x) const {
        const SyntheticTensor& w = model_.tensor(weight);
        Vector out;
        for (int64_t r = 0; r < w.rows; ++r) {
            double sum = 0;
            for (int64_t c = 0; c < w.cols; ++c) sum += w.row(r)[c] * x[static_cast<size_t>(c)];
            out.push_back(sum);
        }
        return out;
    }
    static double capped(double v, double cap) { return cap > 0 ? cap * std::tanh(v / cap) : v; }
    double frequency(int32_t i, bool has_window) const {
        const bool apart = s_.architecture == "gemma3" && has_window;
        const double f = std::pow(apart ? s_.window_rope_base : s_.rope_base, -2.0 * i / s_.head_dim);
        if (s_.llama3_factor <= 0 || apart) return f;
        const double wave = 2 * std::acos(-1.0) / f;
        if (wave < kLlama3Context / kLlama3High) return f;
        if (wave > kLlama3Context / kLlama3Low) return f / s_.llama3_factor;
        const double smooth = (kLlama3Context / wave - kLlama3Low) / (kLlama3High - kLlama3Low);
        return (1 - smooth) * f / s_.llama3_factor + smooth * f;
    }
    /// Bias, norm of each head and rotation, whatever of these the architecture has.
    Vector project(int32_t layer, const char* part, const Vector& x, bool rotate) const {
        const std::string name = "model.layers." + std::to_string(layer) + ".self_attn." + part;
        Vector out = product(name + "_proj.weight", x);
        if (s_.has_bias()) {
            for (size_t i = 0; i < out.size(); ++i) out[i] += model_.tensor(name + "_proj.bias").values[i];
        }
        const auto dim = static_cast<size_t>(s_.head_dim);
        for (size_t at = 0; rotate && at < out.size(); at += dim) {
            if (s_.has_qk_norm()) {
                const Vector head = normed(std::span(out).subspan(at, dim), name + "_norm.weight");
                std::copy(head.begin(), head.end(), out.begin() + static_cast<std::ptrdiff_t>(at));
            }
            for (size_t i = 0; i < dim / 2; ++i) {
                const double angle = position_ * frequency(static_cast<int32_t>(i), s_.window_of(layer) > 0);
                const double a = out[at + i], b = out[at + i + dim / 2];
                out[at + i] = a * std::cos(angle) - b * std::sin(angle);
                out[at + i + dim / 2] = b * std::cos(angle) + a * std::sin(angle);
            }
        }
        return out;
    }
    Vector attend(int32_t index, const Vector& q) const {
        const auto layer = static_cast<size_t>(index);
        const int32_t window = s_.window_of(index);
        const size_t first = window > 0 && position_ >= window ? static_cast<size_t>(position_ - window + 1) : 0;
        const auto dim = static_cast<size_t>(s_.head_dim);
        const auto group = static_cast<size_t>(s_.heads / s_.kv_heads);
        Vector out(q.size(), 0);
        for (size_t head = 0; head < static_cast<size_t>(s_.heads); ++head) {
            const size_t kv_at = head / group * dim;
            Vector weights;
            double total = 0;
            for (size_t p = first; p < keys_[layer].size(); ++p) {
                double score = 0;
                for (size_t i = 0; i < dim; ++i) score += q[head * dim + i] * keys_[layer][p][kv_at + i];
                weights.push_back(std::exp(capped(score / std::sqrt(s_.head_dim), s_.attention_cap)));
                total += weights.back();
            }
            for (size_t w = 0; w < weights.size(); ++w) {
                const Vector& value = values_[layer][first + w];
                for (size_t i = 0; i < dim; ++i) out[head * dim + i] += weights[w] / total * value[kv_at + i];
            }
        }
        return out;
    }
    void run_layer(int32_t index, Vector& h) {
        const std::string p = "model.layers." + std::to_string(index) + ".";
        const auto layer = static_cast<size_t>(index);
        const Vector x = normed(h, p + "input_layernorm.weight");
        keys_[layer].push_back(project(index, "k", x, true));
        values_[layer].push_back(project(index, "v", x, false));
        Vector branch = product(p + "self_attn.o_proj.weight", attend(index, project(index, "q", x, true)));
        if (s_.is_gemma()) branch = normed(branch, p + "post_attention_layernorm.weight");
        add(h, branch);
        const Vector y = normed(h, p + (s_.is_gemma() ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"));
        Vector gate = product(p + "mlp.gate_proj.weight", y);
        const Vector up = product(p + "mlp.up_proj.weight", y);
        for (size_t i = 0; i < gate.size(); ++i) gate[i] = activated(gate[i]) * up[i];
        branch = product(p + "mlp.down_proj.weight", gate);
        if (s_.is_gemma()) branch = normed(branch, p + "post_feedforward_layernorm.weight");
        add(h, branch);
    }
    double activated(double v) const {
        if (!s_.is_gemma()) return v / (1 + std::exp(-v));
        return 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
    }
    static void add(Vector& h, const Vector& branch) {
        for (size_t i = 0; i < h.size(); ++i) h[i] += branch[i];
    }

    const SyntheticModel& model_;
    SyntheticShape s_;
    int32_t position_ = 0;
    std::vector<std::vector<Vector>> keys_, values_;   // [layer][position][kv_heads * head_dim]
};

/// Natural-log probabilities over the tokenizer's tokens: rows beyond them are padding and take no part.
inline std::vector<double> log_probabilities(const std::vector<double>& logits) {
    const std::vector<double> real(logits.begin(), logits.begin() + kSyntheticTokens);
    const double largest = *std::max_element(real.begin(), real.end());
    double total = 0;
    for (const double v : real) total += std::exp(v - largest);
    std::vector<double> out;
    for (const double v : real) out.push_back(v - largest - std::log(total));
    return out;
}

}  // namespace takt::test
