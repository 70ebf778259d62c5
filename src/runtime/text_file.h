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
    // A folder can be opened and not be read; an empty file has nothing to give, and that is no error.
    if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
    if (in.bad()) throw config_error(path + ": cannot be read");
    return text.str();
}

}  // namespace takt
