// Lexer of the template language: the source as tokens, with trim_blocks and lstrip_blocks on as chat templates expect.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/status.h"

namespace takt::jinja {

enum class TokenKind : uint8_t {
    text,            // template text between tags
    variable_begin,  // {{
    variable_end,
    block_begin,  // {%
    block_end,
    name,
    string,
    integer,
    number,
    symbol,  // an operator or bracket
    end,
};

struct Token {
    TokenKind kind;
    std::string text;  // a string's value with its escapes done
    int line;
};

/// All tokens, the last of kind `end`. Errors carry "line N: ...".
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace takt::jinja
