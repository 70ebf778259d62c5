// Architectures, their keys and tensor names in GGUF; see model_file.h.
#include "model/model_file.h"

#include <set>

namespace takt {
namespace {

struct Architecture {
    const char* name;
    RopeStyle rope;
    bool qkv_bias;
    bool qk_norm;
};

// Adding a relative of the llama family means a row here and a test.
constexpr Architecture kArchitectures[] = {
    {"llama", RopeStyle::interleaved, false, false},   // GGUF permutes the rows of q and k for interleaved pairs
    {"qwen2", RopeStyle::half, true, false},
    {"qwen3", RopeStyle::half, false, true},
};

const Architecture* find_architecture(const std::string& name) {
    for (const Architecture& a : kArchitectures) {
        if (name == a.name) return &a;
    }
    return nullptr;
}

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
    void fail(std::string message) {
        if (error.empty()) error = std::move(message);
    }
    std::string error;

private:
    const GgufFile& file_;
    std::string prefix_;
};

/// Takes tensors by name and checks their shapes; what was never taken is unknown.
class TensorBinder {
public:
    explicit TensorBinder(const GgufFile& file) : file_(file) {}
    HostTensor take(const std::string& name, int64_t cols, int64_t rows) {
        const GgufTensor* t = file_.find_tensor(name);
        if (t == nullptr) {
            fail("tensor \"" + name + "\" is missing");
            return {};
        }
        taken_.insert(t->name);
        if (t->tensor.cols != cols || t->tensor.rows != rows) {
            fail("tensor \"" + name + "\": " + std::to_string(t->tensor.cols) + " x " + std::to_string(t->tensor.rows) + " found, " +
                 std::to_string(cols) + " x " + std::to_string(rows) + " expected");
        }
        return t->tensor;
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
        for (const GgufTensor& t : file_.tensors()) {
            if (!taken_.contains(t.name)) fail("tensor \"" + std::string(t.name) + "\" is not of this architecture");
        }
    }
    void fail(const std::string& message) {
        if (error.empty()) error = file_.path() + ": " + message;
    }
    std::string error;

private:
    const GgufFile& file_;
    std::set<std::string_view> taken_;
};

LayerTensors bind_layer(TensorBinder& b, const ModelConfig& c, int32_t layer) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    const int64_t q = int64_t{c.num_heads} * c.head_dim;
    const int64_t kv = int64_t{c.num_kv_heads} * c.head_dim;
    LayerTensors t;
    t.attention_norm = b.vector(p + "attn_norm.weight", c.hidden);
    t.q = b.take(p + "attn_q.weight", c.hidden, q);
    t.k = b.take(p + "attn_k.weight", c.hidden, kv);
    t.v = b.take(p + "attn_v.weight", c.hidden, kv);
    if (c.has_qkv_bias) {
        t.q_bias = b.vector(p + "attn_q.bias", q);
        t.k_bias = b.vector(p + "attn_k.bias", kv);
        t.v_bias = b.vector(p + "attn_v.bias", kv);
    }
    if (c.has_qk_norm) {
        t.q_norm = b.vector(p + "attn_q_norm.weight", c.head_dim);
        t.k_norm = b.vector(p + "attn_k_norm.weight", c.head_dim);
    }
    t.output = b.take(p + "attn_output.weight", q, c.hidden);
    t.mlp_norm = b.vector(p + "ffn_norm.weight", c.hidden);
    t.gate = b.take(p + "ffn_gate.weight", c.hidden, c.ffn);
    t.up = b.take(p + "ffn_up.weight", c.hidden, c.ffn);
    t.down = b.take(p + "ffn_down.weight", c.ffn, c.hidden);
    return t;
}

}  // namespace

