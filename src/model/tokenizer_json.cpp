// tokenizer.json and tokenizer_config.json. Pure; any thread. See tokenizer_json.h.
#include "model/tokenizer_json.h"

#include <algorithm>
#include <boost/json.hpp>
#include <unordered_map>

#include "model/json_keys.h"
#include "model/tokenizer_json_steps.h"
#include "model/tokenizer_vocabulary.h"

namespace takt {
namespace {

using tokenizer_json::flag_of;
using tokenizer_json::member;
using tokenizer_json::Steps;
using tokenizer_json::text_of;

constexpr int64_t kMaxTokens = int64_t{1} << 24;
using TokenIds = std::unordered_map<std::string_view, int32_t>;

/// Only plain BPE: what changes its result beyond that is refused.
Result<bool> read_model_flags(const json::value& model, TokenizerSpec& spec) {
    const std::string_view type = text_of(member(model, "type"), "BPE");
    if (type != "BPE") {
        return Error{"model \"" + std::string(type) + "\" is not available in this version (BPE is)"};
    }
    const json::value* dropout = member(model, "dropout");
    if (dropout != nullptr && !(dropout->is_number() && dropout->to_number<double>() == 0)) {
        return Error{"dropout is not available in this version"};
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        if (!text_of(member(model, key)).empty()) {
            return Error{"" + std::string(key) + " is not available in this version"};
        }
    }
    spec.ignore_merges = flag_of(member(model, "ignore_merges"), false);
    spec.fuse_unknown = flag_of(member(model, "fuse_unk"), false);
    spec.byte_fallback = flag_of(member(model, "byte_fallback"), false);
    return true;
}

Result<bool> set_token(TokenizerSpec& spec, int64_t id, std::string_view text) {
    if (id < 0 || id >= kMaxTokens) {
        return Error{"token id " + std::to_string(id) + " is outside 0 to " +
                     std::to_string(kMaxTokens)};
    }
    const auto index = static_cast<size_t>(id);
    if (index >= spec.tokens.size()) {
        spec.tokens.resize(index + 1);
        spec.types.resize(index + 1, TokenType::unused);
    }
    spec.tokens[index] = text;
    return true;
}

Result<bool> read_vocabulary(const json::value& model, TokenizerSpec& spec) {
    const json::value* vocab = member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object()) return Error{"model.vocab is missing or no object"};
    const json::object& entries = vocab->get_object();
    spec.tokens.reserve(entries.size());
    spec.types.reserve(entries.size());
    for (const auto& [text, id] : entries) {
        if (!id.is_int64()) return Error{"a token id of model.vocab is not a whole number"};
        Result<bool> set = set_token(spec, id.get_int64(), {text.data(), text.size()});
        if (!set) return set;
        spec.types[static_cast<size_t>(id.get_int64())] = TokenType::normal;
    }
    return true;
}

Result<bool> read_added_tokens(const json::value& root, TokenizerSpec& spec) {
    const json::value* added = member(root, "added_tokens");
    if (added == nullptr || added->is_null()) return true;
    if (!added->is_array()) return Error{"added_tokens is no list"};
    for (const json::value& token : added->get_array()) {
        const json::value* id = member(token, "id");
        const std::string_view content = text_of(member(token, "content"));
        if (id == nullptr || !id->is_int64() || content.empty()) {
            return Error{"an added token without id or content"};
        }
        Result<bool> set = set_token(spec, id->get_int64(), content);
        if (!set) return set;
        const auto index = static_cast<size_t>(id->get_int64());
        spec.types[index] = flag_of(member(token, "special"), false) ? TokenType::control : TokenType::user_defined;
        const TokenizerSpec::StripRule rule{static_cast<int32_t>(index), flag_of(member(token, "lstrip"), false),
                                            flag_of(member(token, "rstrip"), false),
                                            flag_of(member(token, "single_word"), false)};
        if (rule.left || rule.right || rule.single_word) spec.strip_rules.push_back(rule);
    }
    return true;
}

int32_t id_of(const TokenIds& ids, std::string_view text) {
    const auto found = ids.find(text);
    return found == ids.end() ? kNoToken : found->second;
}

/// A merge is ["left", "right"] in new files, "left right" in old ones.
Result<bool> read_merges(const json::value& model, const TokenIds& ids, TokenizerSpec& spec) {
    const json::value* merges = member(model, "merges");
    if (merges == nullptr || !merges->is_array()) return Error{"model.merges is missing or no list"};
    spec.merge_ids.reserve(merges->get_array().size());
    for (const json::value& merge : merges->get_array()) {
        std::string_view left, right;
        if (merge.is_array() && merge.get_array().size() == 2) {
            left = text_of(&merge.get_array()[0]);
            right = text_of(&merge.get_array()[1]);
        } else {
            const std::string_view text = text_of(&merge);
            const size_t space = text.find(' ', 1);
            if (space != std::string_view::npos) {
                left = text.substr(0, space);
                right = text.substr(space + 1);
            }
        }
        spec.merge_ids.emplace_back(id_of(ids, left), id_of(ids, right));
        if (spec.merge_ids.back().first == kNoToken || spec.merge_ids.back().second == kNoToken) {
            return Error{"merge " + std::to_string(spec.merge_ids.size() - 1) +
                         " is not a pair of tokens of the vocabulary"};
        }
    }
    return true;
}

Result<bool> finish(const json::value& model, const TokenIds& ids, const Steps& steps, TokenizerSpec& spec) {
    if (steps.byte_level == steps.space_marks) {
        return Error{
            "only ByteLevel files and files that spell spaces as U+2581 are available in this "
            "version"};
    }
    spec.kind = steps.byte_level ? TokenizerKind::bpe_byte_level : TokenizerKind::spm_bpe;
    if (spec.kind == TokenizerKind::spm_bpe && spec.split_rules.size() == 1 &&
        spec.split_rules[0].kind == SplitKind::literal && spec.split_rules[0].pattern == " ") {
        spec.split_rules.clear();  // no space is left after the normaliser, so the rule never cuts
    }
    const std::string_view unknown = text_of(member(model, "unk_token"));
    if (!unknown.empty()) {
        spec.unknown_id = id_of(ids, unknown);
        spec.use_unknown = spec.unknown_id != kNoToken;
    }
    for (const auto& [text, id, wanted] :
         {std::tie(steps.bos, spec.bos_id, spec.add_bos), std::tie(steps.eos, spec.eos_id, spec.add_eos)}) {
        if (text.empty()) continue;
        id = id_of(ids, text);
        wanted = true;
        if (id == kNoToken) {
            return Error{"the post_processor's token \"" + text + "\" is not in the vocabulary"};
        }
    }
    return true;
}

/// A token name is a string, or an object with "content".
std::optional<std::string> token_name(const json::value& root, std::string_view key) {
    const json::value* value = member(root, key);
    if (value == nullptr) return std::nullopt;
    const std::string_view name = value->is_object() ? text_of(member(*value, "content")) : text_of(value);
    if (name.empty()) return std::nullopt;
    return std::string(name);
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view text) {
    json::monotonic_resource memory;
    Result<json::object> document = parse_object(text, &memory);
    if (!document) return Error{document.error()};
    const json::value root = std::move(document.value());
    const json::value* model = member(root, "model");
    if (model == nullptr) return Error{"no \"model\""};
    TokenizerSpec spec;
    Steps steps;
    for (Result<bool> done :
         {read_model_flags(*model, spec), read_normalizer(root, spec, steps), read_pre_tokenizer(root, spec, steps),
          read_post_processor(root, steps), read_decoder(root, spec, steps), read_vocabulary(*model, spec)}) {
        if (!done) return Error{done.error()};
    }
    TokenIds ids;  // before the added tokens, which may reuse an id with another spelling
    ids.reserve(spec.tokens.size());
    for (const auto& [token, id] : member(*model, "vocab")->get_object()) {
        ids.emplace(std::string_view(token.data(), token.size()), static_cast<int32_t>(id.get_int64()));
    }
    Result<bool> merges = read_merges(*model, ids, spec);
    if (!merges) return Error{merges.error()};
    Result<bool> added = read_added_tokens(root, spec);
    if (!added) return Error{added.error()};
    for (size_t id = 0; id < spec.tokens.size(); ++id) {
        if (!spec.tokens[id].empty()) ids.emplace(spec.tokens[id], static_cast<int32_t>(id));
    }
    Result<bool> finished = finish(*model, ids, steps, spec);
    if (!finished) return Error{finished.error()};
    return spec;
}

Result<TokenizerConfigFile> parse_tokenizer_config(std::string_view text) {
    Result<json::object> document = parse_object(text);
    if (!document) return Error{document.error()};
    const json::value root = std::move(document.value());
    TokenizerConfigFile out;
    out.bos_token = token_name(root, "bos_token");
    out.eos_token = token_name(root, "eos_token");
    out.unknown_token = token_name(root, "unk_token");
    out.pad_token = token_name(root, "pad_token");
    if (const json::value* flag = member(root, "add_bos_token"); flag != nullptr && flag->is_bool()) {
        out.add_bos = flag->get_bool();
    }
    const json::value* chat = member(root, "chat_template");
    if (chat != nullptr && chat->is_array()) {  // [{"name", "template"}]
        for (const json::value& named : chat->get_array()) {
            const bool wanted = out.chat_template.empty() || text_of(member(named, "name")) == "default";
            if (wanted) out.chat_template = text_of(member(named, "template"));
        }
    } else {
        out.chat_template = text_of(chat);
    }
    return out;
}

Result<bool> apply_tokenizer_config(const TokenizerConfigFile& config, TokenizerSpec& spec) {
    const auto set = [&spec](const std::optional<std::string>& name, int32_t& id) {
        if (!name) return true;
        const auto found = std::find(spec.tokens.begin(), spec.tokens.end(), *name);
        if (found == spec.tokens.end()) return false;
        id = static_cast<int32_t>(found - spec.tokens.begin());
        return true;
    };
    const auto missing = [](const std::string& name) {
        return Error{"token \"" + name + "\" is not in the vocabulary"};
    };
    if (!set(config.bos_token, spec.bos_id)) return missing(*config.bos_token);
    if (!set(config.eos_token, spec.eos_id)) return missing(*config.eos_token);
    if (!set(config.pad_token, spec.pad_id)) return missing(*config.pad_token);
    if (!set(config.unknown_token, spec.unknown_id)) return missing(*config.unknown_token);
    if (config.add_bos) spec.add_bos = *config.add_bos && spec.bos_id >= 0;
    return true;
}

}  // namespace takt
