// Writing JSON by hand where frames are made by the tens of thousands a second: strings, numbers, nothing else. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace takt::server {

/// Appends `text` as a JSON string with quotes. Bytes that are not valid UTF-8 become U+FFFD, so the frame is always valid.
void append_json_string(std::string& out, std::string_view text);

/// Appends the shortest text that reads back as the same double; a value that is not finite (no JSON has it) becomes
/// -9999 or 9999 by its sign, NaN null.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, std::int64_t value);
void append_json_number(std::string& out, std::uint64_t value);

/// `text` with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

/// Unicode characters in UTF-8 text.
std::size_t num_utf8_characters(std::string_view text);

/// Length of the valid UTF-8 character at text[at], 0 where the byte there begins none.
std::size_t utf8_length(std::string_view text, std::size_t at);

}  // namespace takt::server
