// Who may include whom: layers by folder, and the folders of the heavy third-party headers.
#include "tidy/rules.h"

#include <array>
#include <regex>

namespace takt::tidy {

namespace {

struct Layer {
    std::string_view folder;
    // First path components that its includes may name.
    std::vector<std::string_view> may_include;
};

const std::vector<Layer>& layers() {
    static const std::vector<Layer> all = {
        {"src/kernels", {"kernels"}},
        {"src/model", {"model", "kernels", "takt"}},
        {"src/runtime", {"runtime", "model", "kernels", "takt"}},
        {"src/server", {"server", "takt"}},
        {"src/cli", {"cli", "server", "takt"}},
        {"include/takt", {"takt"}},
        {"examples", {"takt"}},
    };
    return all;
}

constexpr std::array<std::string_view, 6> kOwnRoots = {"kernels", "model", "runtime", "server", "cli", "takt"};

bool contains(const std::vector<std::string_view>& list, std::string_view what) {
    for (const auto& entry : list) {
        if (entry == what) return true;
    }
    return false;
}

// The layer an include names, or nothing for the standard library and other projects.
std::string_view root_of(const std::string& target) {
    const std::string_view first = std::string_view(target).substr(0, target.find('/'));
    if (target.find('/') == std::string::npos) return {};
    for (const auto& root : kOwnRoots) {
        if (first == root) return root;
    }
    return {};
}

void check_layer(const SourceFile& file, const SourceFile::Include& include, Findings& out) {
    const bool is_product = file.is_under("src") || file.is_under("include");
    if (is_product && (include.target.starts_with("tests/") || include.target.find("catch") != std::string::npos)) {
        out.push_back({"no-tests-in-src", file.path(), include.line, "includes " + include.target});
    }
    if (include.target.find("../") != std::string::npos) {
        out.push_back({"include-path", file.path(), include.line, "write the path from src/: " + include.target});
    }
    const std::string_view root = root_of(include.target);
    if (root.empty()) return;
    for (const auto& layer : layers()) {
        if (!file.is_under(layer.folder) || contains(layer.may_include, root)) continue;
        // The version header is generated and says nothing about any layer.
        if (include.target == "takt/version.h") continue;
        out.push_back({"include-arrow", file.path(), include.line,
                       std::string(layer.folder) + " may not include " + include.target});
    }
}

struct Placement {
    std::regex target;
    std::vector<std::string_view> folders;
    std::string_view what;
};

const std::vector<Placement>& placements() {
    static const std::vector<Placement> all = {
        {std::regex("^(cuda[a-z_]*|cublas[a-zA-Z_0-9]*|nvml|nccl|nvtx3/.*|cooperative_groups.*|mma)(\\.h|\\.hpp)?$"),
         {"src/kernels/cuda", "tests/kernels/cuda", "bench/cuda"},
         "CUDA headers"},
        {std::regex("^boost/beast"), {"src/server", "src/cli", "tests/server", "tests/cli", "bench"}, "Beast"},
        {std::regex("^boost/asio"),
         {"src/server", "src/cli", "src/runtime", "include/takt", "tests/server", "tests/cli", "tests/runtime",
          "tests/sim", "tests/fuzz", "tests/headers", "bench", "examples"},
         "Asio"},
        {std::regex("^boost/json"),
         {"src/server", "src/cli", "src/model", "src/runtime", "include/takt", "tests", "bench", "examples"},
         "Boost.JSON"},
        {std::regex("^CLI/"), {"src/cli", "bench"}, "CLI11"},
        {std::regex("^pcre2"), {"src/model"}, "PCRE2"},
        {std::regex("^utf8proc"), {"src/model"}, "utf8proc"},
    };
    return all;
}

void check_placement(const SourceFile& file, const SourceFile::Include& include, Findings& out) {
    for (const auto& placement : placements()) {
        if (!std::regex_search(include.target, placement.target)) continue;
        bool is_allowed = false;
        for (const auto& folder : placement.folders) is_allowed = is_allowed || file.is_under(folder);
        if (!is_allowed) {
            out.push_back({"placement", file.path(), include.line,
                           std::string(placement.what) + " may not be included here: " + include.target});
        }
    }
    if (include.target.starts_with("toml++") && file.path() != "src/runtime/config_toml.cpp") {
        out.push_back({"placement", file.path(), include.line, "toml++ belongs into config_toml.cpp alone"});
    }
    if (include.target.starts_with("boost/") && file.is_under("src/kernels")) {
        out.push_back({"placement", file.path(), include.line, "no Boost in src/kernels: " + include.target});
    }
}

}  // namespace

Findings check_includes(const SourceFile& file) {
    Findings out;
    for (const auto& include : file.includes()) {
        check_layer(file, include, out);
        check_placement(file, include, out);
    }
    return out;
}

}  // namespace takt::tidy
