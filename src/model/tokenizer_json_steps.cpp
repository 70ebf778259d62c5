// Normaliser, pre-tokenizer, post-processor and decoder of tokenizer.json. Pure; any thread.
#include "model/tokenizer_json_steps.h"

#include <boost/json.hpp>
#include <functional>

#include "model/pretokenizer_scan.h"
#include "model/tokenizer_vocabulary.h"

namespace takt::tokenizer_json {
namespace {

namespace json = boost::json;

Error unsupported(std::string_view part, std::string_view what) {
    return Error{"" + std::string(part) + " \"" + std::string(what) +
                 "\" is not available in this version"};
}

/// Calls `read` for the step, or for each member of a Sequence (nested at most eight deep).
Result<bool> for_each_step(const json::value& step, std::string_view list_key, int depth,
                           const std::function<Result<bool>(const json::value&)>& read) {
    if (type_of(step) != "Sequence") return read(step);
    const json::value* list = member(step, list_key);
    if (list == nullptr || !list->is_array() || depth > 8) {
        return Error{"a Sequence without \"" + std::string(list_key) + "\", or nested too deep"};
    }
    for (const json::value& inner : list->as_array()) {
        Result<bool> done = for_each_step(inner, list_key, depth + 1, read);
        if (!done) return done;
    }
    return true;
}

/// The `String` of a pattern object, or of the plain string that older files have.
std::string_view literal_of(const json::value* pattern) {
    if (pattern == nullptr) return {};
    return pattern->is_string() ? text_of(pattern) : text_of(member(*pattern, "String"));
}

Result<bool> read_behavior(std::string_view name, SplitBehavior& behavior) {
    if (name == "Isolated")
        behavior = SplitBehavior::isolated;
    else if (name == "Removed")
        behavior = SplitBehavior::removed;
    else if (name == "MergedWithPrevious")
        behavior = SplitBehavior::merged_with_previous;
    else if (name == "MergedWithNext")
        behavior = SplitBehavior::merged_with_next;
    else if (name == "Contiguous")
        behavior = SplitBehavior::contiguous;
    else
        return unsupported("split behaviour", name);
    return true;
}

Result<bool> read_split(const json::value& step, TokenizerSpec& spec) {
    SplitRule rule;
    const json::value* pattern = member(step, "pattern");
    const std::string_view regex = pattern == nullptr ? std::string_view{} : text_of(member(*pattern, "Regex"));
    rule.kind = regex.empty() ? SplitKind::literal : SplitKind::regex;
    rule.pattern = regex.empty() ? literal_of(pattern) : regex;
    rule.invert = flag_of(member(step, "invert"), false);
    const Result<bool> behavior = read_behavior(text_of(member(step, "behavior")), rule.behavior);
    if (!behavior) return behavior;
    if (rule.pattern.empty()) return Error{"a Split without a pattern"};
    spec.split_rules.push_back(std::move(rule));
    return true;
}

Result<bool> read_byte_level(const json::value& step, TokenizerSpec& spec, Steps& steps) {
    steps.byte_level = true;
    if (flag_of(member(step, "add_prefix_space"), true)) {
        if (!spec.split_rules.empty()) return unsupported("ByteLevel", "add_prefix_space after another pre-tokenizer");
        spec.prefix_space = true;
    }
    if (flag_of(member(step, "use_regex"), true)) {
        spec.split_rules.push_back({SplitKind::regex, std::string(kGpt2Pattern), SplitBehavior::isolated, false});
    }
    return true;
}

Result<bool> read_metaspace(const json::value& step, TokenizerSpec& spec, Steps& steps) {
    const std::string_view mark = text_of(member(step, "replacement"), kSpaceMark);
    if (mark != kSpaceMark) return unsupported("Metaspace replacement", mark);
    steps.space_marks = true;
    spec.prefixes_spaces = false;
    const std::string_view scheme = text_of(member(step, "prepend_scheme"));
    if (scheme == "first")
        spec.space_prefix = SpacePrefix::at_start;
    else if (scheme == "always")
        spec.space_prefix = SpacePrefix::after_special;
    else if (scheme == "never")
        spec.space_prefix = SpacePrefix::never;
    else if (flag_of(member(step, "add_prefix_space"), true))
        spec.space_prefix = SpacePrefix::after_special;
    if (flag_of(member(step, "split"), true)) {
        spec.split_rules.push_back(
            {SplitKind::literal, std::string(kSpaceMark), SplitBehavior::merged_with_next, false});
    }
    return true;
}

/// TemplateProcessing's `single`: special tokens, the text, special tokens. At most one on each side.
Result<bool> read_template(const json::value& step, Steps& steps) {
    const json::value* single = member(step, "single");
    if (single == nullptr || !single->is_array()) return Error{"TemplateProcessing without \"single\""};
    bool seen_text = false;
    for (const json::value& item : single->as_array()) {
        if (member(item, "Sequence") != nullptr) {
            seen_text = true;
            continue;
        }
        const json::value* special = member(item, "SpecialToken");
        if (special == nullptr) return unsupported("TemplateProcessing piece", json::serialize(item));
        std::string& side = seen_text ? steps.eos : steps.bos;
        if (!side.empty()) return unsupported("TemplateProcessing", "several special tokens on one side");
        side = text_of(member(*special, "id"));
    }
    return true;
}

}  // namespace

const json::value* member(const json::value& object, std::string_view key) {
    if (!object.is_object()) return nullptr;
    const json::value* found = object.as_object().if_contains(json::string_view(key.data(), key.size()));
    return found == nullptr || found->is_null() ? nullptr : found;
}

std::string_view text_of(const json::value* value, std::string_view fallback) {
    if (value == nullptr || !value->is_string()) return fallback;
    const json::string& text = value->get_string();
    return {text.data(), text.size()};
}

bool flag_of(const json::value* value, bool fallback) {
    return value == nullptr || !value->is_bool() ? fallback : value->get_bool();
}

std::string_view type_of(const json::value& step) { return text_of(member(step, "type")); }

Result<bool> read_normalizer(const json::value& root, TokenizerSpec& spec, Steps& steps) {
    const json::value* normalizer = member(root, "normalizer");
    if (normalizer == nullptr) return true;
    return for_each_step(*normalizer, "normalizers", 0, [&](const json::value& step) -> Result<bool> {
        const std::string_view type = type_of(step);
        if (type == "NFC") {
            spec.nfc = true;
        } else if (type == "Prepend" && text_of(member(step, "prepend")) == kSpaceMark) {
            spec.space_prefix = SpacePrefix::after_special;
        } else if (type == "Replace" && literal_of(member(step, "pattern")) == " " &&
                   text_of(member(step, "content")) == kSpaceMark) {
            steps.space_marks = true;
        } else {
            return unsupported("normalizer", type == "Replace" || type == "Prepend" ? json::serialize(step) : type);
        }
        return true;
    });
}

Result<bool> read_pre_tokenizer(const json::value& root, TokenizerSpec& spec, Steps& steps) {
    const json::value* pre_tokenizer = member(root, "pre_tokenizer");
    if (pre_tokenizer == nullptr) return true;
    return for_each_step(*pre_tokenizer, "pretokenizers", 0, [&](const json::value& step) -> Result<bool> {
        const std::string_view type = type_of(step);
        if (type == "Split") return read_split(step, spec);
        if (type == "ByteLevel") return read_byte_level(step, spec, steps);
        if (type == "Metaspace") return read_metaspace(step, spec, steps);
        if (type == "Digits") {
            const bool alone = flag_of(member(step, "individual_digits"), false);
            spec.split_rules.push_back({SplitKind::digits, "", alone ? SplitBehavior::isolated : SplitBehavior::contiguous, false});
            return true;
        }
        return unsupported("pre_tokenizer", type);
    });
}

Result<bool> read_post_processor(const json::value& root, Steps& steps) {
    const json::value* post = member(root, "post_processor");
    if (post == nullptr) return true;
    return for_each_step(*post, "processors", 0, [&](const json::value& step) -> Result<bool> {
        const std::string_view type = type_of(step);
        if (type == "ByteLevel") return true;  // moves offsets only
        if (type == "TemplateProcessing") return read_template(step, steps);
        return unsupported("post_processor", type);
    });
}

Result<bool> read_decoder(const json::value& root, TokenizerSpec& spec, Steps& steps) {
    const json::value* decoder = member(root, "decoder");
    if (decoder == nullptr) return true;
    return for_each_step(*decoder, "decoders", 0, [&](const json::value& step) -> Result<bool> {
        const std::string_view type = type_of(step);
        if (type == "ByteLevel") {
            steps.byte_level = true;
        } else if (type == "Metaspace") {
            spec.strip_leading_space = spec.space_prefix != SpacePrefix::never;
        } else if (type == "Strip") {
            const json::value* start = member(step, "start");
            const json::value* stop = member(step, "stop");
            const bool one_space = text_of(member(step, "content")) == " " && start != nullptr && *start == 1 &&
                                   (stop == nullptr || *stop == 0);
            if (!one_space) return unsupported("decoder", json::serialize(step));
            spec.strip_leading_space = true;
        } else if (type == "Replace") {
            const bool marks =
                literal_of(member(step, "pattern")) == kSpaceMark && text_of(member(step, "content")) == " ";
            if (!marks) return unsupported("decoder", json::serialize(step));
        } else if (type != "ByteFallback" && type != "Fuse") {
            return unsupported("decoder", type);
        }
        return true;
    });
}

}  // namespace takt::tokenizer_json
