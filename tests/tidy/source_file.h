// A source file as the tidy rules see it: its path in the repository, its raw lines, and its code with comments and the
// contents of literals blanked, so that a rule never trips over prose. Knows nothing about the rules.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace takt::tidy {

/// One breach of a rule. `line` counts from 1; 0 means the file as a whole.
struct Finding {
    std::string rule;
    std::string path;
    std::size_t line = 0;
    std::string message;
};
using Findings = std::vector<Finding>;

class SourceFile {
public:
    /// `path` is relative to the repository's root, with forward slashes.
    SourceFile(std::string path, std::string text);

    const std::string& path() const { return path_; }
    const std::vector<std::string>& lines() const { return lines_; }
    /// As long as the text, newlines in place; comments and literal contents are spaces.
    const std::string& code() const { return code_; }
    /// `code()` with preprocessor lines blanked as well.
    const std::string& code_without_directives() const { return bare_code_; }
    std::size_t line_of(std::size_t offset) const;
    bool is_under(std::string_view folder) const;
    bool is_header() const;

    /// One `#include`, as written.
    struct Include {
        std::string target;
        bool is_quoted = false;
        std::size_t line = 0;
    };
    const std::vector<Include>& includes() const { return includes_; }

private:
    std::string path_;
    std::string text_;
    std::vector<std::string> lines_;
    std::string code_;
    std::string bare_code_;
    std::vector<Include> includes_;
};

/// Splits at newlines; a final newline opens no further line.
std::vector<std::string> split_lines(std::string_view text);

}  // namespace takt::tidy
