// Parser of the template language: tokens to a syntax tree. What chat templates do not use (inheritance, imports,
// recursive loops, `do`) is refused by name. Bounded: nesting of statements and expressions. Pure; any thread.
#pragma once

#include <string_view>

#include "kernels/status.h"
#include "model/jinja/ast.h"

namespace takt::jinja {

/// The template's statements. Errors carry "line N: ...".
Result<Statements> parse(std::string_view source);

}  // namespace takt::jinja
