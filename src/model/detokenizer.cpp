// Incremental decoding with hold-back. One stream, one thread. See detokenizer.h.
#include "model/detokenizer.h"

#include <utility>

#include "model/unicode.h"

namespace takt {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, StopStrings stops, DetokenizerOptions options)
    : tokenizer_(&tokenizer),
      options_(options),
      matcher_(std::move(stops)),
      strip_space_(options.at_text_start && tokenizer.strips_leading_space()) {}

TextDelta Detokenizer::push(int32_t id) {
    ++num_pushed_;
    const uint64_t begin = text_begin_ + held_.size();
    if (!options_.skip_special || !tokenizer_->is_special(id)) tokenizer_->append_token_text(id, bytes_);
    if (strip_space_ && !bytes_.empty()) {
        if (bytes_.front() == ' ') bytes_.erase(0, 1);
        strip_space_ = false;
    }
    pending_.push_back({begin, begin, true});
    take_bytes(false);
    return release(false);
}

TextDelta Detokenizer::finish() {
    take_bytes(true);
    return release(true);
}

/// Moves what is complete from bytes_ to held_ and fixes the ends of the tokens that are complete with it.
void Detokenizer::take_bytes(bool is_last) {
    const size_t incomplete = is_last ? 0 : incomplete_utf8_suffix(bytes_);
    const size_t complete = bytes_.size() - incomplete;
    // Where the half character of earlier tokens ends: behind the first character decoded now.
    const std::string_view ready = std::string_view(bytes_).substr(0, complete);
    uint64_t first_end = text_begin_ + held_.size();
    if (!ready.empty()) {
        const size_t size = decode_utf8(ready, 0).size;
        append_valid_utf8(held_, ready.substr(0, size));
        first_end = text_begin_ + held_.size();
        append_valid_utf8(held_, ready.substr(size));
    }
    for (size_t i = 0; i < pending_.size(); ++i) {
        Pending& token = pending_[i];
        const bool is_newest = i + 1 == pending_.size() && !is_last;
        if (!token.open || (incomplete != 0 && (is_newest || complete == 0))) continue;
        token.open = false;
        token.text_end = is_newest ? text_begin_ + held_.size() : first_end;
    }
    bytes_.erase(0, complete);
}

/// Feeds the matcher and gives out all but the suffix that may become a stop.
TextDelta Detokenizer::release(bool is_last) {
    TextDelta delta;
    size_t out = held_.size();
    while (num_matched_ < held_.size() && !delta.stopped) {
        const auto match = matcher_.feed(held_[num_matched_++]);
        if (!match) continue;
        delta.stopped = true;
        delta.stop = match->stop;
        out = num_matched_ - match->size;
    }
    if (!delta.stopped && !is_last) out = held_.size() - matcher_.open_suffix();
    delta.text.assign(held_, 0, out);
    held_.erase(0, out);
    num_matched_ -= out;
    text_begin_ += out;

    size_t released = 0;
    while (released < pending_.size()) {
        const Pending& token = pending_[released];
        const bool whole = !token.open && token.text_end <= text_begin_;
        const bool begun = delta.stopped && token.text_begin < text_begin_;  // the stop cuts it in two
        const bool flushed = is_last && !delta.stopped;
        if (!whole && !begun && !flushed) break;
        ++released;
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(released));
    delta.index = num_released_;
    delta.num_tokens = static_cast<uint32_t>(released);
    num_released_ += released;
    return delta;
}

}  // namespace takt
