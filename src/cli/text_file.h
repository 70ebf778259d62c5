// Files that options name: read and written whole.
#pragma once

#include <string>

namespace takt::cli {

/// @throws config_error that names the file.
std::string read_text_file(const std::string& path);

/// @throws load_error that names the file, also where a full disk cut it short.
void write_text_file(const std::string& path, const std::string& text);

/// Whether write_text_file could write there, asked before a run of minutes whose figures go there. What the file holds stays; an empty
/// path is none. @throws load_error as write_text_file.
void check_writable(const std::string& path);

}  // namespace takt::cli
