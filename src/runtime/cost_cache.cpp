// CostCache: see the header. The file: a heading, then for each entry its key, its number of lines and those lines.
#include "runtime/cost_cache.h"

#include <takt/version.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

namespace takt {
namespace {

constexpr const char* kHeading = "takt-cost-cache 1";
constexpr size_t kMostEntries = 16;
constexpr int kMostLines = 4096;

using Entries = std::vector<std::pair<std::string, std::string>>;   // latest first

Entries read_entries(const std::string& path) {
    Entries entries;
    std::ifstream in(path, std::ios::binary);
    std::string line;
    if (!in || !std::getline(in, line) || line != kHeading) return entries;
    std::string key;
    while (entries.size() < kMostEntries && std::getline(in, key) && std::getline(in, line)) {
        int count = 0;
        try {
            count = std::stoi(line);
        } catch (const std::exception&) {
            return entries;
        }
        if (count < 1 || count > kMostLines) return entries;
        std::string table;
        for (int i = 0; i < count; ++i) {
            if (!std::getline(in, line)) return entries;   // cut short: what came before it holds
            table += line + "\n";
        }
        entries.emplace_back(std::move(key), std::move(table));
    }
    return entries;
}

std::string one_line(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

}  // namespace

std::string cost_cache_key(const std::string& device_name, int num_threads, const std::string& model_name, int64_t weight_bytes) {
    return one_line("takt " + std::string(version()) + " | " + device_name + " x " + std::to_string(num_threads) + " | " + model_name +
                    " of " + std::to_string(weight_bytes) + " bytes");
}

std::string read_cost_cache(const std::string& path, const std::string& key) {
    for (auto& [entry_key, table] : read_entries(path)) {
        if (entry_key == key) return std::move(table);
    }
    return {};
}

bool write_cost_cache(const std::string& path, const std::string& key, const std::string& table) {
    Entries entries = read_entries(path);
    std::erase_if(entries, [&](const auto& entry) { return entry.first == key; });
    entries.insert(entries.begin(), {key, table});
    if (entries.size() > kMostEntries) entries.resize(kMostEntries);
    std::error_code ignored;
    const std::filesystem::path target(path);
    if (target.has_parent_path()) std::filesystem::create_directories(target.parent_path(), ignored);
    const std::string fresh = path + ".new";
    {
        std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
        out << kHeading << '\n';
        for (const auto& [entry_key, text] : entries) {
            out << entry_key << '\n' << std::count(text.begin(), text.end(), '\n') << '\n' << text;
        }
        if (!out.flush()) return false;
    }
    std::error_code failed;
    std::filesystem::rename(fresh, target, failed);
    return !failed;
}

}  // namespace takt
