// The syntax tree of a template: plain data, immutable once parsed, so that any number of renders may walk it at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace takt::jinja {

enum class ExpressionKind : uint8_t {
    constant,   // value
    name,       // name
    list,       // operands
    tuple,      // operands
    dict,       // operands: key, value, key, value, ...
    attribute,  // operands[0] . name
    item,       // operands[0] [ operands[1] ]
    slice,      // operands[0] [ operands[1] : operands[2] : operands[3] ], absent ones null
    call,       // operands[0] ( operands[1..], keywords )
    filter,     // operands[0] | name ( operands[1..], keywords )
    test,       // operands[0] is name ( operands[1..], keywords )
    logical_not,
    negative,
    positive,
    binary,     // operands[0] name operands[1], name one of + - * / // % **
    concat,     // operands joined as text
    compare,    // operands[0] operators[0] operands[1] operators[1] operands[2] ...
    logical_and,
    logical_or,
    condition,  // operands[0] if operands[1] else operands[2] (may be null)
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
    ExpressionKind kind = ExpressionKind::constant;
    int line = 0;
    uint32_t depth = 1;  ///< longest path to a leaf; the parser bounds it
    Value value;
    std::string name;
    std::vector<ExpressionPtr> operands;
    std::vector<std::pair<std::string, ExpressionPtr>> keywords;
    std::vector<std::string> operators;
};

enum class StatementKind : uint8_t {
    text,          // text
    output,        // expression
    branch,        // branches: the first whose condition is true (a null condition always is)
    loop,          // for targets in expression [if condition]: body, else otherwise
    set,           // targets = expression
    set_block,     // targets[0] = body as text, through `filters` if any
    macro,         // name(parameters): body
    call_block,    // {% call(parameters) expression %} body
    break_loop,
    continue_loop,
    block,         // body (generation)
    filter_block,  // body as text through `filters`
    with,          // assignments, then body, in a scope of its own
};

struct Statement;
using Statements = std::vector<std::unique_ptr<Statement>>;

struct Branch {
    ExpressionPtr condition;
    Statements body;
};

struct Parameter {
    std::string name;
    ExpressionPtr fallback;  ///< null: undefined unless given
};

struct Statement {
    StatementKind kind = StatementKind::text;
    int line = 0;
    std::string text;
    std::string name;
    std::vector<std::string> targets;  ///< "ns.x" for a namespace's attribute
    ExpressionPtr expression;
    ExpressionPtr condition;
    ExpressionPtr filters;  ///< a chain of filters over a hole (an expression without kind: constant undefined)
    std::vector<Branch> branches;
    std::vector<Parameter> parameters;
    std::vector<std::pair<std::string, ExpressionPtr>> assignments;
    Statements body;
    Statements otherwise;
};

}  // namespace takt::jinja
