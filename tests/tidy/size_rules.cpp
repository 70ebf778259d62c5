// Length of files, functions and lines. Functions are found by matching braces over the blanked code: a brace opened at
// namespace or class level by a header with a parameter list is a function.
#include "tidy/rules.h"

#include <regex>

namespace takt::tidy {

namespace {

constexpr std::size_t kMaxFileLines = 500;
constexpr std::size_t kMaxFunctionLines = 70;
constexpr std::size_t kMaxColumns = 140;  // the style's 120 and some grace for long names

enum class Scope { container, function, other };

// Drops access labels, attributes and `template <...>` from the front of a declaration.
std::string strip_prefixes(std::string header) {
    static const std::regex prefix(R"(^\s*((public|private|protected)\s*:|\[\[[^\]]*\]\]|inline\b|template\s*(?=<)))");
    std::smatch match;
    while (std::regex_search(header, match, prefix)) {
        header = match.suffix();
        if (header.empty() || header[0] != '<') continue;
        std::size_t at = 0;
        int depth = 0;
        do {
            depth += header[at] == '<' ? 1 : 0;
            depth -= header[at] == '>' ? 1 : 0;
            ++at;
        } while (at < header.size() && depth > 0);
        header = header.substr(at);
    }
    return header;
}

// What a brace opens, judged by the text since the last ';', '{' or '}' at its level.
Scope classify(const std::string& header, Scope outer) {
    static const std::regex container_start(R"(^\s*((namespace|class|struct|union|enum)\b|extern\s*"\s*"\s*$))");
    static const std::regex operator_name(R"(operator\s*[^\s\w(]+)");
    static const std::regex assignment(R"((^|[^=!<>])=($|[^=]))");
    static const std::regex lambda(R"(\]\s*\()");
    if (outer != Scope::container) return Scope::other;
    const std::string plain = std::regex_replace(strip_prefixes(header), operator_name, "operator");
    if (std::regex_search(plain, container_start)) return Scope::container;
    if (plain.find('(') == std::string::npos) return Scope::other;
    const bool is_value = std::regex_search(plain.substr(0, plain.find('(')), assignment);
    return is_value && !std::regex_search(plain, lambda) ? Scope::other : Scope::function;
}

struct Frame {
    Scope scope;
    std::size_t header_begin;
};

// Walks the braces of a file and reports functions that are too long.
class FunctionScan {
public:
    explicit FunctionScan(const SourceFile& file) : file_(file), code_(file.code_without_directives()) {}

    Findings run() {
        for (at_ = 0; at_ < code_.size(); ++at_) {
            const char c = code_[at_];
            if (c == '(') ++num_parentheses_;
            if (c == ')' && num_parentheses_ > 0) --num_parentheses_;
            if (c == '{') open();
            if (c == '}') close();
            if (c == ';' && num_parentheses_ == 0) header_begin_ = at_ + 1;
        }
        if (!stack_.empty()) out_.push_back({"braces", file_.path(), 0, "braces do not match"});
        return out_;
    }

private:
    Scope outer() const { return stack_.empty() ? Scope::container : stack_.back().scope; }

    void open() {
        const std::string header = code_.substr(header_begin_, at_ - header_begin_);
        // A brace inside a parameter list is a default argument.
        const Scope scope = num_parentheses_ > 0 ? Scope::other : classify(header, outer());
        const std::size_t visible = header.find_first_not_of(" \t\n");
        stack_.push_back({scope, header_begin_ + (visible == std::string::npos ? 0 : visible)});
        parentheses_.push_back(num_parentheses_);
        num_parentheses_ = 0;
        header_begin_ = at_ + 1;
    }

    void close() {
        if (stack_.empty()) {
            out_.push_back({"braces", file_.path(), file_.line_of(at_), "braces do not match"});
            return;
        }
        const Frame frame = stack_.back();
        stack_.pop_back();
        num_parentheses_ = parentheses_.back();
        parentheses_.pop_back();
        // `Name() : a_{1}, b_{2} {`: the brace belonged to a member's initialiser, the header goes on.
        const std::size_t next = code_.find_first_not_of(" \t\n", at_ + 1);
        const bool goes_on = next != std::string::npos && (code_[next] == ',' || code_[next] == '{');
        header_begin_ = num_parentheses_ > 0 || goes_on ? frame.header_begin : at_ + 1;
        if (frame.scope != Scope::function) return;
        const std::size_t first = file_.line_of(frame.header_begin);
        const std::size_t num_lines = file_.line_of(at_) - first + 1;
        if (num_lines > kMaxFunctionLines) {
            out_.push_back({"function-length", file_.path(), first, std::to_string(num_lines) + " lines"});
        }
    }

    const SourceFile& file_;
    const std::string& code_;
    std::size_t at_ = 0;
    std::size_t header_begin_ = 0;
    std::size_t num_parentheses_ = 0;
    std::vector<Frame> stack_;
    std::vector<std::size_t> parentheses_;
    Findings out_;
};

std::size_t num_columns(const std::string& line) {
    std::size_t count = 0;
    for (const char c : line) count += (static_cast<unsigned char>(c) & 0xC0u) != 0x80u ? 1 : 0;
    return count;
}

}  // namespace

Findings check_sizes(const SourceFile& file) {
    Findings out = FunctionScan(file).run();
    const std::size_t num_lines = file.lines().size();
    if (num_lines > kMaxFileLines) {
        out.push_back({"file-length", file.path(), 0, std::to_string(num_lines) + " lines"});
    }
    for (std::size_t i = 0; i < num_lines; ++i) {
        const std::size_t columns = num_columns(file.lines()[i]);
        if (columns > kMaxColumns) {
            out.push_back({"line-length", file.path(), i + 1, std::to_string(columns) + " columns"});
        }
    }
    return out;
}

}  // namespace takt::tidy
