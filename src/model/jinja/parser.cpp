// Statements of the template language. Pure; one parse, one thread. See parser.h.
#include "model/jinja/parser.h"

#include <array>

#include "model/jinja/lexer.h"
#include "model/jinja/parser_state.h"

namespace takt::jinja {
namespace {

constexpr int kMaxStatementNesting = 100;
constexpr size_t kMaxSourceBytes = size_t{1} << 20;

class Parser {
public:
    explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

    Result<Statements> run() {
        Statements out = body({});
        if (!in_.failed() && in_.peek().kind != TokenKind::end) in_.fail("unexpected statement");
        if (in_.failed()) return Error{in_.error()};
        return out;
    }

private:
    using StatementPtr = std::unique_ptr<Statement>;

    StatementPtr make(StatementKind kind) {
        auto out = std::make_unique<Statement>();
        out->kind = kind;
        out->line = in_.peek().line;
        return out;
    }

    [[nodiscard]] bool at_block(std::initializer_list<std::string_view> names) const {
        if (in_.peek().kind != TokenKind::block_begin || in_.peek(1).kind != TokenKind::name) return false;
        for (const std::string_view name : names) {
            if (in_.peek(1).text == name) return true;
        }
        return false;
    }

    /// Statements up to one of the named blocks (not taken) or the end.
    Statements body(std::initializer_list<std::string_view> ends) {
        Statements out;
        if (++nesting_ > kMaxStatementNesting) in_.fail("statements nested more than 100 deep");
        while (!in_.failed() && in_.peek().kind != TokenKind::end && !at_block(ends)) {
            StatementPtr one = statement();
            if (one != nullptr) out.push_back(std::move(one));
        }
        --nesting_;
        return out;
    }

    StatementPtr statement() {
        if (in_.peek().kind == TokenKind::text) {
            StatementPtr out = make(StatementKind::text);
            out->text = in_.next().text;
            return out;
        }
        if (in_.peek().kind == TokenKind::variable_begin) {
            in_.next();
            StatementPtr out = make(StatementKind::output);
            out->expression = in_.expression_list();
            expect(TokenKind::variable_end, "}}");
            return out;
        }
        in_.next();  // block_begin
        return block();
    }

    void expect(TokenKind kind, std::string_view text) {
        if (in_.peek().kind != kind) return in_.fail("expected '" + std::string(text) + "'");
        in_.next();
    }

    void block_end() { expect(TokenKind::block_end, "%}"); }

    /// {% name %} that closes a statement.
    void closing(std::string_view name) {
        expect(TokenKind::block_begin, "{% " + std::string(name) + " %}");
        if (!in_.take_name(name)) return in_.fail("expected '" + std::string(name) + "'");
        const bool named_end = (name == "endmacro" || name == "endblock") && in_.peek().kind == TokenKind::name;
        if (named_end) in_.next();
        block_end();
    }

    StatementPtr block() {
        struct Handler {
            std::string_view name;
            StatementPtr (Parser::*parse)();
        };
        constexpr std::array kHandlers{
            Handler{"if", &Parser::branch},           Handler{"for", &Parser::loop},
            Handler{"set", &Parser::set},             Handler{"macro", &Parser::macro},
            Handler{"break", &Parser::break_loop},    Handler{"continue", &Parser::continue_loop},
            Handler{"filter", &Parser::filter_block}, Handler{"generation", &Parser::generation},
            Handler{"with", &Parser::with},           Handler{"call", &Parser::call_block},
        };
        for (const Handler& handler : kHandlers) {
            if (in_.take_name(handler.name)) return (this->*handler.parse)();
        }
        in_.fail("statement not available in this version, or out of place,");
        return nullptr;
    }

    StatementPtr branch() {
        StatementPtr out = make(StatementKind::branch);
        ExpressionPtr condition = in_.expression_list();
        while (!in_.failed()) {
            block_end();
            Statements inside = body({"elif", "else", "endif"});
            const bool was_else = condition == nullptr;
            out->branches.push_back({std::move(condition), std::move(inside)});
            if (!at_block({"elif", "else"}) || was_else) break;
            in_.next();
            condition = in_.next().text == "elif" ? in_.expression_list() : nullptr;
        }
        closing("endif");
        return out;
    }

    void target_list(Statement& statement) {
        const bool bracketed = in_.take_symbol("(");
        do {
            std::string name = in_.expect_identifier();
            if (in_.at_symbol(".") && statement.kind == StatementKind::set) {
                in_.next();
                name += "." + in_.expect_identifier();
            }
            statement.targets.push_back(std::move(name));
        } while (!in_.failed() && in_.take_symbol(",") && in_.peek().kind == TokenKind::name);
        if (bracketed) in_.expect_symbol(")");
    }

