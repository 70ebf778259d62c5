// The tables of what a template can call by name. Read-only; any thread.
#pragma once

#include <span>
#include <string_view>

#include "model/jinja/value.h"

namespace takt::jinja {

struct NamedFunction {
    std::string_view name;
    Function function;
};

/// nullptr for an unknown name, as in all that follow.
inline Function find_in(std::span<const NamedFunction> table, std::string_view name) {
    for (const NamedFunction& entry : table) {
        if (entry.name == name) return entry.function;
    }
    return nullptr;
}

Function find_filter(std::string_view name);
/// A test gives a bool value.
Function find_test(std::string_view name);
Function find_global(std::string_view name);
Function find_text_method(std::string_view name);
Function find_list_method(std::string_view name);
Function find_dict_method(std::string_view name);
Function find_loop_method(std::string_view name);

/// Methods that would change a value: they exist in Python, but no template may call them.
bool is_mutating_method(const Value& value, std::string_view name);

// The halves of the filter table, by file.
Function find_text_filter(std::string_view name);
Function find_sequence_filter(std::string_view name);

}  // namespace takt::jinja
