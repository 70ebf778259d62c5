// Finding and reading the configuration of a command.
#include "cli/command.h"

#include <filesystem>

namespace takt::cli {

std::string toml_string(const std::string& text) {
    std::string out = "\"";
    constexpr char digits[] = "0123456789abcdef";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20 || byte == 0x7F) {
            out += "\\u00";
            out += digits[byte >> 4];
            out += digits[byte & 15];
        } else {
            out += c;
        }
    }
    out += '"';
    return out;
}

Config read_config(const ConfigOptions& options) {
    std::string file = options.file;
    if (file.empty() && std::filesystem::exists("config.toml")) file = "config.toml";
    std::vector<std::string> overrides = options.overrides;
    if (!options.model.empty()) overrides.push_back("model.path=" + toml_string(options.model));
    return load_config(file, overrides);
}

}  // namespace takt::cli
