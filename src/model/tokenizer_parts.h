// The inside of a Tokenizer: its tables and the encoder that walks text through them. Only tokenizer*.cpp include it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "model/pretokenizer.h"
#include "model/tokenizer.h"
#include "model/tokenizer_added.h"
#include "model/tokenizer_cache.h"
#include "model/tokenizer_merges.h"
#include "model/tokenizer_vocabulary.h"

namespace takt {

/// Working memory of one encode call: kept in a pool, so that the word cache stays warm and no lock is held meanwhile.
struct EncodeScratch {
    WordCache cache;
    MergeTable::Scratch merging;
    Pretokenizer::Scratch splitting;
    std::vector<WordSpan> words;
    std::vector<int32_t> word_tokens;
    std::string normalised;
};

/// Immutable apart from the pool, which locks.
struct Tokenizer::Parts {
    Vocabulary vocabulary;
    MergeTable merges;
    Pretokenizer pretokenizer;
    AddedTokens added;
    TokenizerOptions options;
    std::vector<int32_t> end_of_generation_ids;

    std::unique_ptr<EncodeScratch> take_scratch() const;
    void give_scratch(std::unique_ptr<EncodeScratch> scratch) const;

    /// Appends the ids of text without added tokens. `first`: nothing of the whole text comes before it.
    void encode_segment(std::string_view text, bool first, EncodeScratch& scratch, std::vector<int32_t>& out) const;

private:
    void encode_words(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& out) const;
    void encode_word(std::string_view text, size_t begin, size_t end, EncodeScratch& scratch,
                     std::vector<int32_t>& out) const;
    void merge_word(std::string_view word, EncodeScratch& scratch) const;
    void spell_bytes(std::string_view word, std::vector<int32_t>& tokens) const;
    void spell_characters(std::string_view word, std::vector<int32_t>& tokens) const;
    [[nodiscard]] size_t mark_word_end(std::string_view text, size_t begin) const;

    static constexpr size_t kMaxPooled = 8;
    mutable std::mutex pool_mutex_;
    mutable std::vector<std::unique_ptr<EncodeScratch>> pool_;
};

}  // namespace takt
