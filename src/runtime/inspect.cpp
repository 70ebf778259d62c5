// takt::inspect: what a model file holds, from its index alone.
#include <cstdio>

#include <takt/engine.h>

#include "model/model_file.h"

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

}  // namespace

ModelReport inspect(const std::string& path) {
    Result<MappedFile> mapping = MappedFile::open(path);
    if (!mapping) throw load_error(errc::bad_request, mapping.error());
    Result<GgufFile> parsed = GgufFile::parse(mapping.value().bytes(), path);
    if (!parsed) throw load_error(errc::bad_request, parsed.error());
    const GgufFile& file = parsed.value();
    ModelReport report;
    report.path = path;
    report.format = "GGUF";
    for (const auto& [key, value] : file.metadata()) report.metadata.emplace_back(std::string(key), value_text(value));
    if (const auto a = file.text("general.architecture"); a && a.value()) report.architecture = std::string(*a.value());
    if (const auto n = file.text("general.name"); n && n.value()) report.name = std::string(*n.value());
    for (const GgufTensor& t : file.tensors()) {
        report.tensors.push_back({std::string(t.name), dtype_info(t.tensor.type).name, t.shape, static_cast<int64_t>(t.tensor.bytes())});
        report.parameters += t.tensor.rows * t.tensor.cols;
        report.bytes += static_cast<int64_t>(t.tensor.bytes());
    }
    return report;
}

}  // namespace takt
