// Text without added tokens to ids: normalise, split into words, look each up in the cache or merge it. Any thread,
// each with its own scratch.
#include "model/tokenizer_parts.h"
#include "model/unicode.h"

namespace takt {
namespace {

/// Copies `text` with every space as U+2581.
void append_with_marks(std::string_view text, std::string& out) {
    size_t done = 0;
    for (size_t at = text.find(' '); at != std::string_view::npos; at = text.find(' ', done)) {
        out.append(text, done, at - done);
        out.append(kSpaceMark);
        done = at + 1;
    }
    out.append(text, done, text.size() - done);
}

}  // namespace

std::unique_ptr<EncodeScratch> Tokenizer::Parts::take_scratch() const {
    {
        const std::lock_guard lock(pool_mutex_);
        if (!pool_.empty()) {
            std::unique_ptr<EncodeScratch> scratch = std::move(pool_.back());
            pool_.pop_back();
            return scratch;
        }
    }
    return std::make_unique<EncodeScratch>();
}

void Tokenizer::Parts::give_scratch(std::unique_ptr<EncodeScratch> scratch) const {
    // A huge text leaves huge buffers behind; do not keep those.
    constexpr size_t kKeptBytes = size_t{1} << 20;
    if (scratch->words.capacity() * sizeof(WordSpan) > kKeptBytes) scratch->words = {};
    if (scratch->normalised.capacity() > kKeptBytes) scratch->normalised = {};
    if (scratch->word_tokens.capacity() * sizeof(int32_t) > kKeptBytes) {
        scratch->word_tokens = {};
        scratch->merging = {};
    }
    scratch->splitting.pieces = {};
    const std::lock_guard lock(pool_mutex_);
    if (pool_.size() < kMaxPooled) pool_.push_back(std::move(scratch));
}

void Tokenizer::Parts::encode_segment(std::string_view text, bool first, EncodeScratch& scratch,
                                      std::vector<int32_t>& out) const {
    if (text.empty()) return;
    std::string normal_form;
    if (options.nfc && may_need_nfc(text)) {
        normal_form = to_nfc(text);
        text = normal_form;
    }
    if (options.kind == TokenizerKind::bpe_byte_level) {
        if (options.prefix_space && text.front() != ' ') {
            scratch.normalised.assign(1, ' ');
            scratch.normalised.append(text);
            text = scratch.normalised;
        }
        encode_words(text, scratch, out);
        return;
    }
    const bool has_space = !options.prefixes_spaces && (text.front() == ' ' || text.starts_with(kSpaceMark));
    const bool wants_space =
        !has_space && (options.space_prefix == SpacePrefix::after_special || (options.space_prefix == SpacePrefix::at_start && first));
    scratch.normalised.clear();
    if (wants_space) scratch.normalised.append(kSpaceMark);
    append_with_marks(text, scratch.normalised);
    encode_words(scratch.normalised, scratch, out);
}

/// SPM text has no pre-tokenizer, but no merge crosses the place before a space mark unless the table says so: cutting
/// there changes no id, makes the cache useful and keeps the merging short.
size_t Tokenizer::Parts::mark_word_end(std::string_view text, size_t begin) const {
    size_t from = begin + 1;
    while (true) {
        const size_t mark = text.find(kSpaceMark, from);
        if (mark == std::string_view::npos) return text.size();
        if (!merges.joins_space_after(text[mark - 1])) return mark;
        from = mark + 1;
    }
}

void Tokenizer::Parts::encode_words(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& out) const {
    if (const Pretokenizer::Scanner scan = pretokenizer.scanner(); scan != nullptr) {
        for (size_t begin = 0; begin < text.size();) {
            const size_t end = scan(text, begin);
            encode_word(text, begin, end, scratch, out);
            begin = end;
        }
        return;
    }
    // With ignore_merges the text as a whole may be a token, so it is not cut there.
    if (options.kind == TokenizerKind::spm_bpe && options.split_rules.empty() && !options.ignore_merges) {
        for (size_t begin = 0; begin < text.size();) {
            const size_t end = mark_word_end(text, begin);
            encode_word(text, begin, end, scratch, out);
            begin = end;
        }
        return;
    }
    scratch.words.clear();
    pretokenizer.split(text, scratch.words, scratch.splitting);
    for (const WordSpan& word : scratch.words) encode_word(text, word.begin, word.end, scratch, out);
}

void Tokenizer::Parts::encode_word(std::string_view text, size_t begin, size_t end, EncodeScratch& scratch,
                                   std::vector<int32_t>& out) const {
    const std::string_view word = text.substr(begin, end - begin);
    if (word.size() > WordCache::kMaxWordBytes) {
        merge_word(word, scratch);
        out.insert(out.end(), scratch.word_tokens.begin(), scratch.word_tokens.end());
        return;
    }
    const WordCache::Key key = WordCache::make_key(text, begin, word.size());
    WordCache::Entry& entry = scratch.cache.entry(key);
    if (entry.key == key) {
        out.insert(out.end(), entry.tokens.begin(), entry.tokens.begin() + entry.count);
        return;
    }
    merge_word(word, scratch);
    const std::vector<int32_t>& tokens = scratch.word_tokens;
    out.insert(out.end(), tokens.begin(), tokens.end());
    if (tokens.size() > WordCache::kMaxTokens) return;
    entry.key = key;
    entry.count = static_cast<uint32_t>(tokens.size());
    std::copy(tokens.begin(), tokens.end(), entry.tokens.begin());
}

void Tokenizer::Parts::merge_word(std::string_view word, EncodeScratch& scratch) const {
    std::vector<int32_t>& tokens = scratch.word_tokens;
    tokens.clear();
    if (options.ignore_merges) {
        const int32_t whole = vocabulary.find(word);
        if (whole != kNoToken) {
            tokens.push_back(whole);
            return;
        }
    }
    if (options.kind == TokenizerKind::bpe_byte_level) {
        spell_bytes(word, tokens);
    } else {
        spell_characters(word, tokens);
    }
    merges.merge(tokens, scratch.merging);
}

void Tokenizer::Parts::spell_bytes(std::string_view word, std::vector<int32_t>& tokens) const {
    for (const char c : word) {
        const int32_t token = vocabulary.byte_token(static_cast<unsigned char>(c));
        if (token != kNoToken) {
            tokens.push_back(token);
        } else if (options.use_unknown) {
            const bool fused = options.fuse_unknown && !tokens.empty() && tokens.back() == options.unknown_id;
            if (!fused) tokens.push_back(options.unknown_id);
        }
    }
}

void Tokenizer::Parts::spell_characters(std::string_view word, std::vector<int32_t>& tokens) const {
    bool after_unknown = false;
    for (size_t i = 0; i < word.size();) {
        const size_t size = decode_utf8(word, i).size;
        const std::string_view character = word.substr(i, size);
        i += size;
        const int32_t token = vocabulary.find(character);
        if (token != kNoToken) {
            tokens.push_back(token);
            after_unknown = false;
            continue;
        }
        bool has_bytes = options.byte_fallback;
        for (const char c : character) {
            has_bytes = has_bytes && vocabulary.byte_token(static_cast<unsigned char>(c)) != kNoToken;
        }
        if (has_bytes) {
            for (const char c : character) tokens.push_back(vocabulary.byte_token(static_cast<unsigned char>(c)));
            after_unknown = false;
        } else if (options.unknown_id != kNoToken) {
            if (!after_unknown || !options.fuse_unknown) tokens.push_back(options.unknown_id);
            after_unknown = true;
        }
    }
}

}  // namespace takt
