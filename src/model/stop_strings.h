// StopStrings: up to eight texts that end an answer, and the matcher that follows a growing text byte by byte. It knows
// at any moment how long a suffix of the text may still become a stop, which is all that has to be held back.
// StopStrings is immutable; a StopMatcher belongs to one stream. Knows no tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/status.h"

namespace takt {

class StopStrings {
public:
    static constexpr size_t kMaxStrings = 8;
    static constexpr size_t kMaxBytes = 4096;  ///< of one string

    StopStrings() = default;
    /// Refuses more than kMaxStrings, an empty or too long string, and one that is not UTF-8.
    static Result<StopStrings> make(std::vector<std::string> strings);

    [[nodiscard]] size_t size() const { return stops_.size(); }
    [[nodiscard]] const std::string& operator[](size_t index) const { return stops_[index].text; }

private:
    friend class StopMatcher;

    struct Stop {
        std::string text;
        std::vector<uint32_t> fallback;  // fallback[n]: longest proper suffix of the first n bytes that is a prefix too
    };
    std::vector<Stop> stops_;
};

class StopMatcher {
public:
    explicit StopMatcher(StopStrings stops) : stops_(std::move(stops)), matched_(stops_.size(), 0) {}

    struct Match {
        size_t stop;  ///< index into the strings
        size_t size;  ///< its bytes, the last of which is the one just fed
    };

    /// Takes the next byte. A match is the longest of the stops that end here; feed nothing after one.
    std::optional<Match> feed(char byte);

    /// Length in bytes of the longest suffix of the text so far that begins a stop.
    [[nodiscard]] size_t open_suffix() const;

    [[nodiscard]] const StopStrings& stops() const { return stops_; }

private:
    StopStrings stops_;
    std::vector<uint32_t> matched_;  // by stop: how many of its bytes the text ends with
};

}  // namespace takt
