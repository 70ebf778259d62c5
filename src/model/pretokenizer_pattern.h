// Pattern: one compiled PCRE2 expression over UTF-8, with JIT code where the machine allows it. The only place that
// knows PCRE2. Immutable after compile(); a PatternMemory belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/status.h"

namespace takt {

struct PatternMemory;  ///< PCRE2 match data, JIT stack and limits
struct PatternMemoryDeleter {
    void operator()(PatternMemory* memory) const;
};
struct PatternCode;
struct PatternCodeDeleter {
    void operator()(PatternCode* code) const;
};

std::unique_ptr<PatternMemory, PatternMemoryDeleter> make_pattern_memory();

class Pattern {
public:
    Pattern() = default;

    /// `\s` and `\S` mean the White_Space property (PCRE2's own \s also takes U+180E); `\w` and `\W` know marks, and `^`
    /// and `$` match at every line, as in the expressions of tokenizer.json. Ill-formed UTF-8 in a subject matches nothing.
    static Result<Pattern> compile(std::string_view expression);

    /// First match at or after `from`, as [begin, end) in bytes; lookbehind and lookahead see `text` only. Nothing when
    /// there is none or when the expression hits its match limit (a hostile pattern, not a hostile text).
    [[nodiscard]] std::optional<std::pair<size_t, size_t>> find(std::string_view text, size_t from,
                                                                PatternMemory& memory) const;

    [[nodiscard]] bool empty() const { return code_ == nullptr; }

private:
    std::unique_ptr<PatternCode, PatternCodeDeleter> code_;
};

}  // namespace takt
