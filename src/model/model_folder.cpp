// A model in a Hugging Face folder: config.json, safetensors files, tokenizer and chat template. See model_folder.h, model_file.h.
#include "model/model_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <set>

#include "model/architecture.h"
#include "model/model_file.h"
#include "model/packed_weights.h"
#include "model/tokenizer_json.h"

namespace takt {
namespace {

constexpr std::string_view kWeight = ".weight";

bool exists(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0;
}

std::string_view text_of(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Maps a text file of the folder and hands its text to `parse`; errors begin with the file's path.
template <class Parse>
auto parse_file(const std::string& path, Parse parse) -> decltype(parse(std::string_view())) {
    Result<MappedFile> mapping = MappedFile::open(path);
    if (!mapping) return Error{mapping.error()};
    auto parsed = parse(text_of(mapping.value()));
    if (!parsed) return Error{path + ": " + parsed.error()};
    return parsed;
}

/// The index and the files must name the same tensors, each in the file where the index puts it.
std::optional<Error> check_index(const std::string& path, const std::map<std::string, std::string>& index,
                                 const std::vector<SafetensorsFile>& files, const std::vector<std::string>& names) {
    size_t num_found = 0;
    for (size_t i = 0; i < files.size(); ++i) {
        for (const SafetensorsTensor& t : files[i].tensors()) {
            const auto at = index.find(t.name);
            if (at == index.end() || at->second != names[i]) {
                return Error{files[i].path() + ": tensor \"" + t.name + "\" is not where the index has it"};
            }
            ++num_found;
        }
    }
    if (num_found == index.size()) return std::nullopt;
    for (const auto& entry : index) {
        const std::string& name = entry.first;   // clang does not capture structured bindings
        const std::string& file = entry.second;
        const auto i = static_cast<size_t>(std::find(names.begin(), names.end(), file) - names.begin());
        const auto& tensors = files[i].tensors();
        const bool there = std::any_of(tensors.begin(), tensors.end(), [&](const SafetensorsTensor& t) { return t.name == name; });
        if (!there) return Error{path + ": tensor \"" + name + "\" is not in \"" + file + "\""};
    }
    return std::nullopt;
}

class ModelFolder final : public ModelFile {
public:
    explicit ModelFolder(const std::string& path) : ModelFile(path) {}

    std::optional<Error> read() {
        Result<ModelConfig> config = parse_file(path_ + "/config.json", parse_folder_config);
        if (!config) return Error{config.error()};
        config_ = std::move(config).value();
        Result<WeightFiles> weights = WeightFiles::open(path_);
        if (!weights) return Error{weights.error()};
        weights_ = std::move(weights).value();
        TensorMap tensors;
        for (const SafetensorsFile& file : weights_.files()) {
            for (const SafetensorsTensor& t : file.tensors()) {
                tensors.emplace(t.name, t.tensor);
                tensor_bytes_ += t.tensor.bytes();
            }
        }
        if (auto error = unpack(tensors)) return *error;
        Result<ModelTensors> bound = bind_tensors(tensors, TensorNaming::folder, path_, config_);
        if (!bound) return Error{bound.error()};
        tensors_ = std::move(bound).value();
        return read_template();
    }

private:
    /// Puts a matrix in the place of each group of packed tensors.
    std::optional<Error> unpack(TensorMap& tensors) {
        Result<std::optional<PackedFormat>> parsed = parse_file(path_ + "/config.json", parse_packed_format);
        if (!parsed) return Error{parsed.error()};
        if (!parsed.value()) return std::nullopt;
        const PackedFormat& format = *parsed.value();
        const PackedNames names = packed_names(format);
        // Whole bytes need no packing: there compressed-tensors leaves a matrix its plain name.
        const auto quants_of = [&](std::string_view name, const HostTensor& t) -> std::string_view {
            if (name.ends_with(names.quants)) return names.quants;
            return t.type == DType::i8 && name.ends_with(kWeight) ? kWeight : std::string_view();
        };
        std::vector<std::pair<std::string, std::string_view>> found;   // stem, what follows it
        for (const auto& [name, tensor] : tensors) {
            const std::string_view suffix = quants_of(name, tensor);
            if (!suffix.empty()) found.emplace_back(name.substr(0, name.size() - suffix.size()), suffix);
        }
        const auto take = [&](const std::string& name) {
            const auto at = tensors.find(name);
            const HostTensor taken = at == tensors.end() ? HostTensor{} : at->second;
            if (at != tensors.end()) tensors.erase(at);
            return taken;
        };
        const auto part = [](const std::string& stem, std::string_view suffix) { return stem + std::string(suffix); };
        for (const auto& [stem, suffix] : found) {
            const PackedTensors packed{take(part(stem, suffix)), take(part(stem, names.zeros)), take(part(stem, names.scales)),
                                       take(part(stem, names.g_idx))};
            if (!names.shape.empty()) take(part(stem, names.shape));
            Result<OwnedTensor> matrix = unpack_weights(packed, format);
            if (!matrix) return Error{path_ + ": tensor \"" + stem + "\": " + matrix.error()};
            unpacked_.emplace_back(part(stem, kWeight), std::move(matrix).value());
            tensors.emplace(unpacked_.back().first, unpacked_.back().second.view());
        }
        return std::nullopt;
    }

    std::optional<Error> read_template() {
        const std::string config_path = path_ + "/tokenizer_config.json";
        if (exists(config_path)) {
            Result<TokenizerConfigFile> parsed = parse_file(config_path, parse_tokenizer_config);
            if (!parsed) return Error{parsed.error()};
            if (!parsed.value().chat_template.empty()) chat_template_ = parsed.value().chat_template;
        }
        const std::string own = path_ + "/chat_template.jinja";   // newer folders keep it apart; it then counts
        if (!exists(own)) return std::nullopt;
        Result<MappedFile> file = MappedFile::open(own);
        if (!file) return Error{file.error()};
        chat_template_ = std::string(text_of(file.value()));
        return std::nullopt;
    }

    [[nodiscard]] Result<TokenizerSpec> read_tokenizer() const override {
        const std::string path = path_ + "/tokenizer.json";
        if (!exists(path)) return Error{path + " is missing: other tokenizer files are not available in this version"};
        Result<TokenizerSpec> spec = parse_file(path, parse_tokenizer_json);
        if (!spec) return spec;
        const std::string config_path = path_ + "/tokenizer_config.json";
        if (exists(config_path)) {
            Result<TokenizerConfigFile> config = parse_file(config_path, parse_tokenizer_config);
            if (!config) return Error{config.error()};
            Result<bool> applied = apply_tokenizer_config(config.value(), spec.value());
            if (!applied) return Error{config_path + ": " + applied.error()};
        }
        return with_end_tokens(std::move(spec).value());
    }

    /// What ends an answer may stand in either file, as one id or several.
    [[nodiscard]] Result<TokenizerSpec> with_end_tokens(TokenizerSpec spec) const {
        for (const char* name : {"/config.json", "/generation_config.json"}) {
            if (!exists(path_ + name)) continue;
            Result<std::vector<int32_t>> ids = parse_file(path_ + name, parse_end_token_ids);
            if (!ids) return Error{ids.error()};
            for (const int32_t id : ids.value()) {
                // Ids beyond the tokenizer's vocabulary cannot be sampled.
                if (static_cast<size_t>(id) >= spec.tokens.size()) continue;
                if (spec.eos_id < 0) spec.eos_id = id;
                auto& all = spec.end_of_generation_ids;
                if (id != spec.eos_id && std::find(all.begin(), all.end(), id) == all.end()) all.push_back(id);
            }
        }
        return spec;
    }

    WeightFiles weights_;
    std::deque<std::pair<std::string, OwnedTensor>> unpacked_;   // stays in place: tensors and their names point into it
};

}  // namespace

Result<WeightFiles> WeightFiles::open(const std::string& folder) {
    const std::string index_path = folder + "/model.safetensors.index.json";
    const std::string single = folder + "/model.safetensors";
    std::map<std::string, std::string> index;
    std::vector<std::string> names{"model.safetensors"};
    if (exists(index_path)) {
        auto parsed = parse_file(index_path, parse_weight_index);
        if (!parsed) return Error{parsed.error()};
        index = std::move(parsed).value();
        std::set<std::string> distinct;
        for (const auto& [tensor, file] : index) distinct.insert(file);
        names = std::vector<std::string>(distinct.begin(), distinct.end());
    } else if (!exists(single)) {
        return Error{folder + ": neither model.safetensors nor model.safetensors.index.json is there"};
    }
    WeightFiles weights;
    for (const std::string& name : names) {
        const std::string path = folder + "/" + name;
        Result<MappedFile> mapping = MappedFile::open(path);
        if (!mapping) return Error{mapping.error()};
        Result<SafetensorsFile> file = SafetensorsFile::parse(mapping.value().bytes(), path);
        if (!file) return Error{file.error()};
        weights.mappings_.push_back(std::move(mapping).value());
        weights.files_.push_back(std::move(file).value());
    }
    if (!index.empty()) {
        if (auto error = check_index(index_path, index, weights.files_, names)) return *error;
    }
    return weights;
}

Result<std::unique_ptr<ModelFile>> open_model_folder(const std::string& path) {
    std::string folder = path;
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    auto model = std::make_unique<ModelFolder>(folder);
    if (auto error = model->read()) return *error;
    return std::unique_ptr<ModelFile>(std::move(model));
}

}  // namespace takt
