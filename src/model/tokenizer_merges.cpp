// Merge ranks and the merging itself. Immutable table; any thread.
#include "model/tokenizer_merges.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <unordered_set>

#include "model/unicode.h"

namespace takt {
namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
/// Up to here a linear search for the best pair beats the heap.
constexpr size_t kShortWord = 48;

uint64_t pair_hash(int32_t left, int32_t right) {
    const uint64_t key = (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
    return key * 0x9E3779B97F4A7C15ULL ^ (key >> 29);
}

/// A heap with the lowest rank, then the leftmost position, on top.
bool later(const MergeTable::Scratch::Candidate& a, const MergeTable::Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

Result<std::vector<MergeTable::Merge>> MergeTable::listed_merges(const TokenizerSpec& spec,
                                                                 const Vocabulary& vocabulary) {
    std::vector<Merge> merges;
    const bool by_id = !spec.merge_ids.empty();
    const size_t count = by_id ? spec.merge_ids.size() : spec.merge_texts.size();
    if (count >= kNoRank) return Error{"tokenizer: too many merges"};
    merges.reserve(count);
    std::unordered_set<std::string_view> controls;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
        if (is_control(vocabulary.type(id))) controls.insert(vocabulary.text(id));
    }
    std::string left_text, right_text, joined;
    const auto spelled = [&](std::string_view text, std::string& out) {
        if (spec.kind != TokenizerKind::bpe_byte_level || !from_byte_alphabet(text, out)) out.assign(text);
        return vocabulary.find(out);
    };
    for (size_t i = 0; i < count; ++i) {
        Merge merge{kNoToken, kNoToken, static_cast<uint32_t>(i), kNoToken};
        if (by_id) {
            std::tie(merge.left, merge.right) = spec.merge_ids[i];
        } else {
            const std::string& text = spec.merge_texts[i];
            const size_t space = text.find(' ', 1);
            if (space == std::string::npos) {
                return Error{"tokenizer: merge " + std::to_string(i) + " \"" + text + "\" is not two tokens"};
            }
            merge.left = spelled(std::string_view(text).substr(0, space), left_text);
            merge.right = spelled(std::string_view(text).substr(space + 1), right_text);
        }
        if (!vocabulary.contains(merge.left) || !vocabulary.contains(merge.right)) {
            return Error{"tokenizer: merge " + std::to_string(i) + " names a token that the vocabulary lacks"};
        }
        joined.assign(vocabulary.text(merge.left)).append(vocabulary.text(merge.right));
        merge.joined = vocabulary.find(joined);
        if (merge.joined == kNoToken && controls.contains(joined)) continue;  // text never merges into a control token
        if (merge.joined == kNoToken) {
            return Error{"tokenizer: the vocabulary lacks the result of merge " + std::to_string(i)};
        }
        merges.push_back(merge);
    }
    return merges;
}

std::vector<MergeTable::Merge> MergeTable::scored_merges(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
    std::vector<Merge> merges;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
        if (!is_mergeable(vocabulary.type(id))) continue;
        const std::string_view text = vocabulary.text(id);
        if (text.empty() || vocabulary.find(text) != id) continue;
        for (size_t cut = decode_utf8(text, 0).size; cut < text.size(); cut += decode_utf8(text, cut).size) {
            const int32_t left = vocabulary.find(text.substr(0, cut));
            const int32_t right = vocabulary.find(text.substr(cut));
            if (left != kNoToken && right != kNoToken) merges.push_back({left, right, 0, id});
        }
    }
    const auto score = [&](const Merge& merge) { return spec.scores[static_cast<size_t>(merge.joined)]; };
    std::stable_sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) { return score(a) > score(b); });
    for (size_t i = 1; i < merges.size(); ++i) {
        const bool equal = score(merges[i]) == score(merges[i - 1]);
        merges[i].rank = equal ? merges[i - 1].rank : static_cast<uint32_t>(i);
    }
    return merges;
}

Result<MergeTable> MergeTable::make(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
    MergeTable out;
    if (spec.merge_ids.empty() && spec.merge_texts.empty() && spec.kind == TokenizerKind::spm_bpe) {
        if (spec.scores.size() != spec.tokens.size()) {
            return Error{"tokenizer: " + std::to_string(spec.scores.size()) + " scores for " +
                         std::to_string(spec.tokens.size()) + " tokens, and no merges"};
        }
        const bool has_nan = std::any_of(spec.scores.begin(), spec.scores.end(), [](float s) { return s != s; });
        if (has_nan) return Error{"tokenizer: a token score is not a number"};
        out.fill(scored_merges(spec, vocabulary), vocabulary);
        return out;
    }
    const Result<std::vector<Merge>> listed = listed_merges(spec, vocabulary);
    if (!listed) return Error{listed.error()};
    out.fill(listed.value(), vocabulary);
    return out;
}

