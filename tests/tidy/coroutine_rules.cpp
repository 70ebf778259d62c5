// `co_await` stands alone. Several forms that look harmless are miscompiled by g++ 12 (conditions, aggregate arguments,
// capturing lambdas), so the rule is simple: a full statement or the sole initialiser of a named variable, and
// arguments that are names, constructor calls with parentheses, or moves.
#include "tidy/rules.h"

#include <cctype>
#include <regex>

namespace takt::tidy {

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Offset after the bracket that closes the one at `open`, or npos.
std::size_t skip_balanced(const std::string& code, std::size_t open, char left, char right) {
    int depth = 0;
    for (std::size_t at = open; at < code.size(); ++at) {
        depth += code[at] == left ? 1 : 0;
        depth -= code[at] == right ? 1 : 0;
        if (depth == 0) return at + 1;
    }
    return std::string::npos;
}

std::size_t skip_space(const std::string& text, std::size_t at) {
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at])) != 0) ++at;
    return at;
}

// Drops `if (...)`, `for (...)`, `while (...)`, `else`, `do` and labels from the front of a statement.
std::string strip_controls(std::string text) {
    static const std::regex control(R"(^\s*(if\s*(constexpr)?|for|while)\s*\()");
    static const std::regex plain(R"(^\s*(else\b|do\b|default\s*:|case\s[^:?]*:))");
    for (;;) {
        std::smatch match;
        if (std::regex_search(text, match, control)) {
            const std::size_t end = skip_balanced(text, static_cast<std::size_t>(match.length()) - 1, '(', ')');
            if (end == std::string::npos) return text;
            text = text.substr(end);
        } else if (std::regex_search(text, match, plain)) {
            text = match.suffix();
        } else {
            return text.substr(skip_space(text, 0));
        }
    }
}

bool is_allowed_prefix(const std::string& prefix) {
    static const std::regex declaration(
        R"(^(const\s+)?[A-Za-z_][\w:<>,\s*&]*[\s&*](\w+|\[[\w\s,]+\])\s*=\s*$)");
    static const std::regex assignment(R"(^[A-Za-z_][\w:.\->\[\]]*\s*=\s*$)");
    static const std::regex ignored(R"(^\(void\)\s*$)");
    return prefix.empty() || std::regex_match(prefix, declaration) || std::regex_match(prefix, assignment) ||
           std::regex_match(prefix, ignored);
}

// The awaited expression ends at the ';' outside all brackets.
std::size_t find_end(const std::string& code, std::size_t begin) {
    int depth = 0;
    for (std::size_t at = begin; at < code.size(); ++at) {
        const char c = code[at];
        if (c == '(' || c == '[' || c == '{') ++depth;
        if (c == ')' || c == ']' || c == '}') --depth;
        if (depth < 0 || (c == ';' && depth == 0)) return at;
    }
    return code.size();
}

// Empty if the awaited expression is plain; else what is wrong with it.
std::string fault_of(const std::string& awaited) {
    static const std::regex again(R"(\bco_await\b)");
    static const std::regex capture(R"((^|[^\w\])\s])\s*\[[^\]]+\])");
    if (std::regex_search(awaited, again)) return "two co_await in one statement";
    if (awaited.find('{') != std::string::npos) return "a braced argument; name it first";
    if (std::regex_search(awaited, capture)) return "a lambda with captures; name it first";
    int depth = 0;
    for (std::size_t at = 0; at < awaited.size(); ++at) {
        const char c = awaited[at];
        if (c == '(' || c == '[') ++depth;
        if (c == ')' || c == ']') --depth;
        if (c == '?' && depth == 0) return "part of ?:; use if and else";
        if (depth == 0 && at + 1 < awaited.size()) {
            const std::string_view two = std::string_view(awaited).substr(at, 2);
            for (const std::string_view op : {"&&", "||", "==", "!=", "<=", ">="}) {
                if (two == op) return "part of a larger expression; name the result first";
            }
        }
    }
    return {};
}

}  // namespace

Findings check_coroutines(const SourceFile& file) {
    static const std::string keyword = "co_await";
    static const std::regex declares_operator(R"(operator\s*$)");
    Findings out;
    const std::string& code = file.code_without_directives();
    for (std::size_t at = code.find(keyword); at != std::string::npos; at = code.find(keyword, at + 1)) {
        const std::size_t after = at + keyword.size();
        if ((at > 0 && is_word(code[at - 1])) || (after < code.size() && is_word(code[after]))) continue;
        std::size_t begin = at;
        while (begin > 0 && code[begin - 1] != ';' && code[begin - 1] != '{' && code[begin - 1] != '}') --begin;
        std::string prefix = code.substr(begin, at - begin);
        if (std::regex_search(prefix, declares_operator)) continue;
        prefix = strip_controls(prefix);
        if (!is_allowed_prefix(prefix)) {
            out.push_back({"co_await", file.path(), file.line_of(at), "not alone, after: " + prefix});
            continue;
        }
        const std::string fault = fault_of(code.substr(after, find_end(code, after) - after));
        if (!fault.empty()) out.push_back({"co_await", file.path(), file.line_of(at), fault});
    }
    return out;
}

}  // namespace takt::tidy
