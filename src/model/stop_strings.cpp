// Knuth-Morris-Pratt for each stop string: a few steps a byte, no memory beyond the strings. One stream, one thread.
#include "model/stop_strings.h"

#include <algorithm>

#include "model/unicode.h"

namespace takt {

Result<StopStrings> StopStrings::make(std::vector<std::string> strings) {
    if (strings.size() > kMaxStrings) {
        return Error{"stop: " + std::to_string(strings.size()) + " strings, at most " + std::to_string(kMaxStrings) +
                     " are allowed"};
    }
    StopStrings out;
    for (std::string& text : strings) {
        if (text.empty()) return Error{"stop: an empty string"};
        if (text.size() > kMaxBytes) {
            return Error{"stop: a string of " + std::to_string(text.size()) + " bytes, at most " +
                         std::to_string(kMaxBytes) + " are allowed"};
        }
        if (!is_valid_utf8(text)) return Error{"stop: a string that is not UTF-8"};
        std::vector<uint32_t> fallback(text.size() + 1, 0);
        uint32_t length = 0;
        for (size_t i = 1; i < text.size(); ++i) {
            while (length > 0 && text[i] != text[length]) length = fallback[length];
            if (text[i] == text[length]) ++length;
            fallback[i + 1] = length;
        }
        out.stops_.push_back({std::move(text), std::move(fallback)});
    }
    return out;
}

std::optional<StopMatcher::Match> StopMatcher::feed(char byte) {
    std::optional<Match> best;
    for (size_t i = 0; i < matched_.size(); ++i) {
        const StopStrings::Stop& stop = stops_.stops_[i];
        uint32_t& length = matched_[i];
        while (length > 0 && byte != stop.text[length]) length = stop.fallback[length];
        if (byte == stop.text[length]) ++length;
        if (length < stop.text.size()) continue;
        if (!best || stop.text.size() > best->size) best = Match{i, stop.text.size()};
        length = stop.fallback[length];
    }
    return best;
}

size_t StopMatcher::open_suffix() const {
    return matched_.empty() ? 0 : *std::max_element(matched_.begin(), matched_.end());
}

}  // namespace takt
