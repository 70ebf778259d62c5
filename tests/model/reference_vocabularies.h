// Real vocabularies and their reference ids, which lie beside the source tree where there are any: read for the tests of each format.
#pragma once

#include <unistd.h>

#include <boost/json.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace takt::test {

inline std::filesystem::path reference_folder() { return std::filesystem::path(TAKT_SOURCE_ROOT) / ".." / "shared"; }

inline bool has_reference_ids() { return std::filesystem::exists(reference_folder() / "truth" / "tokenizers"); }

/// The text of a vocabulary's tokenizer.json; nothing where it cannot be unpacked.
inline std::optional<std::string> reference_tokenizer_json(const std::string& name) {
    const std::filesystem::path packed = reference_folder() / "tokenizers" / name / "tokenizer.json.gz";
    std::string pattern = (std::filesystem::temp_directory_path() / "takt_vocabulary_XXXXXX").string();
    const int file = mkstemp(pattern.data());
    if (file < 0) return std::nullopt;
    close(file);
    const bool unpacked = std::system(("gzip -dc '" + packed.string() + "' > '" + pattern + "'").c_str()) == 0;
    std::stringstream text;
    text << std::ifstream(pattern).rdbuf();
    std::filesystem::remove(pattern);
    if (!unpacked) return std::nullopt;
    return text.str();
}

/// The rows of a vocabulary's reference ids.
inline std::vector<boost::json::object> reference_rows(const std::string& name) {
    std::ifstream file(reference_folder() / "truth" / "tokenizers" / (name + ".jsonl"));
    std::vector<boost::json::object> rows;
    for (std::string line; std::getline(file, line);) rows.push_back(boost::json::parse(line).as_object());
    return rows;
}

inline std::vector<int32_t> ids_of(const boost::json::value& list) {
    std::vector<int32_t> out;
    for (const auto& id : list.as_array()) out.push_back(static_cast<int32_t>(id.as_int64()));
    return out;
}

}  // namespace takt::test
