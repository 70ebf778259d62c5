// Python's string operations over origin-tracked texts, shared by filters and methods. One render, one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/machine.h"
#include "model/jinja/text.h"

namespace takt::jinja {

/// str.isspace() of one character.
bool is_python_space(char32_t code_point);

/// `characters` empty pointer: whitespace.
Text stripped(const Text& text, const std::string* characters, bool left, bool right);
Text uppercase(const Text& text);
Text lowercase(const Text& text);
/// First character upper, the rest lower.
Text capitalised(const Text& text);
/// Jinja's title: a word begins behind whitespace, -, (, {, [ and <.
Text titled(const Text& text, bool python_words);
/// `limit` < 0: all. An empty `from` puts `to` between all characters.
Text replaced(Machine& machine, const Text& text, std::string_view from, const Text& to, int64_t limit);

/// The first place of `part` at or after `from`, and the last one; npos if there is none. In linear time, whatever both texts are:
/// std::string::find takes the product of their sizes where they repeat themselves.
size_t find_part(std::string_view text, std::string_view part, size_t from = 0);
size_t find_last_part(std::string_view text, std::string_view part);

/// str.split: on whitespace if `separator` is null. At most `limit` cuts if it is not negative.
std::vector<Text> split(const Text& text, const std::string* separator, int64_t limit);
std::vector<Text> split_from_right(const Text& text, const std::string* separator, int64_t limit);
std::vector<Text> split_lines(const Text& text, bool keep_ends);

/// %-formatting with %s, %d, %i, %f, %.Nf, %r, %%.
Value percent_format(Machine& machine, const Text& pattern, const Arguments& arguments);
/// str.format with {}, {0} and {name}.
Value brace_format(Machine& machine, const Text& pattern, const Arguments& arguments);

/// A text argument, or nullptr and a failure. Optional ones: nullptr without a failure if absent or none.
const Text* text_argument(Machine& machine, const Arguments& arguments, size_t position, std::string_view name);
const Text* optional_text(Machine& machine, const Arguments& arguments, size_t position, std::string_view name);
/// A whole number argument, or `fallback` if absent or none.
int64_t integer_argument(Machine& machine, const Arguments& arguments, size_t position, std::string_view name,
                         int64_t fallback);
bool flag_argument(const Arguments& arguments, size_t position, std::string_view name, bool fallback);

}  // namespace takt::jinja
