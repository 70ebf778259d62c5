// A model in a GGUF file: its keys as a ModelConfig, its tensors, its chat template. See model_file.h.
#include <cmath>
#include <cstring>

#include "model/architecture.h"
#include "model/gguf_files.h"
#include "model/model_file.h"

namespace takt {
namespace {

/// Reads required and optional keys "ARCH.suffix" and remembers the first error.
class KeyReader {
public:
    KeyReader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}
    int32_t integer(const char* suffix, int64_t min, int64_t max, std::optional<int64_t> otherwise = std::nullopt) {
        const std::string key = prefix_ + suffix;
        const auto found = file_.integer(key, min, max);
        if (!found) return fail(found.error()), 0;
        if (!found.value() && !otherwise) return fail(file_.path() + ": key \"" + key + "\" is missing"), 0;
        return static_cast<int32_t>(found.value() ? *found.value() : *otherwise);
    }
    double number(const char* suffix, double otherwise) {
        const auto found = file_.number(prefix_ + suffix);
        if (!found) return fail(found.error()), 0.0;
        return found.value().value_or(otherwise);
    }
    /// Refuses a number that is there and neither 0 nor `neutral`.
    void refuse_unless(const char* suffix, double neutral) {
        const double found = number(suffix, neutral);
        if (found != 0 && found != neutral) refuse(suffix);
    }
    void refuse_unless_flag(const char* suffix, bool neutral) {
        const auto found = file_.flag(prefix_ + suffix);
        if (!found) return fail(found.error());
        if (found.value().value_or(neutral) != neutral) refuse(suffix);
    }
    void refuse(const char* suffix) { fail(file_.path() + ": key \"" + prefix_ + suffix + "\" is not available in this version"); }
    void fail(std::string message) {
        if (error.empty()) error = std::move(message);
    }
    std::string error;

private:
    const GgufFile& file_;
    std::string prefix_;
};

/// The divisors of the rotary frequencies: a tensor, or what the scaling's keys say. A scaling that takt does not know, or whose
/// numbers are missing, is refused: text would be wrong only far into a context.
std::optional<Error> read_rope_scaling(const GgufFile& file, const TensorMap& tensors, KeyReader& keys, ModelConfig& c) {
    const auto refuse = [&](const std::string& text) { return Error{file.path() + ": " + text}; };
    if (const auto at = tensors.find("rope_freqs.weight"); at != tensors.end()) {
        const HostTensor& factors = at->second;
        if (factors.type != DType::f32 || factors.cols != c.head_dim / 2 || factors.rows != 1) {
            return refuse("tensor \"rope_freqs.weight\": f32 of half a head expected");
        }
        c.rope_factors.resize(static_cast<size_t>(c.head_dim) / 2);
        std::memcpy(c.rope_factors.data(), factors.data, c.rope_factors.size() * sizeof(float));
        for (const float factor : c.rope_factors) {
            if (!(factor > 0) || !std::isfinite(factor)) return refuse("tensor \"rope_freqs.weight\": factors must be over 0");
        }
    }
    const auto found = file.text(c.architecture + ".rope.scaling.type");
    if (!found) return Error{found.error()};
    // A factor whose kind is not told is a linear one, under its old name too.
    const double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0));
    const std::string scaling(found.value().value_or(factor == 0 || factor == 1 ? "none" : "linear"));
    if (scaling == "none" || (scaling == "llama3" && !c.rope_factors.empty())) return std::nullopt;
    if (scaling != "llama3" && scaling != "linear") {
        return refuse("rope scaling \"" + scaling + "\" is not available in this version (linear and llama3 are)");
    }
    RopeScaling s;
    s.factor = factor;
    s.low_frequency_factor = keys.number("rope.scaling.low_freq_factor", 0);
    s.high_frequency_factor = keys.number("rope.scaling.high_freq_factor", 0);
    s.original_context = keys.number("rope.scaling.original_context_length", 0);
    if (!keys.error.empty()) return Error{keys.error};
    if (auto wrong = apply_rope_scaling(scaling, s, c)) return refuse(*wrong);
    return std::nullopt;
}