void MergeTable::fill(const std::vector<Merge>& merges, const Vocabulary& vocabulary) {
    uint32_t bits = 4;
    while ((size_t{1} << bits) < merges.size() * 2) ++bits;
    shift_ = 64 - bits;
    slots_.assign(size_t{1} << bits, Merge{});
    const size_t mask = slots_.size() - 1;
    for (const Merge& merge : merges) {
        size_t slot = pair_hash(merge.left, merge.right) >> shift_;
        while (slots_[slot].left != kNoToken &&
               (slots_[slot].left != merge.left || slots_[slot].right != merge.right)) {
            slot = (slot + 1) & mask;
        }
        if (slots_[slot].left != kNoToken) continue;  // listed twice: the first one counts
        slots_[slot] = merge;
        const std::string_view left = vocabulary.text(merge.left);
        if (!left.empty() && vocabulary.text(merge.right).starts_with(kSpaceMark)) {
            joins_space_after_[static_cast<unsigned char>(left.back())] = true;
        }
    }
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
    const size_t mask = slots_.size() - 1;
    for (size_t slot = pair_hash(left, right) >> shift_;; slot = (slot + 1) & mask) {
        const Merge& candidate = slots_[slot];
        if (candidate.left == left && candidate.right == right) return &candidate;
        if (candidate.left == kNoToken) return nullptr;
    }
}

void MergeTable::merge(std::vector<int32_t>& tokens, Scratch& scratch) const {
    if (tokens.size() < 2) return;
    if (tokens.size() <= kShortWord) {
        merge_short(tokens, scratch);
    } else {
        merge_long(tokens, scratch);
    }
}

void MergeTable::merge_short(std::vector<int32_t>& tokens, Scratch& scratch) const {
    std::vector<uint32_t>& ranks = scratch.ranks;  // ranks[i]: of the pair i, i + 1
    const auto rank_of = [&](size_t i) {
        if (i + 1 >= tokens.size()) return kNoRank;
        const Merge* merge = find(tokens[i], tokens[i + 1]);
        return merge == nullptr ? kNoRank : merge->rank;
    };
    ranks.resize(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) ranks[i] = rank_of(i);
    while (true) {
        const auto best = std::min_element(ranks.begin(), ranks.end());
        if (*best == kNoRank) return;
        const auto at = best - ranks.begin();
        const auto i = static_cast<size_t>(at);
        tokens[i] = find(tokens[i], tokens[i + 1])->joined;
        tokens.erase(tokens.begin() + at + 1);
        ranks.erase(ranks.begin() + at + 1);
        ranks[i] = rank_of(i);
        if (i > 0) ranks[i - 1] = rank_of(i - 1);
    }
}

void MergeTable::push_candidate(Scratch& scratch, uint32_t position) const {
    const uint32_t next = scratch.nodes[position].next;
    if (next == kEnd) return;
    const int32_t left = scratch.nodes[position].token;
    const int32_t right = scratch.nodes[next].token;
    const Merge* merge = find(left, right);
    if (merge == nullptr) return;
    scratch.heap.push_back({merge->rank, position, left, right, merge->joined});
}

void MergeTable::merge_long(std::vector<int32_t>& tokens, Scratch& scratch) const {
    auto& nodes = scratch.nodes;
    auto& heap = scratch.heap;
    const auto count = static_cast<uint32_t>(tokens.size());
    nodes.clear();
    heap.clear();
    for (uint32_t i = 0; i < count; ++i)
        nodes.push_back({tokens[i], i == 0 ? kEnd : i - 1, i + 1 < count ? i + 1 : kEnd});
    for (uint32_t i = 0; i + 1 < count; ++i) push_candidate(scratch, i);
    std::make_heap(heap.begin(), heap.end(), later);
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), later);
        const Scratch::Candidate best = heap.back();
        heap.pop_back();
        Scratch::Node& node = nodes[best.position];
        // A candidate is stale once either side has joined something else; a removed node has token kNoToken.
        if (node.token != best.left || node.next == kEnd || nodes[node.next].token != best.right) continue;
        const uint32_t removed = node.next;
        node.token = best.joined;
        node.next = nodes[removed].next;
        if (node.next != kEnd) nodes[node.next].previous = best.position;
        nodes[removed].token = kNoToken;
        const size_t before = heap.size();
        push_candidate(scratch, best.position);
        if (heap.size() != before) std::push_heap(heap.begin(), heap.end(), later);
        if (node.previous == kEnd) continue;
        const size_t middle = heap.size();
        push_candidate(scratch, node.previous);
        if (heap.size() != middle) std::push_heap(heap.begin(), heap.end(), later);
    }
    tokens.clear();
    for (uint32_t i = 0; i != kEnd; i = nodes[i].next) tokens.push_back(nodes[i].token);
}

}  // namespace takt