Result<ModelConfig> read_model_config(const GgufFile& file) {
    const auto name = file.text("general.architecture");
    if (!name) return Error{name.error()};
    if (!name.value()) return Error{file.path() + ": key \"general.architecture\" is missing"};
    ModelConfig c;
    c.architecture = std::string(*name.value());
    const Architecture* architecture = find_architecture(c.architecture);
    if (architecture == nullptr) {
        std::string known;
        for (const Architecture& a : kArchitectures) known += std::string(known.empty() ? "" : ", ") + a.name;
        return Error{file.path() + ": architecture \"" + c.architecture + "\" is not available in this version (" + known + " are)"};
    }
    c.rope_style = architecture->rope;
    c.has_qkv_bias = architecture->qkv_bias;
    c.has_qk_norm = architecture->qk_norm;
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
    if (c.num_heads % c.num_kv_heads != 0) return refuse("head_count is no multiple of head_count_kv");
    if (value_dim != c.head_dim || rope_dim != c.head_dim || c.head_dim % 2 != 0) {
        return refuse("key_length, value_length and rope.dimension_count differ: not available in this version");
    }
    if (!(c.rope_base > 0) || !(c.norm_epsilon > 0)) return refuse("rope.freq_base and the norm's epsilon must be over 0");
    const auto scaling = file.text(c.architecture + ".rope.scaling.type");
    if (!scaling) return Error{scaling.error()};
    if (scaling.value() && *scaling.value() != "none" && *scaling.value() != "llama3") {
        return refuse("rope scaling \"" + std::string(*scaling.value()) + "\" is not available in this version");
    }
    const GgufTensor* embedding = file.find_tensor("token_embd.weight");
    if (embedding == nullptr) return refuse("tensor \"token_embd.weight\" is missing");
    if (embedding->tensor.rows > kMax) return refuse("tensor \"token_embd.weight\" has too many rows");
    c.vocab = static_cast<int32_t>(embedding->tensor.rows);
    c.has_tied_head = file.find_tensor("output.weight") == nullptr;
    if (const GgufTensor* factors = file.find_tensor("rope_freqs.weight")) {
        if (factors->tensor.type != DType::f32 || factors->tensor.cols != c.head_dim / 2 || factors->tensor.rows != 1) {
            return refuse("tensor \"rope_freqs.weight\": f32 of half a head expected");
        }
        const auto* p = static_cast<const float*>(factors->tensor.data);
        c.rope_factors.assign(p, p + c.head_dim / 2);
    }
    return c;
}

Result<ModelTensors> bind_tensors(const GgufFile& file, const ModelConfig& c) {
    TensorBinder b(file);
    ModelTensors t;
    t.embedding = b.take("token_embd.weight", c.hidden, c.vocab);
    t.final_norm = b.vector("output_norm.weight", c.hidden);
    t.head = c.has_tied_head ? t.embedding : b.take("output.weight", c.hidden, c.vocab);
    b.ignore("rope_freqs.weight");
    for (int32_t layer = 0; layer < c.num_layers && b.error.empty(); ++layer) t.layers.push_back(bind_layer(b, c, layer));
    b.finish();
    if (!b.error.empty()) return Error{b.error};
    return t;
}

Result<std::unique_ptr<ModelFile>> ModelFile::open(const std::string& path) {
    auto file = std::make_unique<ModelFile>();
    Result<MappedFile> mapping = MappedFile::open(path);
    if (!mapping) return Error{mapping.error()};
    file->mapping_ = std::move(mapping).value();
    Result<GgufFile> gguf = GgufFile::parse(file->mapping_.bytes(), path);
    if (!gguf) return Error{gguf.error()};
    file->gguf_ = std::move(gguf).value();
    Result<ModelConfig> config = read_model_config(file->gguf_);
    if (!config) return Error{config.error()};
    file->config_ = std::move(config).value();
    Result<ModelTensors> tensors = bind_tensors(file->gguf_, file->config_);
    if (!tensors) return Error{tensors.error()};
    file->tensors_ = std::move(tensors).value();
    const auto source = file->gguf_.text("tokenizer.chat_template");
    if (!source) return Error{source.error()};
    if (source.value()) file->chat_template_ = std::string(*source.value());
    return file;
}

Result<TokenizerSpec> ModelFile::tokenizer_spec() const {
    Result<TokenizerSpec> spec = read_tokenizer_spec(gguf_);
    if (spec && static_cast<int32_t>(spec.value().tokens.size()) > config_.vocab) {
        return Error{path() + ": " + std::to_string(spec.value().tokens.size()) + " tokens, but the embedding has " +
                     std::to_string(config_.vocab) + " rows"};
    }
    return spec;
}

size_t ModelFile::tensor_bytes() const {
    size_t total = 0;
    for (const GgufTensor& t : gguf_.tensors()) total += t.tensor.bytes();
    return total;
}

}  // namespace takt
