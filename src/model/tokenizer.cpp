// The public face of the tokenizer: added tokens, BOS, decoding. See tokenizer.h.
#include "model/tokenizer.h"

#include <algorithm>
#include <array>

#include "model/tokenizer_parts.h"
#include "model/unicode.h"

namespace takt {
namespace {

/// Control tokens by which the known model families end an answer, beside the file's own end token.
constexpr std::array<std::string_view, 12> kEndNames{
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",  "<|endoftext|>", "<|end_of_text|>",
    "<end_of_turn>", "<|return|>", "<|call|>", "<EOT>", "</s>", "<end_of_utterance>"};

Result<bool> check_ids(const TokenizerSpec& spec) {
    const auto count = static_cast<int64_t>(spec.tokens.size());
    const auto named = [&](const char* name, int32_t id) {
        return "tokenizer: " + std::string(name) + " token " + std::to_string(id) + " is outside the vocabulary of " +
               std::to_string(count);
    };
    const std::array<std::pair<const char*, int32_t>, 4> ids{
        {{"begin", spec.bos_id}, {"end", spec.eos_id}, {"unknown", spec.unknown_id}, {"padding", spec.pad_id}}};
    for (const auto& [name, id] : ids) {
        if (id < -1 || id >= count) return Error{named(name, id)};
    }
    for (const int32_t id : spec.end_of_generation_ids) {
        if (id < 0 || id >= count) return Error{named("end-of-generation", id)};
    }
    if (spec.add_bos && spec.bos_id < 0) return Error{"tokenizer: a begin token is to be added, but there is none"};
    if (spec.use_unknown && spec.unknown_id < 0) return Error{"tokenizer: no unknown token, but one is to be used"};
    return true;
}

void collect_added(const TokenizerSpec& spec, Tokenizer::Parts& parts) {
    for (int32_t id = 0; id < parts.vocabulary.size(); ++id) {
        const TokenType type = parts.vocabulary.type(id);
        if (is_control(type) || type == TokenType::user_defined) {
            parts.added.add(parts.vocabulary.text(id), id, is_control(type));
        }
    }
    for (const auto& rule : spec.strip_rules) parts.added.set_strip(rule);
}

void collect_ends(const TokenizerSpec& spec, Tokenizer::Parts& parts) {
    std::vector<int32_t>& ends = parts.end_of_generation_ids;
    ends = spec.end_of_generation_ids;
    if (spec.eos_id >= 0) ends.push_back(spec.eos_id);
    for (int32_t id = 0; id < parts.vocabulary.size(); ++id) {
        if (!is_control(parts.vocabulary.type(id))) continue;
        const bool known = std::find(kEndNames.begin(), kEndNames.end(), parts.vocabulary.text(id)) != kEndNames.end();
        if (known) ends.push_back(id);
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

}  // namespace

Result<Tokenizer> make_tokenizer(const TokenizerSpec& spec) {
    if (const Result<bool> checked = check_ids(spec); !checked) return Error{checked.error()};
    auto parts = std::make_unique<Tokenizer::Parts>();
    Result<Vocabulary> vocabulary = Vocabulary::make(spec);
    if (!vocabulary) return Error{vocabulary.error()};
    parts->vocabulary = std::move(vocabulary).value();
    Result<MergeTable> merges = MergeTable::make(spec, parts->vocabulary);
    if (!merges) return Error{merges.error()};
    parts->merges = std::move(merges).value();
    Result<Pretokenizer> pretokenizer = Pretokenizer::make(spec.split_rules);
    if (!pretokenizer) return Error{pretokenizer.error()};
    parts->pretokenizer = std::move(pretokenizer).value();
    collect_added(spec, *parts);
    collect_ends(spec, *parts);
    parts->options = spec;
    return Tokenizer(std::move(parts));
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
    const TextPiece piece{text, options.parse_special};
    return encode_pieces({&piece, 1}, options);
}

std::vector<int32_t> Tokenizer::encode_pieces(std::span<const TextPiece> pieces, const EncodeOptions& options) const {
    std::string joined;
    std::string_view text;
    if (pieces.size() == 1) {
        text = pieces[0].text;
    } else {
        for (const TextPiece& piece : pieces) joined += piece.text;
        text = joined;
    }
    std::vector<TrustedRange> trusted;
    size_t position = 0;
    for (const TextPiece& piece : pieces) {
        const size_t end = position + piece.text.size();
        if (piece.parse_special && end != position) {
            const bool adjoins = !trusted.empty() && trusted.back().end == position;
            if (adjoins) {
                trusted.back().end = end;
            } else {
                trusted.push_back({position, end});
            }
        }
        position = end;
    }

    std::vector<int32_t> ids;
    ids.reserve(text.size() / 4 + 8);
    const bool wants_bos = parts_->options.add_bos && options.bos != BosPolicy::never;
    if (wants_bos) ids.push_back(bos());
    std::unique_ptr<EncodeScratch> scratch = parts_->take_scratch();
    size_t done = 0;
    AddedTokens::Match match{};
    while (parts_->added.find(text, match.next, done, trusted, match)) {
        parts_->encode_segment(text.substr(done, match.begin - done), done == 0, *scratch, ids);
        ids.push_back(match.id);
        done = match.end;
    }
    parts_->encode_segment(text.substr(done), done == 0, *scratch, ids);
    parts_->give_scratch(std::move(scratch));

    const bool doubled = wants_bos && options.bos == BosPolicy::unless_present && ids.size() > 1 && ids[1] == bos();
    if (doubled) ids.erase(ids.begin());
    if (options.eos && parts_->options.add_eos && eos() >= 0) ids.push_back(eos());
    return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
    std::string bytes;
    for (const int32_t id : ids) {
        if (skip_special && is_special(id)) continue;
        append_token_text(id, bytes);
    }
    std::string_view text = bytes;
    if (parts_->options.strip_leading_space && text.starts_with(' ')) text.remove_prefix(1);
    std::string out;
    out.reserve(text.size());
    append_valid_utf8(out, text);
    return out;
}

void Tokenizer::append_token_text(int32_t id, std::string& out) const {
    if (contains(id)) parts_->vocabulary.append_bytes(id, out);
}

std::string Tokenizer::token_text(int32_t id) const {
    std::string out;
    append_token_text(id, out);
    return out;
}

bool Tokenizer::is_special(int32_t id) const { return contains(id) && is_control(parts_->vocabulary.type(id)); }

bool Tokenizer::is_end_of_generation(int32_t id) const {
    const auto ends = end_of_generation_ids();
    return std::binary_search(ends.begin(), ends.end(), id);
}

bool Tokenizer::contains(int32_t id) const { return parts_->vocabulary.contains(id); }

std::optional<int32_t> Tokenizer::find_token(std::string_view spelling) const {
    const int32_t id = parts_->vocabulary.find_any(spelling);
    return id == kNoToken ? std::nullopt : std::optional(id);
}

int32_t Tokenizer::vocab_size() const { return parts_->vocabulary.size(); }
int32_t Tokenizer::bos() const { return parts_->options.bos_id; }
int32_t Tokenizer::eos() const { return parts_->options.eos_id; }
int32_t Tokenizer::pad() const { return parts_->options.pad_id; }
int32_t Tokenizer::unknown() const { return parts_->options.unknown_id; }
bool Tokenizer::strips_leading_space() const { return parts_->options.strip_leading_space; }
std::span<const int32_t> Tokenizer::end_of_generation_ids() const { return parts_->end_of_generation_ids; }

}  // namespace takt
