// Two draws from a random source never stand in two arguments of one call: compilers work out arguments in an order of their own,
// and the same seed would give other values on each.
#include "tidy/rules.h"

#include <regex>

namespace takt::tidy {

namespace {

// An open bracket around the place at hand; `drawn` counts the arguments that draw, `draws` says so of the one at hand.
struct Bracket {
    char kind = '(';
    int drawn = 0;
    bool draws = false;
};

void end_argument(Bracket& bracket) {
    bracket.drawn += bracket.draws ? 1 : 0;
    bracket.draws = false;
}

}  // namespace

Findings check_chance(const SourceFile& file) {
    static const std::regex draw(R"(\brandom\w*\s*(\(\)|\.\s*(next|below|between|uniform|chance|exponential|normal|value)\s*\())");
    const std::string& code = file.code_without_directives();
    Findings out;
    std::vector<Bracket> open;
    auto next = std::sregex_iterator(code.begin(), code.end(), draw);
    for (std::size_t at = 0; at < code.size(); ++at) {
        if (next != std::sregex_iterator() && static_cast<std::size_t>(next->position()) == at) {
            for (Bracket& bracket : open) bracket.draws = true;
            ++next;
        }
        const char c = code[at];
        if (c == '(' || c == '{' || c == '[') {
            open.push_back({c, 0, false});
        } else if (open.empty()) {
            continue;
        } else if (c == ',') {
            end_argument(open.back());
        } else if (c == ';') {   // a loop's head: its parts are no arguments
            open.back() = {open.back().kind, 0, false};
        } else if (c == ')' || c == '}' || c == ']') {
            end_argument(open.back());
            if (open.back().kind == '(' && open.back().drawn > 1) {
                out.push_back({"chance", file.path(), file.line_of(at), "two draws in one call's arguments: name the first"});
            }
            open.pop_back();
        }
    }
    return out;
}

}  // namespace takt::tidy
