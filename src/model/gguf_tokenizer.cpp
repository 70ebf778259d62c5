// tokenizer.ggml.* keys of a GGUF file as a TokenizerSpec, and the built-in byte vocabulary. See model_file.h.
#include <algorithm>

#include "model/model_file.h"
#include "model/tokenizer_vocabulary.h"

namespace takt {
namespace {

struct Ids {
    const GgufFile& file;
    int64_t vocab;
    std::string error;
    int32_t read(const char* key) {
        const auto found = file.integer(key, -1, UINT32_MAX);
        if (!found) {
            error = found.error();
            return -1;
        }
        // Several writers put an id beyond the vocabulary where the model has none.
        if (!found.value() || *found.value() >= vocab) return -1;
        return static_cast<int32_t>(*found.value());
    }
    bool flag(const char* key, bool otherwise) {
        const auto found = file.flag(key);
        if (!found) {
            error = found.error();
            return otherwise;
        }
        return found.value().value_or(otherwise);
    }
};

std::optional<Error> read_tables(const GgufFile& file, TokenizerSpec& spec) {
    auto tokens = file.texts("tokenizer.ggml.tokens");
    if (!tokens) return Error{tokens.error()};
    if (!tokens.value()) return Error{file.path() + ": key \"tokenizer.ggml.tokens\" is missing"};
    spec.tokens = std::move(*tokens.value());
    const auto types = file.integers("tokenizer.ggml.token_type");
    if (!types) return Error{types.error()};
    if (types.value()) {
        for (int64_t type : *types.value()) {
            if (type < 0 || type > 6) {
                return Error{file.path() + ": tokenizer.ggml.token_type: " + std::to_string(type) + " found, 1 to 6 expected"};
            }
            spec.types.push_back(static_cast<TokenType>(std::max<int64_t>(type, 1)));
        }
        if (spec.types.size() != spec.tokens.size()) {
            return Error{file.path() + ": tokenizer.ggml.token_type has " + std::to_string(spec.types.size()) + " entries, " +
                         std::to_string(spec.tokens.size()) + " expected"};
        }
    }
    const auto scores = file.floats("tokenizer.ggml.scores");
    if (!scores) return Error{scores.error()};
    if (scores.value()) spec.scores = *scores.value();
    auto merges = file.texts("tokenizer.ggml.merges");
    if (!merges) return Error{merges.error()};
    if (merges.value()) spec.merge_texts = std::move(*merges.value());
    return std::nullopt;
}

}  // namespace

Result<TokenizerSpec> read_tokenizer_spec(const GgufFile& file) {
    TokenizerSpec spec;
    const auto model = file.text("tokenizer.ggml.model");
    if (!model) return Error{model.error()};
    if (!model.value()) return Error{file.path() + ": key \"tokenizer.ggml.model\" is missing"};
    if (auto error = read_tables(file, spec)) return *error;
    Ids ids{file, static_cast<int64_t>(spec.tokens.size()), {}};
    if (*model.value() == "gpt2") {
        spec.kind = TokenizerKind::bpe_byte_level;
        const auto pre = file.text("tokenizer.ggml.pre");
        if (!pre) return Error{pre.error()};
        Result<std::vector<SplitRule>> rules = split_rules_by_name(pre.value() ? *pre.value() : "default");
        if (!rules) return Error{file.path() + ": tokenizer.ggml.pre: " + rules.error()};
        spec.split_rules = std::move(rules).value();
        spec.add_bos = ids.flag("tokenizer.ggml.add_bos_token", false);
        // What the original tokenizers of these families do besides and GGUF does not say.
        const std::string_view name = pre.value() ? std::string_view(*pre.value()) : std::string_view();
        spec.ignore_merges = name == "llama-bpe" || name == "llama3" || name == "llama-v3" || name == "tekken";
        spec.nfc = name == "qwen2" || name == "deepseek-r1-qwen";
    } else if (*model.value() == "llama") {
        spec.kind = TokenizerKind::spm_bpe;
        spec.add_bos = ids.flag("tokenizer.ggml.add_bos_token", true);
        spec.space_prefix = ids.flag("tokenizer.ggml.add_space_prefix", true) ? SpacePrefix::after_special : SpacePrefix::never;
        spec.strip_leading_space = spec.space_prefix != SpacePrefix::never;
    } else {
        return Error{file.path() + ": tokenizer \"" + std::string(*model.value()) + "\" is not available in this version"};
    }
    spec.add_eos = ids.flag("tokenizer.ggml.add_eos_token", false);
    spec.bos_id = ids.read("tokenizer.ggml.bos_token_id");
    spec.eos_id = ids.read("tokenizer.ggml.eos_token_id");
    spec.unknown_id = ids.read("tokenizer.ggml.unknown_token_id");
    spec.pad_id = ids.read("tokenizer.ggml.padding_token_id");
    for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
        const int32_t id = ids.read(key);
        if (id >= 0) spec.end_of_generation_ids.push_back(id);
    }
    if (!ids.error.empty()) return Error{ids.error};
    if (spec.bos_id < 0) spec.add_bos = false;
    if (spec.eos_id < 0) spec.add_eos = false;
    return spec;
}

TokenizerSpec byte_tokenizer_spec() {
    TokenizerSpec spec;
    spec.kind = TokenizerKind::bpe_byte_level;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        spec.tokens.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
        spec.types.push_back(TokenType::normal);
    }
    spec.tokens.emplace_back("<|end|>");
    spec.types.push_back(TokenType::control);
    spec.eos_id = 256;
    return spec;
}

const char* byte_chat_template() {
    return "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
           "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
}

}  // namespace takt
