// Writing of GPTQ copies of model folders; see quantize.h.
#include <boost/json.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "model/mapped_file.h"
#include "model/model_folder.h"
#include "model/quantize.h"

namespace takt {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";

/// The layers' matrices: names like model.layers.0.mlp.up_proj.weight, rows of whole blocks, zero points of whole words.
bool is_packed(const SafetensorsTensor& t, const GptqConfig& c) {
    return t.name.find(".layers.") != std::string::npos && t.name.ends_with("_proj.weight") && t.shape.size() == 2 &&
           t.tensor.cols % 32 == 0 && t.tensor.rows * c.bits % 32 == 0;
}

struct Entry {
    std::string name, type;
    std::vector<int64_t> shape;
    uint64_t bytes;
};

/// What a tensor becomes in the file.
std::vector<Entry> entries_of(const SafetensorsTensor& t, const GptqConfig& c) {
    if (!is_packed(t, c)) {
        const DType type = t.tensor.type;
        const char* name = type == DType::f32 ? "F32" : type == DType::f16 ? "F16" : type == DType::bf16 ? "BF16" : "I32";
        return {{t.name, name, t.shape, t.tensor.bytes()}};
    }
    const std::string stem = t.name.substr(0, t.name.size() - kWeight.size());
    const int64_t out = t.tensor.rows, in = t.tensor.cols, length = c.group_size < 0 ? in : c.group_size;
    const int64_t groups = (in + length - 1) / length;
    const auto words = [&](const char* part, int64_t rows, int64_t cols) {
        return Entry{stem + part, "I32", {rows, cols}, static_cast<uint64_t>(rows * cols) * 4};
    };
    return {words(".qweight", in * c.bits / 32, out), words(".qzeros", groups, out * c.bits / 32),
            {stem + ".scales", "F16", {groups, out}, static_cast<uint64_t>(groups * out) * 2},
            {stem + ".g_idx", "I32", {in}, static_cast<uint64_t>(in) * 4}};
}

std::string header_of(const std::vector<Entry>& entries) {
    json::object header{{"__metadata__", {{"format", "pt"}}}};
    uint64_t at = 0;
    for (const Entry& e : entries) {
        json::array shape;
        for (const int64_t size : e.shape) shape.push_back(size);
        header[e.name] = {{"dtype", e.type}, {"shape", shape}, {"data_offsets", {at, at + e.bytes}}};
        at += e.bytes;
    }
    std::string text = json::serialize(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
}

QuantizedTensor write_tensor(const SafetensorsTensor& t, const GptqConfig& c, std::ofstream& out) {
    const auto write = [&](const auto& values) {
        out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(values[0])));
    };
    if (!is_packed(t, c)) {
        out.write(static_cast<const char*>(t.tensor.data), static_cast<std::streamsize>(t.tensor.bytes()));
        return {t.name, t.tensor.type, t.tensor.type, 0, 0};
    }
    const GptqMatrix m = write_gptq(t.tensor, c);
    write(m.qweight);
    write(m.qzeros);
    write(m.scales);
    write(m.g_idx);
    return {t.name, t.tensor.type, c.bits == 8 ? DType::q8_0 : DType::q4_0, m.relative_error, m.largest_error};
}

/// config.json with the layout in it.
Result<std::string> config_with(const std::string& path, const GptqConfig& c) {
    Result<MappedFile> file = MappedFile::open(path);
    if (!file) return Error{file.error()};
    json::error_code failure;
    const auto bytes = file.value().bytes();
    json::value config = json::parse(json::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), failure);
    if (failure || !config.is_object()) return Error{path + ": not a JSON object"};
    const json::value* present = config.as_object().if_contains("quantization_config");
    if (present != nullptr && !present->is_null()) return Error{path + ": the weights are quantised already (quantization_config)"};
    config.as_object()["quantization_config"] = {{"quant_method", "gptq"}, {"bits", c.bits},        {"group_size", c.group_size},
                                                 {"sym", true},            {"desc_act", false},     {"checkpoint_format", "gptq"}};
    return json::serialize(config);
}

/// Tokenizer, template and whatever else lies in the folder, but for weights and what is written anew.
bool copy_others(const std::string& in, const std::string& out) {
    std::error_code failed;
    for (fs::directory_iterator at(in, failed); !failed && at != fs::directory_iterator(); at.increment(failed)) {
        const fs::directory_entry& item = *at;
        const std::string name = item.path().filename().string();
        const bool is_weights = name.ends_with(".safetensors") || name.ends_with(".index.json") || name.ends_with(".bin") ||
                                name.ends_with(".gguf") || name.ends_with(".pth");
        if (is_weights || name == "config.json" || !item.is_regular_file(failed)) continue;
        fs::copy_file(item.path(), fs::path(out) / name, failed);
        if (failed) return false;
    }
    return !failed;
}

/// Removes a file at the end of its life unless it is kept: the folder is empty again, as the next try wants it.
class Unfinished {
public:
    explicit Unfinished(std::string path) : path_(std::move(path)) {}
    Unfinished(const Unfinished&) = delete;
    Unfinished& operator=(const Unfinished&) = delete;
    ~Unfinished() {
        if (!path_.empty()) std::remove(path_.c_str());
    }
    void keep() { path_.clear(); }

private:
    std::string path_;
};

}  // namespace

std::optional<GptqConfig> gptq_format(const std::string& name) {
    if (name == "w8") return GptqConfig{8, -1};
    if (name == "w4g128") return GptqConfig{4, 128};
    if (name == "w3g128") return GptqConfig{3, 128};
    return std::nullopt;
}

Result<QuantizeTotals> quantize_folder(const std::string& in, const std::string& out, const GptqConfig& format,
                                       const std::function<void(const QuantizedTensor&)>& on_tensor) {
    const Result<WeightFiles> weights = WeightFiles::open(in);
    if (!weights) return Error{weights.error()};
    const Result<std::string> config = config_with(in + "/config.json", format);
    if (!config) return Error{config.error()};
    std::error_code failed;
    fs::create_directories(out, failed);
    if (failed || !fs::is_empty(out, failed) || failed) return Error{out + ": a new or empty folder expected"};
    QuantizeTotals totals;
    std::vector<Entry> entries;
    for (const SafetensorsFile& file : weights.value().files()) {
        for (const SafetensorsTensor& t : file.tensors()) {
            totals.bytes_in += t.tensor.bytes();
            for (Entry& e : entries_of(t, format)) entries.push_back(std::move(e));
        }
    }
    const std::string path = out + "/model.safetensors";
    Unfinished unfinished(path);
    std::ofstream data(path, std::ios::binary);
    const std::string header = header_of(entries);
    const uint64_t length = header.size();
    data.write(reinterpret_cast<const char*>(&length), sizeof length);
    data.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const Entry& e : entries) totals.bytes_out += e.bytes;
    for (const SafetensorsFile& file : weights.value().files()) {
        for (const SafetensorsTensor& t : file.tensors()) {
            if (!data) break;
            const QuantizedTensor done = write_tensor(t, format, data);
            if (on_tensor) on_tensor(done);
        }
    }
    data.close();
    // The config comes last: a folder without one is no model.
    const bool copied = data && copy_others(in, out);
    if (!copied || !(std::ofstream(out + "/config.json") << config.value())) return Error{path + ": cannot be written"};
    unfinished.keep();
    return totals;
}

}  // namespace takt
