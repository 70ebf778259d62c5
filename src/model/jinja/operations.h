// What values can do with each other: truth, equality, order, arithmetic, members, iteration, and their text. All keep
// the machine's books and fail through it. One render, one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "model/jinja/machine.h"
#include "model/jinja/value.h"

namespace takt::jinja {

bool is_true(const Value& value);
bool is_equal(Machine& machine, const Value& a, const Value& b);
/// Less, equal or greater as -1, 0, 1; nothing (and a failure) for values without an order.
std::optional<int> compare(Machine& machine, const Value& a, const Value& b);
/// One of == != < <= > >= in, not in.
bool compare_by(Machine& machine, std::string_view name, const Value& a, const Value& b);
bool contains(Machine& machine, const Value& container, const Value& item);
/// One of + - * / // % **.
Value arithmetic(Machine& machine, std::string_view name, const Value& a, const Value& b);

/// x.name: methods first, then items, as Jinja does.
Value attribute_of(Machine& machine, const Value& object, std::string_view name);
/// x[key]: items first, then attributes.
Value item_of(Machine& machine, const Value& object, const Value& key);
/// x[start:stop:step]; undefined or none for an absent bound.
Value slice_of(Machine& machine, const Value& object, const Value& start, const Value& stop, const Value& step);
/// A name with dots, as the attribute arguments of filters have.
/// `fallback` replaces each undefined part.
Value path_of(Machine& machine, const Value& object, const Value& path, const Value* fallback = nullptr);

/// Items of a list, keys of a dictionary, characters of a text; nothing of an undefined value.
std::shared_ptr<const List> items_of(Machine& machine, const Value& value);
/// len(); nothing (and a failure) where Python has none.
std::optional<size_t> length_of(Machine& machine, const Value& value);

/// str(): the text that {{ value }} prints.
Text text_of(Machine& machine, const Value& value);
/// repr(): as inside a printed list.
Text written_form(Machine& machine, const Value& value);
/// Python's repr of a float.
std::string number_text(double value);

struct JsonStyle {
    bool ensure_ascii = false;
    int indent = -1;  ///< spaces a level; -1: one line
    std::string item_separator = ", ";
    std::string key_separator = ": ";
    bool sort_keys = false;
};
/// json.dumps().
Value json_text(Machine& machine, const Value& value, const JsonStyle& style);

}  // namespace takt::jinja
