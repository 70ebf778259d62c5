// Rules to words. Immutable after make(); any thread. See pretokenizer.h.
#include "model/pretokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/pretokenizer_scan.h"
#include "model/unicode.h"

namespace takt {
namespace {

/// Mistral's Tekken: words change at a lower-to-upper step, every number alone.
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// OpenAI's o200k: the same idea with contractions behind the word and numbers by three.
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct NamedRules {
    std::string_view name;
    bool digits_alone;
    std::string_view pattern;
};

constexpr std::array kNamedRules{
    NamedRules{"gpt-2", false, kGpt2Pattern},        NamedRules{"mpt", false, kGpt2Pattern},
    NamedRules{"olmo", false, kGpt2Pattern},         NamedRules{"jais", false, kGpt2Pattern},
    NamedRules{"smollm", true, kGpt2Pattern},        NamedRules{"starcoder", true, kGpt2Pattern},
    NamedRules{"refact", true, kGpt2Pattern},        NamedRules{"command-r", true, kGpt2Pattern},
    NamedRules{"llama-bpe", false, kLlama3Pattern},  NamedRules{"llama3", false, kLlama3Pattern},
    NamedRules{"llama-v3", false, kLlama3Pattern},   NamedRules{"smaug-bpe", false, kLlama3Pattern},
    NamedRules{"dbrx", false, kLlama3Pattern},       NamedRules{"qwen2", false, kQwen2Pattern},
    NamedRules{"stablelm2", false, kQwen2Pattern},   NamedRules{"deepseek-r1-qwen", false, kQwen2Pattern},
    NamedRules{"tekken", false, kTekkenPattern},     NamedRules{"gpt-4o", false, kO200kPattern},
};

Pretokenizer::Scanner known_scanner(const std::vector<SplitRule>& rules) {
    const auto is_regex = [](const SplitRule& rule, std::string_view pattern) {
        return rule == SplitRule{SplitKind::regex, std::string(pattern), SplitBehavior::isolated, false};
    };
    if (rules.size() == 1) {
        if (is_regex(rules[0], kGpt2Pattern)) return scan_gpt2;
        if (is_regex(rules[0], kLlama3Pattern)) return scan_llama3;
        if (is_regex(rules[0], kQwen2Pattern)) return scan_qwen2;
    }
    const SplitRule digits{SplitKind::digits, "", SplitBehavior::isolated, false};
    if (rules.size() == 2 && rules[0] == digits && is_regex(rules[1], kGpt2Pattern)) return scan_digits_gpt2;
    return nullptr;
}

/// Turns the alternation of matches and gaps of one piece into the words that a behaviour makes of them.
class PieceWriter {
public:
    PieceWriter(SplitBehavior behavior, std::vector<WordSpan>& out) : behavior_(behavior), out_(out) {}

    /// Matches may be empty and are then cuts; what is empty in `out` at the end is no word.
    void add(uint32_t begin, uint32_t end, bool is_match) {
        const bool joins = has_last_ && joins_last(is_match);
        if (behavior_ == SplitBehavior::removed && is_match) {
            has_last_ = false;
        } else if (joins) {
            out_.back().end = end;
        } else {
            out_.push_back({begin, end});
            has_last_ = true;
        }
        last_is_match_ = is_match;
    }

private:
    /// A text joins what is before it when the behaviour says so; each side takes one partner.
    [[nodiscard]] bool joins_last(bool is_match) const {
        switch (behavior_) {
            case SplitBehavior::merged_with_previous: return is_match && !last_is_match_;
            case SplitBehavior::merged_with_next: return !is_match && last_is_match_;
            case SplitBehavior::contiguous: return is_match == last_is_match_;
            default: return false;
        }
    }

