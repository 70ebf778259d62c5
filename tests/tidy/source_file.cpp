// Blanking of comments and literals, and the include list. Single pass over the characters, no preprocessor.
#include "tidy/source_file.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <utility>

namespace takt::tidy {

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Walks a text and copies it with comments and literal contents replaced by spaces.
class Blanker {
public:
    explicit Blanker(const std::string& text) : text_(text), out_(text) {}

    std::string run() {
        while (at_ < text_.size()) step();
        return std::move(out_);
    }

private:
    void step() {
        const char c = text_[at_];
        if (starts_with("//")) {
            while (at_ < text_.size() && text_[at_] != '\n') blank();
        } else if (starts_with("/*")) {
            blank_to("*/");
        } else if (c == '"' && at_ > 0 && text_[at_ - 1] == 'R') {
            raw_string();
        } else if (c == '"') {
            quoted('"');
        } else if (c == '\'' && !is_digit_separator()) {
            quoted('\'');
        } else {
            ++at_;
        }
    }

    bool starts_with(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }

    // 1'000: a quote inside a number; u8'x' and L'x' begin a literal.
    bool is_digit_separator() const {
        std::size_t begin = at_;
        while (begin > 0 && (is_word(text_[begin - 1]) || text_[begin - 1] == '\'')) --begin;
        return begin < at_ && std::isdigit(static_cast<unsigned char>(text_[begin])) != 0;
    }

    void blank() {
        if (text_[at_] != '\n') out_[at_] = ' ';
        ++at_;
    }

    void blank_to(std::string_view end) {
        const std::size_t found = text_.find(end, at_ + 2);
        const std::size_t stop = found == std::string::npos ? text_.size() : found + end.size();
        while (at_ < stop) blank();
    }

    void raw_string() {
        const std::size_t open = text_.find('(', at_);
        if (open == std::string::npos) return void(++at_);
        const std::string end = ")" + text_.substr(at_ + 1, open - at_ - 1) + "\"";
        const std::size_t found = text_.find(end, open);
        const std::size_t stop = found == std::string::npos ? text_.size() : found + end.size() - 1;
        ++at_;
        while (at_ < stop) blank();
        if (at_ < text_.size()) ++at_;
    }

    void quoted(char end) {
        ++at_;
        while (at_ < text_.size() && text_[at_] != end && text_[at_] != '\n') {
            if (text_[at_] == '\\' && at_ + 1 < text_.size()) blank();
            blank();
        }
        if (at_ < text_.size() && text_[at_] == end) ++at_;
    }

    const std::string& text_;
    std::string out_;
    std::size_t at_ = 0;
};

std::size_t first_visible(const std::string& line) { return line.find_first_not_of(" \t"); }

// Blanks every line that begins with '#', and the lines its backslashes continue to.
std::string blank_directives(const std::string& code) {
    std::string out = code;
    std::size_t begin = 0;
    bool is_continued = false;
    while (begin < out.size()) {
        const std::size_t end = std::min(out.find('\n', begin), out.size());
        const std::string line = out.substr(begin, end - begin);
        const std::size_t first = first_visible(line);
        const bool is_directive = is_continued || (first != std::string::npos && line[first] == '#');
        is_continued = is_directive && !line.empty() && line.back() == '\\';
        if (is_directive) std::fill(out.begin() + static_cast<std::ptrdiff_t>(begin),
                                    out.begin() + static_cast<std::ptrdiff_t>(end), ' ');
        begin = end + 1;
    }
    return out;
}

}  // namespace

std::vector<std::string> split_lines(std::string_view text) {
    std::vector<std::string> lines;
    std::size_t begin = 0;
    while (begin < text.size()) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        lines.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return lines;
}

SourceFile::SourceFile(std::string path, std::string text)
    : path_(std::move(path)), text_(std::move(text)), lines_(split_lines(text_)), code_(Blanker(text_).run()),
      bare_code_(blank_directives(code_)) {
    static const std::regex include_line(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
    const std::vector<std::string> code_lines = split_lines(code_);
    for (std::size_t i = 0; i < lines_.size(); ++i) {
        const std::size_t first = first_visible(code_lines[i]);
        std::smatch match;
        if (first == std::string::npos || code_lines[i][first] != '#') continue;
        if (std::regex_search(lines_[i], match, include_line)) includes_.push_back({match[2], match[1] == "\"", i + 1});
    }
}

std::size_t SourceFile::line_of(std::size_t offset) const {
    const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text_.size()));
    return static_cast<std::size_t>(std::count(text_.begin(), end, '\n')) + 1;
}

bool SourceFile::is_under(std::string_view folder) const {
    return path_.size() > folder.size() && path_.compare(0, folder.size(), folder) == 0 && path_[folder.size()] == '/';
}

bool SourceFile::is_header() const {
    return path_.ends_with(".h") || path_.ends_with(".cuh") || path_.ends_with(".h.in");
}

}  // namespace takt::tidy
