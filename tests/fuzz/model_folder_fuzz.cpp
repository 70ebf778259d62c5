// Any bytes as the files of a model folder: refused with a message, or tensors that stay within the bytes and a sane config.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "model/model_folder.h"

namespace {

/// A config that was taken must describe a network that can be built without dividing by zero or overflowing.
void check(const takt::ModelConfig& c) {
    const bool is_sane = c.num_layers > 0 && c.hidden > 0 && c.head_dim > 0 && c.num_kv_heads > 0 && c.num_heads % c.num_kv_heads == 0 &&
                         (c.rope_factors.empty() || c.rope_factors.size() == static_cast<std::size_t>(c.head_dim) / 2) &&
                         (c.layer_windows.empty() || c.layer_windows.size() == static_cast<std::size_t>(c.num_layers));
    if (!is_sane) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto config = takt::parse_folder_config(text)) check(config.value());
    (void)takt::parse_weight_index(text);
    (void)takt::parse_end_token_ids(text);
    const auto parsed = takt::SafetensorsFile::parse(std::span(data, size), "fuzz.safetensors");
    if (!parsed) {
        if (parsed.error().rfind("fuzz.safetensors: ", 0) != 0) std::abort();   // every message names the file
        return 0;
    }
    for (const takt::SafetensorsTensor& t : parsed.value().tensors()) {
        const auto* at = static_cast<const std::uint8_t*>(t.tensor.data);
        if (at < data || at > data + size || t.tensor.bytes() > static_cast<std::size_t>(data + size - at)) std::abort();
    }
    return 0;
}
