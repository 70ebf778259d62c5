// Pretokenizer: cuts text into the words that byte-pair merging works on, by the rules a tokenizer file names. The
// patterns of the common model families have hand-written scanners (pretokenizer_scan.h); every other pattern runs
// through PCRE2. Immutable after make(), so usable from any thread; the working memory of a call is the caller's. Knows
// no tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/status.h"
#include "model/pretokenizer_pattern.h"

namespace takt {

enum class SplitKind : uint8_t {
    regex,    ///< `pattern` is a regular expression
    literal,  ///< `pattern` is plain text
    digits,   ///< every number character (category N) alone; no pattern
};

/// What becomes of the matches of a rule (names and meanings as in tokenizer.json).
enum class SplitBehavior : uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitRule {
    SplitKind kind = SplitKind::regex;
    std::string pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  ///< the text between matches plays the matches' part

    bool operator==(const SplitRule&) const = default;
};

/// The rules behind a GGUF file's `tokenizer.ggml.pre`. An unknown name is an Error that lists the known ones.
Result<std::vector<SplitRule>> split_rules_by_name(std::string_view name);

/// Half-open byte range of a text. Texts are below 4 GiB.
struct WordSpan {
    uint32_t begin;
    uint32_t end;

    bool operator==(const WordSpan&) const = default;
};

class Pretokenizer {
public:
    /// Compiles the rules, applied one after the other to the pieces the earlier ones left. No rules: one word.
    /// `use_scanners` false forces PCRE2 for all (tests compare the two ways).
    static Result<Pretokenizer> make(std::vector<SplitRule> rules, bool use_scanners = true);

    /// Working memory of split(); reuse it from call to call, one thread at a time.
    struct Scratch {
        std::vector<WordSpan> pieces;
        std::unique_ptr<PatternMemory, PatternMemoryDeleter> memory;
    };

    /// Appends the words of `text` to `words`, in order. Linear in the text for the known patterns.
    void split(std::string_view text, std::vector<WordSpan>& words, Scratch& scratch) const;

    [[nodiscard]] bool uses_scanner() const { return scanner_ != nullptr; }

    /// One step of a known pattern: the end of the word that begins at `position` < text.size().
    using Scanner = size_t (*)(std::string_view text, size_t position);
    /// The hand-written scanner, or nullptr. Lets a caller walk the words without a list of them.
    [[nodiscard]] Scanner scanner() const { return scanner_; }

private:
    struct Rule {
        SplitRule rule;
        Pattern pattern;  ///< empty unless kind is regex
    };

    void apply(const Rule& rule, std::string_view text, WordSpan piece, std::vector<WordSpan>& out,
               Scratch& scratch) const;

    std::vector<Rule> rules_;
    Scanner scanner_ = nullptr;
};

}  // namespace takt
