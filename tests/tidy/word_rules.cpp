// Words that may stand only in certain files, and the form of a file: name, opening comment, include guard.
#include "tidy/rules.h"

#include <regex>

namespace takt::tidy {

namespace {

struct WordRule {
    std::string rule;
    std::regex word;
    std::vector<std::string_view> folders;    // where the rule holds
    std::vector<std::string_view> exceptions; // files that are free of it
    std::string message;
};

const std::vector<WordRule>& word_rules() {
    static const std::vector<WordRule> all = {
        {"clock",
         std::regex(R"(_clock\s*::\s*now\b|\b(clock_gettime|gettimeofday|timespec_get|__rdtsc)\b|\bstd::time\s*\()"),
         {"src", "include"},
         {"src/runtime/clock.cpp", "src/server/clock.cpp", "src/cli/clock.cpp"},
         "clocks are read in the three clock files alone"},
        {"getenv", std::regex(R"(\b(secure_)?getenv\b)"),
         {"src", "include", "examples", "bench"},
         {"src/cli/main.cpp"},
         "the environment is read in main and passed in"},
        {"rand", std::regex(R"(\b(s?rand|rand_r|drand48|lrand48|random_shuffle)\s*\()"),
         {"src", "include", "tests", "bench", "examples"},
         {},
         "chance comes from a seed"},
        {"detached", std::regex(R"(\bdetached\b|\.\s*detach\s*\(\s*\))"),
         {"src", "include", "tests", "bench", "examples"},
         {},
         "every task has an owner and an error sink"},
        {"throw", std::regex(R"(\bthrow\b)"), {"src/kernels", "src/model"}, {}, "no exceptions below src/runtime"},
    };
    return all;
}

// The line comments and block comments of a file, which `code()` blanks, hold the unfinished marks.
void check_unfinished(const SourceFile& file, Findings& out) {
    // Spelt in pieces, so that this file passes its own rule.
    static const std::regex mark(std::string(R"(\b(TO)") + R"(DO|FIX)" + R"(ME|XX)" + R"(X)\b)");
    for (std::size_t i = 0; i < file.lines().size(); ++i) {
        if (std::regex_search(file.lines()[i], mark)) {
            out.push_back({"unfinished", file.path(), i + 1, "finish it or file it"});
        }
    }
}

}  // namespace

Findings check_words(const SourceFile& file) {
    Findings out;
    for (const auto& rule : word_rules()) {
        bool holds = false;
        for (const auto& folder : rule.folders) holds = holds || file.is_under(folder);
        for (const auto& exception : rule.exceptions) holds = holds && file.path() != exception;
        if (!holds) continue;
        const std::string& code = file.code();
        for (auto it = std::sregex_iterator(code.begin(), code.end(), rule.word); it != std::sregex_iterator(); ++it) {
            const std::size_t line = file.line_of(static_cast<std::size_t>(it->position()));
            out.push_back({rule.rule, file.path(), line, rule.message});
        }
    }
    check_unfinished(file, out);
    return out;
}

Findings check_form(const SourceFile& file) {
    static const std::regex snake_case(R"(^[a-z][a-z0-9_]*(\.[a-z]+)+$)");
    static const std::regex vague(R"((^|_)(utils?|helpers?|misc|common)(_|\.))");
    Findings out;
    const std::string name = file.path().substr(file.path().rfind('/') + 1);
    if (!std::regex_search(name, snake_case)) out.push_back({"file-name", file.path(), 0, "not snake_case"});
    if (std::regex_search(name, vague)) out.push_back({"file-name", file.path(), 0, "name the noun it holds"});
    if (file.lines().empty() || !file.lines()[0].starts_with("//")) {
        out.push_back({"opening-comment", file.path(), 1, "say what the file owns and must not know"});
    }
    if (file.is_header() && file.code().find("#pragma once") == std::string::npos) {
        out.push_back({"pragma-once", file.path(), 0, "a header without #pragma once"});
    }
    return out;
}

Findings check_all(const SourceFile& file) {
    Findings out;
    for (const auto rule : {check_includes, check_sizes, check_words, check_form, check_coroutines, check_chance}) {
        const Findings found = rule(file);
        out.insert(out.end(), found.begin(), found.end());
    }
    return out;
}

}  // namespace takt::tidy