/// Windows, soft caps and the scale of attention. Converters write no scale: the 27B models alone, known by their depth, take
/// the root of hidden / heads.
void read_gemma(KeyReader& keys, const Architecture& architecture, ModelConfig& c) {
    const bool has_caps = !architecture.qk_norm;   // Gemma 2: older files lack the keys of what all of its models have
    const int32_t window = keys.integer("attention.sliding_window", 1, 1 << 24, has_caps ? 4096 : 0);
    for (int32_t layer = 0; layer < c.num_layers && window > 0; ++layer) {
        c.layer_windows.push_back((layer + 1) % architecture.window_every != 0 ? window : 0);
    }
    if (architecture.qk_norm) c.window_rope_base = keys.number("rope.freq_base_swa", 10000.0);
    c.attention_soft_cap = static_cast<float>(keys.number("attn_logit_softcapping", has_caps ? 50 : 0));
    c.logit_soft_cap = static_cast<float>(keys.number("final_logit_softcapping", has_caps ? 30 : 0));
    const bool is_27b = c.num_layers == 46 || c.num_layers == 62;
    if (is_27b) c.attention_scale = 1 / std::sqrt(static_cast<float>(c.hidden) / static_cast<float>(c.num_heads));
    if (c.attention_soft_cap < 0 || c.logit_soft_cap < 0) keys.fail("a soft cap is under 0");
    if (architecture.qk_norm && !(c.window_rope_base > 0)) keys.fail("rope.freq_base_swa must be over 0");
}

/// Keys that other models of these names or relatives have and that change the result. A window in a "llama" file is Mistral's, in
/// every layer.
void read_other_keys(KeyReader& keys, const Architecture& architecture, ModelConfig& c) {
    for (const char* scale : {"logit_scale", "residual_scale", "embedding_scale", "rope.scaling.attn_factor"}) keys.refuse_unless(scale, 1);
    for (const char* more : {"attention.clamp_kqv", "attention.max_alibi_bias", "expert_count"}) keys.refuse_unless(more, 0);
    keys.refuse_unless_flag("attention.causal", true);
    c.attention_scale = static_cast<float>(keys.number("attention.scale", c.attention_scale));
    if (architecture.is_gemma) return;
    for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) keys.refuse_unless(cap, 0);
    const int32_t window = keys.integer("attention.sliding_window", 0, 1 << 24, 0);
    if (window == 0 || window >= c.max_context) return;
    if (c.architecture != "llama") return keys.fail("a window in \"" + c.architecture + "\" files is not available in this version");
    c.layer_windows.assign(static_cast<size_t>(c.num_layers), window);
}

class GgufModelFile final : public ModelFile {
public:
    explicit GgufModelFile(const std::string& path) : ModelFile(path) {}

    std::optional<Error> read() {
        Result<GgufFiles> files = GgufFiles::open(path_);
        if (!files) return Error{files.error()};
        files_ = std::move(files).value();
        const TensorMap tensors = gguf_tensors(files_.files());
        for (const auto& [name, tensor] : tensors) tensor_bytes_ += tensor.bytes();
        Result<ModelConfig> config = read_model_config(files_.first(), tensors);
        if (!config) return Error{config.error()};
        config_ = std::move(config).value();
        Result<ModelTensors> bound = bind_tensors(tensors, TensorNaming::gguf, path_, config_);
        if (!bound) return Error{bound.error()};
        tensors_ = std::move(bound).value();
        const auto source = files_.first().text("tokenizer.chat_template");
        if (!source) return Error{source.error()};
        if (source.value()) chat_template_ = std::string(*source.value());
        return std::nullopt;
    }

private:
    [[nodiscard]] Result<TokenizerSpec> read_tokenizer() const override { return read_tokenizer_spec(files_.first()); }

    GgufFiles files_;
};

}  // namespace

