// See text_file.h.
#include "cli/text_file.h"

#include <takt/error.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace takt::cli {

namespace {

[[noreturn]] void refuse(const std::string& path) { throw load_error(errc::internal, path + ": could not be written"); }

}  // namespace

std::string read_text_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw config_error(path + ": cannot be read");
    std::ostringstream text;
    // A folder can be opened and not be read; an empty file has nothing to give, and that is no error.
    if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
    if (in.bad()) throw config_error(path + ": cannot be read");
    return text.str();
}

void write_text_file(const std::string& path, const std::string& text) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out) refuse(path);
}

void check_writable(const std::string& path) {
    if (path.empty()) return;
    std::error_code ignored;
    const bool is_new = !std::filesystem::exists(path, ignored);
    if (!std::ofstream(path, std::ios::binary | std::ios::app)) refuse(path);
    if (is_new) std::filesystem::remove(path, ignored);
}

}  // namespace takt::cli
