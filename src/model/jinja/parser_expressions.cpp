// Expressions, in the precedence of Jinja: condition, or, and, not, comparison, sum, concatenation, product, power,
// sign, then postfix and filters. Pure; one parse, one thread.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "model/jinja/parser_state.h"

namespace takt::jinja {
namespace {

/// Bounds the recursion of the parser, the evaluator and the tree's destruction.
constexpr uint32_t kMaxDepth = 200;

}  // namespace

const Token& ExpressionParser::peek(size_t ahead) const {
    return tokens_[std::min(position_ + ahead, tokens_.size() - 1)];
}

const Token& ExpressionParser::next() {
    const Token& token = peek();
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
}

bool ExpressionParser::at_symbol(std::string_view text) const {
    return peek().kind == TokenKind::symbol && peek().text == text;
}
bool ExpressionParser::at_name(std::string_view text) const {
    return peek().kind == TokenKind::name && peek().text == text;
}

bool ExpressionParser::take_symbol(std::string_view text) {
    if (!at_symbol(text)) return false;
    next();
    return true;
}
bool ExpressionParser::take_name(std::string_view text) {
    if (!at_name(text)) return false;
    next();
    return true;
}

void ExpressionParser::expect_symbol(std::string_view text) {
    if (!take_symbol(text)) fail("expected '" + std::string(text) + "'");
}

std::string ExpressionParser::expect_identifier() {
    if (peek().kind != TokenKind::name) {
        fail("expected a name");
        return {};
    }
    return next().text;
}

void ExpressionParser::fail(std::string message) {
    if (failed()) return;
    const Token& token = peek();
    const std::string found = token.kind == TokenKind::end ? "the end" : "'" + token.text.substr(0, 40) + "'";
    error_ = "line " + std::to_string(token.line) + ": " + std::move(message) + " at " + found;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, std::string name) {
    auto out = std::make_unique<Expression>();
    out->kind = kind;
    out->line = peek().line;
    out->name = std::move(name);
    return out;
}

ExpressionPtr ExpressionParser::make_constant(Value value) {
    ExpressionPtr out = make(ExpressionKind::constant);
    out->value = std::move(value);
    return out;
}

void ExpressionParser::add(Expression& parent, ExpressionPtr child) {
    if (child != nullptr) {
        parent.depth = std::max(parent.depth, child->depth + 1);
        if (parent.depth > kMaxDepth) fail("an expression nested more than " + std::to_string(kMaxDepth) + " deep");
    }
    parent.operands.push_back(std::move(child));
}

ExpressionPtr ExpressionParser::expression(bool with_condition) {
    if (++nesting_ > kMaxDepth) fail("an expression nested more than " + std::to_string(kMaxDepth) + " deep");
    ExpressionPtr out = failed() ? make_constant({}) : with_condition ? condition() : logical_or();
    --nesting_;
    return out;
}

ExpressionPtr ExpressionParser::expression_list(bool with_condition) {
    ExpressionPtr first = expression(with_condition);
    if (!at_symbol(",")) return first;
    ExpressionPtr tuple = make(ExpressionKind::tuple);
    add(*tuple, std::move(first));
    while (!failed() && take_symbol(",")) {
        const bool ends =
            peek().kind == TokenKind::block_end || peek().kind == TokenKind::variable_end || at_symbol("=");
        if (ends) break;
        add(*tuple, expression(with_condition));
    }
    return tuple;
}

ExpressionPtr ExpressionParser::condition() {
    ExpressionPtr out = logical_or();
    while (!failed() && take_name("if")) {
        ExpressionPtr choice = make(ExpressionKind::condition);
        add(*choice, std::move(out));
        add(*choice, logical_or());
        add(*choice, take_name("else") ? expression() : nullptr);
        out = std::move(choice);
    }
    return out;
}

ExpressionPtr ExpressionParser::logical_or() {
    ExpressionPtr out = logical_and();
    while (!failed() && take_name("or")) {
        ExpressionPtr either = make(ExpressionKind::logical_or);
        add(*either, std::move(out));
        add(*either, logical_and());
        out = std::move(either);
    }
    return out;
}

ExpressionPtr ExpressionParser::logical_and() {
    ExpressionPtr out = logical_not();
    while (!failed() && take_name("and")) {
        ExpressionPtr both = make(ExpressionKind::logical_and);
        add(*both, std::move(out));
        add(*both, logical_not());
        out = std::move(both);
    }
    return out;
}

ExpressionPtr ExpressionParser::logical_not() {
    size_t count = 0;
    while (take_name("not")) ++count;
    ExpressionPtr out = compare();
    for (; count > 0 && !failed(); --count) {
        ExpressionPtr negation = make(ExpressionKind::logical_not);
        add(*negation, std::move(out));
        out = std::move(negation);
    }
    return out;
}

ExpressionPtr ExpressionParser::compare() {
    ExpressionPtr first = sum();
    ExpressionPtr chain;
    while (!failed()) {
        std::string name;
        const Token& token = peek();
        const bool is_comparison =
            token.kind == TokenKind::symbol && (token.text == "==" || token.text == "!=" || token.text == "<" ||
                                                token.text == "<=" || token.text == ">" || token.text == ">=");
        if (is_comparison) {
            name = next().text;
        } else if (take_name("in")) {
            name = "in";
        } else if (at_name("not") && peek(1).kind == TokenKind::name && peek(1).text == "in") {
            next();
            next();
            name = "not in";
        } else {
            break;
        }
        if (chain == nullptr) {
            chain = make(ExpressionKind::compare);
            add(*chain, std::move(first));
        }
        chain->operators.push_back(name);
        add(*chain, sum());
    }
    return chain != nullptr ? std::move(chain) : std::move(first);
}

ExpressionPtr ExpressionParser::left_chain(Parse operand, std::initializer_list<std::string_view> symbols) {
    ExpressionPtr out = (this->*operand)();
    const auto at_one = [&] {
        return std::any_of(symbols.begin(), symbols.end(), [this](std::string_view s) { return at_symbol(s); });
    };
    while (!failed() && at_one()) {
        ExpressionPtr binary = make(ExpressionKind::binary, next().text);
        add(*binary, std::move(out));
        add(*binary, (this->*operand)());
        out = std::move(binary);
    }
    return out;
}

ExpressionPtr ExpressionParser::sum() { return left_chain(&ExpressionParser::concat, {"+", "-"}); }
ExpressionPtr ExpressionParser::product() { return left_chain(&ExpressionParser::power, {"*", "/", "//", "%"}); }

ExpressionPtr ExpressionParser::concat() {
    ExpressionPtr first = product();
    if (!at_symbol("~")) return first;
    ExpressionPtr joined = make(ExpressionKind::concat);
    add(*joined, std::move(first));
    while (!failed() && take_symbol("~")) add(*joined, product());
    return joined;
}

ExpressionPtr ExpressionParser::power() {
    ExpressionPtr out = unary();
    while (!failed() && take_symbol("**")) {
        ExpressionPtr binary = make(ExpressionKind::binary, "**");
        add(*binary, std::move(out));
        add(*binary, unary());
        out = std::move(binary);
    }
    return out;
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
    if (++nesting_ > kMaxDepth) fail("an expression nested more than " + std::to_string(kMaxDepth) + " deep");
    ExpressionPtr out;
    if (failed()) {
        out = make_constant({});
    } else if (at_symbol("-") || at_symbol("+")) {
        out = make(next().text == "-" ? ExpressionKind::negative : ExpressionKind::positive);
        add(*out, unary(false));
    } else {
        out = primary();
    }
    out = postfix(std::move(out));
    if (with_filters) out = filters(std::move(out));
    --nesting_;
    return out;
}

ExpressionPtr ExpressionParser::primary() {
    const Token token = peek();
    switch (token.kind) {
        case TokenKind::name: {
            next();
            if (token.text == "true" || token.text == "True") return make_constant(Value::boolean(true));
            if (token.text == "false" || token.text == "False") return make_constant(Value::boolean(false));
            if (token.text == "none" || token.text == "None") return make_constant(Value::none());
            return make(ExpressionKind::name, token.text);
        }
        case TokenKind::string: {
            std::string text;
            while (peek().kind == TokenKind::string) text += next().text;  // neighbours are joined
            return make_constant(Value::text(text));
        }
        case TokenKind::integer: {
            int64_t value = 0;
            const auto [end, code] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
            if (code != std::errc{} || end != token.text.data() + token.text.size()) fail("an integer of over 64 bits");
            next();
            return make_constant(Value::integer(value));
        }
        case TokenKind::number: {
            double value = 0;
            const auto [end, code] = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
            if (code == std::errc::result_out_of_range) value = std::strtod(std::string(token.text).c_str(), nullptr);
            next();
            return make_constant(Value::number(value));
        }
        default: break;
    }
    if (at_symbol("(")) return parenthesis();
    if (at_symbol("{")) return dict_literal();
    if (take_symbol("[")) {
        ExpressionPtr list = make(ExpressionKind::list);
        while (!failed() && !at_symbol("]")) {
            add(*list, expression());
            if (!take_symbol(",")) break;
        }
        expect_symbol("]");
        return list;
    }
    fail("expected an expression");
    return make_constant({});
}

ExpressionPtr ExpressionParser::parenthesis() {
    next();
    ExpressionPtr tuple = make(ExpressionKind::tuple);
    bool is_tuple = at_symbol(")");
    while (!failed() && !at_symbol(")")) {
        add(*tuple, expression());
        if (!take_symbol(",")) break;
        is_tuple = true;
    }
    expect_symbol(")");
    if (is_tuple || failed()) return tuple;
    return std::move(tuple->operands[0]);
}

ExpressionPtr ExpressionParser::dict_literal() {
    next();
    ExpressionPtr dict = make(ExpressionKind::dict);
    while (!failed() && !at_symbol("}")) {
        add(*dict, expression());
        expect_symbol(":");
        add(*dict, expression());
        if (!take_symbol(",")) break;
    }
    expect_symbol("}");
    return dict;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr operand) {
    while (!failed()) {
        if (take_symbol(".")) {
            const bool is_index = peek().kind == TokenKind::integer;
            if (is_index) {  // x.0 is x[0]
                ExpressionPtr item = make(ExpressionKind::item);
                add(*item, std::move(operand));
                add(*item, primary());
                operand = std::move(item);
                continue;
            }
            ExpressionPtr attribute = make(ExpressionKind::attribute, expect_identifier());
            add(*attribute, std::move(operand));
            operand = std::move(attribute);
        } else if (take_symbol("[")) {
            operand = subscript(std::move(operand));
        } else if (at_symbol("(")) {
            ExpressionPtr call = make(ExpressionKind::call);
            add(*call, std::move(operand));
            arguments(*call);
            operand = std::move(call);
        } else {
            break;
        }
    }
    return operand;
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr operand) {
    ExpressionPtr parts[3];
    size_t part = 0;
    bool is_slice = false;
    while (!failed() && !at_symbol("]") && part < 3) {
        if (take_symbol(":")) {
            is_slice = true;
            ++part;
            continue;
        }
        parts[part] = expression();
        if (!at_symbol(":")) break;
    }
    expect_symbol("]");
    ExpressionPtr out = make(is_slice ? ExpressionKind::slice : ExpressionKind::item);
    add(*out, std::move(operand));
    if (!is_slice && parts[0] == nullptr) fail("expected an index");
    add(*out, std::move(parts[0]));
    if (is_slice) {
        add(*out, std::move(parts[1]));
        add(*out, std::move(parts[2]));
    }
    return out;
}

void ExpressionParser::arguments(Expression& call) {
    expect_symbol("(");
    while (!failed() && !at_symbol(")")) {
        if (at_symbol("*") || at_symbol("**")) return fail("argument unpacking is not available in this version");
        const bool named = peek().kind == TokenKind::name && peek(1).kind == TokenKind::symbol && peek(1).text == "=";
        if (named) {
            std::string name = next().text;
            next();
            ExpressionPtr value = expression();
            call.depth = std::max(call.depth, value->depth + 1);
            call.keywords.emplace_back(std::move(name), std::move(value));
        } else {
            if (!call.keywords.empty()) return fail("a positional argument behind a named one");
            add(call, expression());
        }
        if (!take_symbol(",")) break;
    }
    expect_symbol(")");
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr operand) {
    while (!failed()) {
        if (take_symbol("|")) {
            operand = filter(std::move(operand));
        } else if (take_name("is")) {
            operand = test(std::move(operand));
        } else if (at_symbol("(")) {
            ExpressionPtr call = make(ExpressionKind::call);
            add(*call, std::move(operand));
            arguments(*call);
            operand = std::move(call);
        } else {
            break;
        }
    }
    return operand;
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr operand) {
    ExpressionPtr out = make(ExpressionKind::filter, expect_identifier());
    add(*out, std::move(operand));
    if (at_symbol("(")) arguments(*out);
    return out;
}

ExpressionPtr ExpressionParser::filter_chain(bool leading_pipe) {
    ExpressionPtr out = make_constant({});
    if (!leading_pipe) out = filter(std::move(out));
    while (!failed() && take_symbol("|")) out = filter(std::move(out));
    return out;
}

bool ExpressionParser::starts_test_argument() const {
    const Token& token = peek();
    switch (token.kind) {
        case TokenKind::string:
        case TokenKind::integer:
        case TokenKind::number: return true;
        case TokenKind::name:
            return token.text != "else" && token.text != "or" && token.text != "and" && token.text != "is" &&
                   token.text != "if" && token.text != "not" && token.text != "in";
        case TokenKind::symbol: return token.text == "[" || token.text == "{";
        default: return false;
    }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr operand) {
    const bool negated = take_name("not");
    ExpressionPtr out = make(ExpressionKind::test, expect_identifier());
    add(*out, std::move(operand));
    if (at_symbol("(")) {
        arguments(*out);
    } else if (starts_test_argument()) {
        add(*out, postfix(primary()));
    }
    if (!negated) return out;
    ExpressionPtr negation = make(ExpressionKind::logical_not);
    add(*negation, std::move(out));
    return negation;
}

}  // namespace takt::jinja
