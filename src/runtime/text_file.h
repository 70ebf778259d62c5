// Reads a small text file that the configuration names.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include <takt/error.h>

namespace takt {

/// @throws config_error that names the file.
inline std::string read_text_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw config_error(path + ": cannot be read");
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

}  // namespace takt