Result<ModelConfig> read_model_config(const GgufFile& file, const TensorMap& tensors) {
    const auto name = file.text("general.architecture");
    if (!name) return Error{name.error()};
    if (!name.value()) return Error{file.path() + ": key \"general.architecture\" is missing"};
    ModelConfig c;
    c.architecture = std::string(*name.value());
    const Architecture* architecture = find_architecture(c.architecture);
    if (architecture == nullptr) {
        return Error{file.path() + ": architecture \"" + c.architecture + "\" is not available in this version (" +
                     known_architectures() + " are)"};
    }
    c.rope_style = architecture->gguf_rope;
    if (const auto title = file.text("general.name"); title && title.value()) c.name = std::string(*title.value());

    KeyReader keys(file, c.architecture + ".");
    constexpr int64_t kMax = 1 << 24;
    c.num_layers = keys.integer("block_count", 1, 1024);
    c.hidden = keys.integer("embedding_length", 32, kMax);
    c.ffn = keys.integer("feed_forward_length", 32, kMax);
    c.num_heads = keys.integer("attention.head_count", 1, 4096);
    c.num_kv_heads = keys.integer("attention.head_count_kv", 1, 4096, c.num_heads);
    c.max_context = keys.integer("context_length", 1, kMax);
    if (!keys.error.empty()) return Error{keys.error};
    c.head_dim = keys.integer("attention.key_length", 1, 1024, c.hidden / c.num_heads);
    const int32_t value_dim = keys.integer("attention.value_length", 1, 1024, c.head_dim);
    const int32_t rope_dim = keys.integer("rope.dimension_count", 1, 1024, c.head_dim);
    c.norm_epsilon = static_cast<float>(keys.number("attention.layer_norm_rms_epsilon", 1e-5));
    c.rope_base = keys.number("rope.freq_base", 10000.0);
    if (!keys.error.empty()) return Error{keys.error};
    auto refuse = [&](const std::string& text) { return Error{file.path() + ": " + text}; };
    apply_architecture(*architecture, c);
    if (architecture->is_gemma) read_gemma(keys, *architecture, c);
    read_other_keys(keys, *architecture, c);
    if (!keys.error.empty()) return Error{keys.error};
    if (c.num_heads % c.num_kv_heads != 0) return refuse("head_count is no multiple of head_count_kv");
    if (value_dim != c.head_dim || rope_dim != c.head_dim || c.head_dim % 2 != 0) {
        return refuse("key_length, value_length and rope.dimension_count differ: not available in this version");
    }
    if (!(c.rope_base > 0) || !(c.norm_epsilon > 0)) return refuse("rope.freq_base and the norm's epsilon must be over 0");
    const auto embedding = tensors.find("token_embd.weight");
    if (embedding == tensors.end()) return refuse("tensor \"token_embd.weight\" is missing");
    if (embedding->second.rows > kMax) return refuse("tensor \"token_embd.weight\" has too many rows");
    c.vocab = static_cast<int32_t>(embedding->second.rows);
    c.has_tied_head = !tensors.contains("output.weight");
    if (auto error = read_rope_scaling(file, tensors, keys, c)) return *error;
    return c;
}

TensorMap gguf_tensors(std::span<const GgufFile> files) {
    TensorMap tensors;
    for (const GgufFile& file : files) {
        for (const GgufTensor& t : file.tensors()) tensors.emplace(t.name, t.tensor);
    }
    return tensors;
}

Result<ModelConfig> read_model_config(const GgufFile& file) { return read_model_config(file, gguf_tensors({&file, 1})); }

Result<ModelTensors> bind_tensors(const GgufFile& file, const ModelConfig& config) {
    return bind_tensors(gguf_tensors({&file, 1}), TensorNaming::gguf, file.path(), config);
}

Result<std::unique_ptr<ModelFile>> open_gguf_model(const std::string& path) {
    auto file = std::make_unique<GgufModelFile>(path);
    if (auto error = file->read()) return *error;
    return std::unique_ptr<ModelFile>(std::move(file));
}

}  // namespace takt
