// Finding and reading the configuration of a command.
#include "cli/command.h"

#include <filesystem>

#include "cli/quoted_text.h"

namespace takt::cli {

Config read_config(const ConfigOptions& options) {
    std::string file = options.file;
    if (file.empty() && std::filesystem::exists("config.toml")) file = "config.toml";
    std::vector<std::string> overrides = options.overrides;
    if (!options.model.empty()) overrides.push_back("model.path=" + quoted_text(options.model));
    return load_config(file, overrides);
}

}  // namespace takt::cli
