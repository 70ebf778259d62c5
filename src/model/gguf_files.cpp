// Opening of split GGUF models; see gguf_files.h.
#include "model/gguf_files.h"

#include <cstdio>
#include <optional>
#include <set>

namespace takt {
namespace {

constexpr int64_t kMaxFiles = 99999;   // what five digits can name

std::string file_name(const std::string& stem, int64_t index, int64_t count) {
    char suffix[64];
    std::snprintf(suffix, sizeof suffix, "-%05lld-of-%05lld.gguf", static_cast<long long>(index + 1), static_cast<long long>(count));
    return stem + suffix;
}

/// A split key, which every file of a split model must have.
Result<int64_t> split_key(const GgufFile& file, const char* key, int64_t max) {
    const auto found = file.integer(key, 0, max);
    if (!found) return Error{found.error()};
    if (!found.value()) return Error{file.path() + ": key \"" + key + "\" is missing"};
    return *found.value();
}

std::optional<Error> check_part(const GgufFile& file, int64_t index, int64_t count) {
    const Result<int64_t> no = split_key(file, "split.no", kMaxFiles);
    if (!no) return Error{no.error()};
    const Result<int64_t> of = split_key(file, "split.count", kMaxFiles);
    if (!of) return Error{of.error()};
    if (no.value() == index && of.value() == count) return std::nullopt;
    return Error{file.path() + ": part " + std::to_string(no.value() + 1) + " of " + std::to_string(of.value()) + " found, part " +
                 std::to_string(index + 1) + " of " + std::to_string(count) + " expected"};
}

std::optional<Error> check_tensors(const std::vector<GgufFile>& files) {
    std::set<std::string_view> names;
    for (const GgufFile& file : files) {
        for (const GgufTensor& t : file.tensors()) {
            if (!names.insert(t.name).second) return Error{file.path() + ": tensor \"" + std::string(t.name) + "\" stands in two files"};
        }
    }
    const Result<int64_t> total = split_key(files.front(), "split.tensors.count", int64_t{1} << 24);
    if (!total) return Error{total.error()};
    if (static_cast<size_t>(total.value()) == names.size()) return std::nullopt;
    return Error{files.front().path() + ": " + std::to_string(names.size()) + " tensors found in all files, " +
                 std::to_string(total.value()) + " expected"};
}

}  // namespace

Result<GgufFiles> GgufFiles::open(const std::string& path) {
    GgufFiles all;
    const auto add = [&](const std::string& name) -> std::optional<Error> {
        Result<MappedFile> mapping = MappedFile::open(name);
        if (!mapping) return Error{mapping.error()};
        Result<GgufFile> file = GgufFile::parse(mapping.value().bytes(), name);
        if (!file) return Error{file.error()};
        all.mappings_.push_back(std::move(mapping).value());
        all.files_.push_back(std::move(file).value());
        return std::nullopt;
    };
    if (auto error = add(path)) return *error;
    const auto found = all.first().integer("split.count", 0, kMaxFiles);
    if (!found) return Error{found.error()};
    const int64_t count = found.value().value_or(1);
    if (count <= 1) return all;
    const std::string ending = file_name("", 0, count);
    if (!path.ends_with(ending)) {
        return Error{path + ": a model of " + std::to_string(count) + " files: name its first one, which ends with \"" + ending + "\""};
    }
    const std::string stem = path.substr(0, path.size() - ending.size());
    if (auto error = check_part(all.first(), 0, count)) return *error;
    for (int64_t i = 1; i < count; ++i) {
        if (auto error = add(file_name(stem, i, count))) return *error;
        if (auto error = check_part(all.files_.back(), i, count)) return *error;
    }
    if (auto error = check_tensors(all.files_)) return *error;
    return all;
}

}  // namespace takt
