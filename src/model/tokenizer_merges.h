// MergeTable: which neighbouring tokens join, in which order, into what; and the merging of one word. Short words scan
// for the best pair, long ones use a heap over a linked list, so a megabyte of one letter costs n log n. Immutable
// after make(); any thread, with working memory of the caller's.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/status.h"
#include "model/tokenizer_spec.h"
#include "model/tokenizer_vocabulary.h"

namespace takt {

class MergeTable {
public:
    /// From merge_ids or merge_texts, or, for SPM without either, from the scores: every split of a token into two
    /// tokens is a merge, best score first, equal scores from left to right.
    static Result<MergeTable> make(const TokenizerSpec& spec, const Vocabulary& vocabulary);

    /// Working memory of merge(); one thread at a time.
    struct Scratch {
        struct Node {
            int32_t token;
            uint32_t previous;
            uint32_t next;
        };
        struct Candidate {
            uint32_t rank;
            uint32_t position;
            int32_t left;
            int32_t right;
            int32_t joined;
        };
        std::vector<uint32_t> ranks;
        std::vector<Node> nodes;
        std::vector<Candidate> heap;
    };

    /// Joins `tokens` in place until no pair joins: the lowest rank first, the leftmost among equals.
    void merge(std::vector<int32_t>& tokens, Scratch& scratch) const;

    /// True if some merge joins a token that ends with `last` to one that begins with the space mark (SPM words may be
    /// cut before a space mark wherever this is false).
    [[nodiscard]] bool joins_space_after(char last) const {
        return joins_space_after_[static_cast<unsigned char>(last)];
    }

private:
    struct Merge {
        int32_t left = kNoToken;   ///< kNoToken: a slot without one
        int32_t right = kNoToken;
        uint32_t rank = 0;
        int32_t joined = kNoToken;
    };

    void fill(const std::vector<Merge>& merges, const Vocabulary& vocabulary);
    [[nodiscard]] const Merge* find(int32_t left, int32_t right) const;
    void merge_short(std::vector<int32_t>& tokens, Scratch& scratch) const;
    void merge_long(std::vector<int32_t>& tokens, Scratch& scratch) const;
    void push_candidate(Scratch& scratch, uint32_t position) const;
    static Result<std::vector<Merge>> listed_merges(const TokenizerSpec& spec, const Vocabulary& vocabulary);
    static std::vector<Merge> scored_merges(const TokenizerSpec& spec, const Vocabulary& vocabulary);

    std::vector<Merge> slots_;  // open addressing, size a power of two, at most half full
    uint32_t shift_ = 0;
    bool joins_space_after_[256] = {};
};

}  // namespace takt
