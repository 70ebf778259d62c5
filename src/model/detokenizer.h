// Detokenizer: the text of one answer as its tokens arrive. Deltas are whole UTF-8 characters; ill-formed bytes become
// U+FFFD and the answer goes on; special tokens have no text; a suffix that may still become a stop string is held back
// and nothing else is. One stream, one thread; the Tokenizer must outlive it. Knows no requests and no clocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/stop_strings.h"
#include "model/tokenizer.h"

namespace takt {

struct TextDelta {
    std::string text;         ///< well-formed UTF-8, may be empty
    uint64_t index = 0;       ///< of the first token released here (or of the next one, if none is)
    uint32_t num_tokens = 0;  ///< tokens index, index + 1, ... whose text is now out as a whole
    bool stopped = false;     ///< a stop string is complete: this is the last delta, push() no more
    size_t stop = 0;          ///< which one, if stopped
};

struct DetokenizerOptions {
    bool skip_special = true;
    /// The answer's first token begins the whole text, so a tokenizer that drops a leading space drops it here.
    bool at_text_start = false;
};

class Detokenizer {
public:
    Detokenizer(const Tokenizer& tokenizer, StopStrings stops, DetokenizerOptions options = {});

    /// Takes the next token. A token is released with the delta that brings the last of its text; one whose text is
    /// held back (half a character, the beginning of a stop) goes with the delta that releases that text. On a stop,
    /// the tokens that lie wholly in or behind it are never released.
    TextDelta push(int32_t id);

    /// The end of the answer: everything held back, half a character as U+FFFD. Call once, not after a stop.
    TextDelta finish();

    /// Tokens pushed so far, released or not.
    [[nodiscard]] uint64_t num_tokens() const { return num_pushed_; }

private:
    struct Pending {
        uint64_t text_begin;  // offsets into the whole text
        uint64_t text_end;
        bool open;  // ends with half a character, so text_end is not known yet
    };

    void take_bytes(bool is_last);
    TextDelta release(bool is_last);

    const Tokenizer* tokenizer_;
    DetokenizerOptions options_;
    StopMatcher matcher_;
    bool strip_space_;

    std::string bytes_;             // not yet decoded: a new token's bytes behind at most three of half a character
    std::string held_;              // decoded, not yet out
    size_t num_matched_ = 0;        // bytes of held_ that the matcher has seen
    uint64_t text_begin_ = 0;       // offset of held_ in the whole text
    std::vector<Pending> pending_;  // tokens not yet released, oldest first
    uint64_t num_pushed_ = 0;
    uint64_t num_released_ = 0;
};

}  // namespace takt