    StatementPtr loop() {
        StatementPtr out = make(StatementKind::loop);
        target_list(*out);
        if (!in_.take_name("in")) in_.fail("expected 'in'");
        out->expression = in_.expression_list(false);
        if (in_.take_name("if")) out->condition = in_.expression();
        if (in_.at_name("recursive")) in_.fail("a recursive loop is not available in this version");
        block_end();
        ++loop_depth_;
        out->body = body({"else", "endfor"});
        --loop_depth_;
        if (at_block({"else"})) {
            in_.next();
            in_.next();
            block_end();
            out->otherwise = body({"endfor"});
        }
        closing("endfor");
        return out;
    }

    StatementPtr set() {
        StatementPtr out = make(StatementKind::set);
        target_list(*out);
        if (in_.take_symbol("=")) {
            out->expression = in_.expression_list();
            block_end();
            return out;
        }
        out->kind = StatementKind::set_block;
        if (out->targets.size() != 1) in_.fail("a set block takes one name");
        if (in_.at_symbol("|")) out->filters = in_.filter_chain(true);
        block_end();
        out->body = body({"endset"});
        closing("endset");
        return out;
    }

    void parameters(Statement& statement) {
        in_.expect_symbol("(");
        while (!in_.failed() && !in_.at_symbol(")")) {
            Parameter parameter{in_.expect_identifier(), nullptr};
            if (in_.take_symbol("=")) {
                parameter.fallback = in_.expression();
            } else if (!statement.parameters.empty() && statement.parameters.back().fallback != nullptr) {
                in_.fail("a parameter without default behind one with");
            }
            statement.parameters.push_back(std::move(parameter));
            if (!in_.take_symbol(",")) break;
        }
        in_.expect_symbol(")");
    }

    StatementPtr macro() {
        StatementPtr out = make(StatementKind::macro);
        out->name = in_.expect_identifier();
        parameters(*out);
        block_end();
        const int outer_loops = std::exchange(loop_depth_, 0);
        out->body = body({"endmacro"});
        loop_depth_ = outer_loops;
        closing("endmacro");
        return out;
    }

    StatementPtr call_block() {
        StatementPtr out = make(StatementKind::call_block);
        out->name = "caller";
        if (in_.at_symbol("(")) parameters(*out);
        out->expression = in_.expression();
        if (!in_.failed() && out->expression->kind != ExpressionKind::call) in_.fail("expected a call");
        block_end();
        const int outer_loops = std::exchange(loop_depth_, 0);
        out->body = body({"endcall"});
        loop_depth_ = outer_loops;
        closing("endcall");
        return out;
    }

    StatementPtr leave_loop(StatementKind kind) {
        if (loop_depth_ == 0) in_.fail("break or continue outside a loop");
        StatementPtr out = make(kind);
        block_end();
        return out;
    }
    StatementPtr break_loop() { return leave_loop(StatementKind::break_loop); }
    StatementPtr continue_loop() { return leave_loop(StatementKind::continue_loop); }

    StatementPtr filter_block() {
        StatementPtr out = make(StatementKind::filter_block);
        out->filters = in_.filter_chain(false);
        block_end();
        out->body = body({"endfilter"});
        closing("endfilter");
        return out;
    }

    StatementPtr generation() {
        StatementPtr out = make(StatementKind::block);
        block_end();
        out->body = body({"endgeneration"});
        closing("endgeneration");
        return out;
    }

    StatementPtr with() {
        StatementPtr out = make(StatementKind::with);
        while (!in_.failed() && in_.peek().kind != TokenKind::block_end) {
            std::string name = in_.expect_identifier();
            in_.expect_symbol("=");
            out->assignments.emplace_back(std::move(name), in_.expression());
            if (!in_.take_symbol(",")) break;
        }
        block_end();
        out->body = body({"endwith"});
        closing("endwith");
        return out;
    }

    ExpressionParser in_;
    int nesting_ = 0;
    int loop_depth_ = 0;
};

}  // namespace

Result<Statements> parse(std::string_view source) {
    if (source.size() > kMaxSourceBytes) {
        return Error{"a template of " + std::to_string(source.size()) + " bytes, at most " +
                     std::to_string(kMaxSourceBytes) + " are allowed"};
    }
    Result<std::vector<Token>> tokens = tokenize(source);
    if (!tokens) return Error{tokens.error()};
    return Parser(std::move(tokens).value()).run();
}

}  // namespace takt::jinja