    SplitBehavior behavior_;
    std::vector<WordSpan>& out_;
    bool has_last_ = false;
    bool last_is_match_ = false;
};

using Found = std::optional<std::pair<size_t, size_t>>;

Found find_literal(std::string_view text, std::string_view literal, size_t from) {
    const size_t at = text.find(literal, from);
    if (at == std::string_view::npos) return std::nullopt;
    return std::pair{at, at + literal.size()};
}

Found find_number(std::string_view text, size_t from) {
    while (from < text.size()) {
        const DecodedCharacter c = decode_utf8(text, from);
        if (c.valid && character_class(c.code_point) == CharacterClass::number) return std::pair{from, from + c.size};
        from += c.size;
    }
    return std::nullopt;
}

}  // namespace

Result<std::vector<SplitRule>> split_rules_by_name(std::string_view name) {
    std::string known;
    for (const NamedRules& entry : kNamedRules) {
        if (entry.name == name) {
            std::vector<SplitRule> rules;
            if (entry.digits_alone) rules.push_back({SplitKind::digits, "", SplitBehavior::isolated, false});
            rules.push_back({SplitKind::regex, std::string(entry.pattern), SplitBehavior::isolated, false});
            return rules;
        }
        known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    return Error{"pre-tokenizer \"" + std::string(name) + "\" is not available in this version (known: " + known + ")"};
}

Result<Pretokenizer> Pretokenizer::make(std::vector<SplitRule> rules, bool use_scanners) {
    Pretokenizer out;
    if (use_scanners) out.scanner_ = known_scanner(rules);
    for (SplitRule& rule : rules) {
        Rule compiled{std::move(rule), {}};
        if (compiled.rule.kind == SplitKind::literal && compiled.rule.pattern.empty()) {
            return Error{"pre-tokenizer: an empty text to split at"};
        }
        if (compiled.rule.kind == SplitKind::regex && out.scanner_ == nullptr) {
            Result<Pattern> pattern = Pattern::compile(compiled.rule.pattern);
            if (!pattern) return Error{pattern.error()};
            compiled.pattern = std::move(pattern).value();
        }
        out.rules_.push_back(std::move(compiled));
    }
    return out;
}

void Pretokenizer::apply(const Rule& rule, std::string_view text, WordSpan piece, std::vector<WordSpan>& out,
                         Scratch& scratch) const {
    const std::string_view subject = text.substr(piece.begin, piece.end - piece.begin);
    PieceWriter writer(rule.rule.behavior, out);
    const size_t num_before = out.size();
    const auto add = [&](size_t begin, size_t end, bool is_match) {
        if (begin == end && !is_match) return;
        writer.add(piece.begin + static_cast<uint32_t>(begin), piece.begin + static_cast<uint32_t>(end),
                   is_match != rule.rule.invert);
    };
    size_t done = 0;   // everything before is in `out`
    size_t from = 0;   // where the next search starts; past `done` only after an empty match
    bool has_match = false, has_empty = false;
    while (from <= subject.size() && !subject.empty()) {
        Found found;
        switch (rule.rule.kind) {
            case SplitKind::regex: found = rule.pattern.find(subject, from, *scratch.memory); break;
            case SplitKind::literal: found = find_literal(subject, rule.rule.pattern, from); break;
            case SplitKind::digits: found = find_number(subject, from); break;
        }
        if (!found) break;
        const bool is_empty = found->first == found->second;
        if (!is_empty || found->first != done || !has_match) {  // an empty match right behind another is none
            add(done, found->first, false);
            add(found->first, found->second, true);
            has_match = true;
            has_empty = has_empty || is_empty;
            done = from = found->second;
        }
        if (is_empty) {
            if (found->second >= subject.size()) break;
            from = found->second + decode_utf8(subject, found->second).size;
        }
    }
    add(done, subject.size(), false);
    if (!has_empty) return;
    const auto is_no_word = [](const WordSpan& word) { return word.begin == word.end; };
    out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(num_before), out.end(), is_no_word), out.end());
}

void Pretokenizer::split(std::string_view text, std::vector<WordSpan>& words, Scratch& scratch) const {
    if (text.empty()) return;
    if (scanner_ != nullptr) {
        for (size_t begin = 0; begin < text.size();) {
            const size_t end = scanner_(text, begin);
            words.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
            begin = end;
        }
        return;
    }
    if (scratch.memory == nullptr) scratch.memory = make_pattern_memory();
    const size_t first = words.size();
    words.push_back({0, static_cast<uint32_t>(text.size())});
    for (const Rule& rule : rules_) {
        scratch.pieces.assign(words.begin() + static_cast<std::ptrdiff_t>(first), words.end());
        words.resize(first);
        for (const WordSpan& piece : scratch.pieces) apply(rule, text, piece, words, scratch);
    }
}

}  // namespace takt
