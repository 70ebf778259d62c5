// takt::inspect: what a model file holds, from its index alone.
#include <cstdio>
#include <filesystem>

#include <takt/engine.h>

#include "model/gguf_files.h"
#include "model/model_file.h"
#include "model/model_folder.h"

namespace takt {
namespace {

constexpr size_t kMaxValueText = 120;

std::string value_text(const GgufValue& value) {
    std::string text;
    if (const auto* u = std::get_if<uint64_t>(&value)) text = std::to_string(*u);
    if (const auto* i = std::get_if<int64_t>(&value)) text = std::to_string(*i);
    if (const auto* b = std::get_if<bool>(&value)) text = *b ? "true" : "false";
    if (const auto* s = std::get_if<std::string_view>(&value)) text = std::string(*s);
    if (const auto* d = std::get_if<double>(&value)) {
        char number[32];
        std::snprintf(number, sizeof number, "%g", *d);
        text = number;
    }
    if (const auto* a = std::get_if<GgufArray>(&value)) {
        text = std::string(gguf_type_name(a->type)) + "[" + std::to_string(a->count) + "]";
    }
    if (text.size() > kMaxValueText) text = text.substr(0, kMaxValueText) + "... (" + std::to_string(text.size()) + " bytes)";
    return text;
}

void add_tensor(ModelReport& report, const std::string& name, const HostTensor& tensor, const std::vector<int64_t>& shape) {
    report.tensors.push_back({name, dtype_info(tensor.type).name, shape, static_cast<int64_t>(tensor.bytes())});
    report.parameters += tensor.rows * tensor.cols;
    report.bytes += static_cast<int64_t>(tensor.bytes());
}

void inspect_gguf(ModelReport& report) {
    const Result<GgufFiles> opened = GgufFiles::open(report.path);
    if (!opened) throw load_error(errc::bad_request, opened.error());
    const GgufFile& file = opened.value().first();
    report.format = "GGUF";
    for (const auto& [key, value] : file.metadata()) report.metadata.emplace_back(std::string(key), value_text(value));
    if (const auto a = file.text("general.architecture"); a && a.value()) report.architecture = std::string(*a.value());
    if (const auto n = file.text("general.name"); n && n.value()) report.name = std::string(*n.value());
    for (const GgufFile& part : opened.value().files()) {
        for (const GgufTensor& t : part.tensors()) add_tensor(report, std::string(t.name), t.tensor, t.shape);
    }
}

void inspect_folder(ModelReport& report) {
    Result<std::unique_ptr<ModelFile>> opened = ModelFile::open(report.path);
    if (!opened) throw load_error(errc::bad_request, opened.error());
    const ModelConfig& c = opened.value()->config();
    report.format = "safetensors";
    report.architecture = c.architecture;
    report.name = std::filesystem::path(opened.value()->path()).filename().string();
    const std::pair<const char*, int32_t> keys[] = {
        {"hidden_size", c.hidden},           {"intermediate_size", c.ffn},         {"max_position_embeddings", c.max_context},
        {"num_attention_heads", c.num_heads}, {"num_hidden_layers", c.num_layers}, {"num_key_value_heads", c.num_kv_heads},
        {"vocab_size", c.vocab}};
    for (const auto& [key, value] : keys) report.metadata.emplace_back(key, std::to_string(value));
    Result<WeightFiles> weights = WeightFiles::open(opened.value()->path());
    if (!weights) throw load_error(errc::bad_request, weights.error());
    for (const SafetensorsFile& file : weights.value().files()) {
        for (const SafetensorsTensor& t : file.tensors()) add_tensor(report, t.name, t.tensor, t.shape);
    }
}

}  // namespace

ModelReport inspect(const std::string& path) {
    ModelReport report;
    report.path = path;
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
        inspect_folder(report);
    } else {
        inspect_gguf(report);
    }
    return report;
}

}  // namespace takt
