// The token cursor and the expression parser, shared by the two parser files. Only jinja/parser*.cpp include this.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/lexer.h"

namespace takt::jinja {

/// Reads expressions from a token list. After the first error every call returns at once and failed() is true.
class ExpressionParser {
public:
    explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    /// A whole expression; `with_condition` false stops before `if` (for the iterable of a for statement).
    ExpressionPtr expression(bool with_condition = true);
    /// The same, where a comma makes a tuple.
    ExpressionPtr expression_list(bool with_condition = true);
    /// `name | name(...)` behind a hole that the caller fills at run time (set and filter blocks).
    ExpressionPtr filter_chain(bool leading_pipe);

    [[nodiscard]] const Token& peek(size_t ahead = 0) const;
    const Token& next();
    [[nodiscard]] bool at_symbol(std::string_view text) const;
    [[nodiscard]] bool at_name(std::string_view text) const;
    bool take_symbol(std::string_view text);
    bool take_name(std::string_view text);
    void expect_symbol(std::string_view text);
    std::string expect_identifier();

    void fail(std::string message);
    [[nodiscard]] bool failed() const { return !error_.empty(); }
    [[nodiscard]] const std::string& error() const { return error_; }

private:
    using Parse = ExpressionPtr (ExpressionParser::*)();

    ExpressionPtr condition();
    ExpressionPtr logical_or();
    ExpressionPtr logical_and();
    ExpressionPtr logical_not();
    ExpressionPtr compare();
    ExpressionPtr sum();
    ExpressionPtr concat();
    ExpressionPtr product();
    ExpressionPtr power();
    ExpressionPtr unary(bool with_filters = true);
    ExpressionPtr primary();
    ExpressionPtr postfix(ExpressionPtr operand);
    ExpressionPtr filters(ExpressionPtr operand);
    ExpressionPtr filter(ExpressionPtr operand);
    ExpressionPtr test(ExpressionPtr operand);
    ExpressionPtr subscript(ExpressionPtr operand);
    ExpressionPtr parenthesis();
    ExpressionPtr dict_literal();
    ExpressionPtr left_chain(Parse operand, std::initializer_list<std::string_view> symbols);
    void arguments(Expression& call);

    ExpressionPtr make(ExpressionKind kind, std::string name = {});
    ExpressionPtr make_constant(Value value);
    /// Adds an operand and checks the depth.
    void add(Expression& parent, ExpressionPtr child);
    [[nodiscard]] bool starts_test_argument() const;

    std::vector<Token> tokens_;
    size_t position_ = 0;
    uint32_t nesting_ = 0;  // of expression() calls
    std::string error_;
};

}  // namespace takt::jinja
