// Weights of the llama family into device layout; see llama.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/float_vector.h"
#include "model/llama.h"

namespace takt {
namespace {

/// Whether the layers with a window have rotary frequencies of their own.
bool turns_apart(const ModelConfig& c) { return !c.layer_windows.empty() && c.window_rope_base > 0; }

}  // namespace

class LlamaLoader {
public:
    LlamaLoader(LlamaModel& model, Device& device, const ModelFile& file, const LoadOptions& options)
        : model_(model), device_(device), file_(file), options_(options) {}

    std::optional<Error> run() {
        const ModelTensors& t = file_.tensors();
        total_ = file_.tensor_bytes();
        const HostTensor head[] = {t.head};
        if (!linear(head, LinearKind::head, model_.head_)) return error_;
        Result<std::unique_ptr<Embedding>> embedding =
            device_.make_embedding(t.embedding, model_.config_.has_tied_head ? model_.head_.get() : nullptr);
        if (!embedding) return Error{file_.path() + ": " + embedding.error()};
        model_.embedding_ = std::move(embedding).value();
        if (!vector(t.final_norm, model_.final_norm_) || !frequencies()) return error_;
        for (const LayerTensors& layer : t.layers) {
            if (!load_layer(layer)) return error_;
        }
        return std::nullopt;
    }

private:
    bool load_layer(const LayerTensors& t) {
        LlamaModel::Layer layer;
        const HostTensor qkv[] = {t.q, t.k, t.v};
        const HostTensor output[] = {t.output};
        const HostTensor gate_up[] = {t.gate, t.up};
        const HostTensor down[] = {t.down};
        const bool ok = vector(t.attention_norm, layer.attention_norm) && linear(qkv, LinearKind::stacked, layer.qkv) &&
                        vector(t.q_norm, layer.q_norm) && vector(t.k_norm, layer.k_norm) && bias(t, layer.bias) &&
                        linear(output, LinearKind::stacked, layer.output) &&
                        vector(t.attention_post_norm, layer.attention_post_norm) && vector(t.mlp_norm, layer.mlp_norm) &&
                        linear(gate_up, LinearKind::gate_up, layer.gate_up) && linear(down, LinearKind::stacked, layer.down) &&
                        vector(t.mlp_post_norm, layer.mlp_post_norm);
        model_.layers_.push_back(std::move(layer));
        return ok;
    }
    bool linear(std::span<const HostTensor> parts, LinearKind kind, std::unique_ptr<Linear>& out) {
        Result<std::unique_ptr<Linear>> made = device_.make_linear(parts, kind);
        if (!made) return fail(made.error());
        out = std::move(made).value();
        for (const HostTensor& part : parts) done_ += part.bytes();
        if (options_.on_progress) options_.on_progress("weights", done_, total_);
        return true;
    }
    bool vector(const HostTensor& tensor, Buffer& out) {
        if (tensor.data == nullptr) return true;
        Result<Buffer> made = device_.make_vector(tensor);
        if (!made) return fail(made.error());
        out = std::move(made).value();
        return true;
    }
    /// q, k and v biases as one float32 vector, whatever the file has them in.
    bool bias(const LayerTensors& t, Buffer& out) {
        if (t.q_bias.data == nullptr) return true;
        std::vector<float> joined;
        for (const HostTensor* part : {&t.q_bias, &t.k_bias, &t.v_bias}) {
            const size_t at = joined.size();
            joined.resize(at + static_cast<size_t>(part->cols));
            if (const auto reason = read_float_vector(*part, joined.data() + at)) return fail(*reason);
        }
        return vector(HostTensor{joined.data(), DType::f32, 1, static_cast<int64_t>(joined.size())}, out);
    }
    bool frequencies() {
        const ModelConfig& c = model_.config_;
        return frequencies(c.rope_base, c.rope_factors, model_.inverse_frequencies_) &&
               (!turns_apart(c) || frequencies(c.window_rope_base, {}, model_.window_frequencies_));
    }
    bool frequencies(double base, const std::vector<float>& factors, Buffer& out) {
        const int32_t dim = model_.config_.head_dim;
        std::vector<float> inverse;
        for (int32_t i = 0; i < dim / 2; ++i) {
            double f = std::pow(base, -2.0 * i / dim);
            if (!factors.empty()) f /= static_cast<double>(factors[static_cast<size_t>(i)]);
            inverse.push_back(static_cast<float>(f));
        }
        return vector(HostTensor{inverse.data(), DType::f32, 1, static_cast<int64_t>(inverse.size())}, out);
    }
    bool fail(const std::string& message) {
        error_ = Error{file_.path() + ": " + message};
        return false;
    }

    LlamaModel& model_;
    Device& device_;
    const ModelFile& file_;
    const LoadOptions& options_;
    Error error_;
    uint64_t done_ = 0, total_ = 0;
};

namespace {

/// Device bytes of the weights, part by part as LlamaLoader makes them.
size_t planned_bytes(const Device& device, const ModelFile& file) {
    const ModelTensors& t = file.tensors();
    const auto vectors = [](std::initializer_list<HostTensor> all) {
        size_t elements = 0;
        for (const HostTensor& v : all) elements += v.data != nullptr ? static_cast<size_t>(v.cols) : 0;
        return elements * sizeof(float);
    };
    size_t total = device.linear_bytes({&t.head, 1}, LinearKind::head);
    total += device.embedding_bytes(t.embedding, file.config().has_tied_head);
    const size_t frequencies = static_cast<size_t>(file.config().head_dim) / 2 * sizeof(float);
    total += vectors({t.final_norm}) + (turns_apart(file.config()) ? 2 : 1) * frequencies;
    for (const LayerTensors& l : t.layers) {
        const HostTensor qkv[] = {l.q, l.k, l.v};
        const HostTensor gate_up[] = {l.gate, l.up};
        total += device.linear_bytes(qkv, LinearKind::stacked) + device.linear_bytes({&l.output, 1}, LinearKind::stacked);
        total += device.linear_bytes(gate_up, LinearKind::gate_up) + device.linear_bytes({&l.down, 1}, LinearKind::stacked);
        total += vectors({l.attention_norm, l.mlp_norm, l.q_norm, l.k_norm, l.q_bias, l.k_bias, l.v_bias,
                          l.attention_post_norm, l.mlp_post_norm});
    }
    return total;
}

}  // namespace

LlamaModel::LlamaModel(Device& device, const ModelFile& file, const LoadOptions& options) : device_(device), config_(file.config()) {
    if (options.max_context > 0) config_.max_context = options.max_context;
    num_sampled_tokens_ = options.num_tokens > 0 ? std::min(options.num_tokens, config_.vocab) : config_.vocab;
}

std::unique_ptr<Model> LlamaModel::outline(Device& device, const ModelFile& file, const LoadOptions& options) {
    std::unique_ptr<LlamaModel> model(new LlamaModel(device, file, options));
    model->outline_bytes_ = planned_bytes(device, file);
    return model;
}

Result<std::unique_ptr<Model>> LlamaModel::load(Device& device, const ModelFile& file, const LoadOptions& options) {
    std::unique_ptr<LlamaModel> model(new LlamaModel(device, file, options));
    if (auto error = LlamaLoader(*model, device, file, options).run()) return *error;
    return std::unique_ptr<Model>(std::move(model));
}

}  // namespace takt
