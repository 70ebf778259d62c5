// What a Hugging Face model folder says: config.json and generation_config.json as plain data, and the mapped safetensors files
// that hold its tensors. Strict: what would change the result and is not known is refused by its name. Pure but for WeightFiles.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/status.h"
#include "model/config.h"
#include "model/mapped_file.h"
#include "model/safetensors.h"

namespace takt {

/// The shape of the network from the text of a config.json. Errors name the key, not the file.
Result<ModelConfig> parse_folder_config(std::string_view text);

/// eos_token_id of a config.json or a generation_config.json: a number, a list, or absent (empty).
Result<std::vector<int32_t>> parse_end_token_ids(std::string_view text);

/// Tensor name -> file name, from the text of a model.safetensors.index.json.
Result<std::map<std::string, std::string>> parse_weight_index(std::string_view text);

/// The safetensors files of a folder: model.safetensors, or all that model.safetensors.index.json names.
class WeightFiles {
public:
    static Result<WeightFiles> open(const std::string& folder);
    [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return files_; }

private:
    std::vector<MappedFile> mappings_;
    std::vector<SafetensorsFile> files_;
};

}  // namespace takt
