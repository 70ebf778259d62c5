// Statements of a render, and its books. One render, one thread. See machine.h.
#include "model/jinja/machine.h"

#include <algorithm>
#include <utility>

#include "model/jinja/functions.h"
#include "model/jinja/operations.h"

namespace takt::jinja {

class Machine::DepthGuard {
public:
    explicit DepthGuard(Machine& machine) : machine_(machine) { machine_.enter(); }
    ~DepthGuard() { --machine_.depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

private:
    Machine& machine_;
};

Machine::~Machine() {
    for (const auto& space : namespaces_) space->attributes.clear();
}

bool Machine::run(const Statements& program, std::vector<std::pair<std::string, Value>> variables) {
    scope_ = push_scope(nullptr);
    for (auto& [name, value] : variables) scope_->set(name, std::move(value));
    scope_ = push_scope(scope_);
    execute(program);
    return !failed_;
}

Value Machine::fail(FailureKind kind, std::string message) {
    if (!failed_) {
        failed_ = true;
        failure_ = {kind, std::move(message), line_};
    }
    return {};
}

Value Machine::fail_undefined(const Value& value) {
    const auto* undefined = std::get_if<Undefined>(&value.data());
    const bool has_hint = undefined != nullptr && undefined->hint != nullptr;
    return fail(FailureKind::undefined, has_hint ? *undefined->hint : "an undefined value is used");
}

bool Machine::enter() {
    if (++depth_ > limits_.max_depth) {
        fail(FailureKind::limit, "nested more than " + std::to_string(limits_.max_depth) + " deep (a macro that never ends?)");
    }
    return !failed_;
}

bool Machine::spend(uint64_t steps) {
    steps_ += steps;
    if (steps_ > limits_.max_steps) {
        fail(FailureKind::limit, "the template takes more than " + std::to_string(limits_.max_steps) + " steps");
    }
    return !failed_;
}

bool Machine::spend_bytes(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ > limits_.max_bytes) {
        fail(FailureKind::limit, "the template makes more than " + std::to_string(limits_.max_bytes) + " bytes");
    }
    return spend(bytes / 64);
}

Value Machine::make_text(Text text) {
    if (!spend_bytes(text.size() + sizeof(Text))) return {};
    return Value::text(std::move(text));
}

Value Machine::make_list(std::vector<Value> items, bool is_tuple) {
    if (!spend_bytes((items.size() + 1) * sizeof(Value))) return {};
    Value out = Value::list(std::move(items), is_tuple);
    if (out.nesting() > kMaxNesting) return fail(FailureKind::limit, "values nested more than 64 deep");
    return out;
}

Value Machine::make_dict(std::vector<std::pair<Value, Value>> entries) {
    if (!spend_bytes((entries.size() + 1) * 2 * sizeof(Value))) return {};
    Value out = Value::dict(std::move(entries));
    if (out.nesting() > kMaxNesting) return fail(FailureKind::limit, "values nested more than 64 deep");
    return out;
}

Value Machine::make_namespace(std::vector<std::pair<std::string, Value>> attributes) {
    if (!spend_bytes((attributes.size() + 2) * 2 * sizeof(Value))) return {};
    auto space = std::make_shared<Namespace>();
    space->attributes = std::move(attributes);
    namespaces_.push_back(space);
    return Value(Value::Data(Value::NamespacePtr(std::move(space))));
}

Value Machine::make_function(std::string_view name, Function function, Value self) {
    auto callable = std::make_shared<Callable>();
    callable->name = name;
    callable->function = function;
    callable->self = std::move(self);
    if (!spend_bytes(sizeof(Callable))) return {};
    return Value(Value::Data(Value::CallablePtr(std::move(callable))));
}

Scope* Machine::push_scope(Scope* parent) {
    scopes_.push_back(std::make_unique<Scope>(parent));
    return scopes_.back().get();
}

/// Leaves the newest scope. `keep`: a macro made in it may still look names up there.
void Machine::pop_scope(Scope* previous, bool keep) {
    if (!keep && scopes_.back().get() == scope_) scopes_.pop_back();
    scope_ = previous;
}

Machine::Flow Machine::execute(const Statements& statements) {
    const DepthGuard guard(*this);
    for (const auto& statement : statements) {
        if (failed_) return Flow::normal;
        const Flow flow = execute_one(*statement);
        if (flow != Flow::normal) return flow;
    }
    return Flow::normal;
}

Machine::Flow Machine::execute_one(const Statement& statement) {
    line_ = statement.line;
    if (!spend(1)) return Flow::normal;
    switch (statement.kind) {
        case StatementKind::text: print_text(statement.text); break;
        case StatementKind::output: print(evaluate(*statement.expression)); break;
        case StatementKind::branch: return execute_branch(statement);
        case StatementKind::loop: return execute_loop(statement);
        case StatementKind::set: execute_set(statement); break;
        case StatementKind::set_block:
            assign(statement.targets[0], filtered(statement.filters.get(), make_text(capture(statement.body))));
            break;
        case StatementKind::macro: define_macro(statement); break;
        case StatementKind::call_block: execute_call_block(statement); break;
        case StatementKind::break_loop: return Flow::break_loop;
        case StatementKind::continue_loop: return Flow::continue_loop;
        case StatementKind::block: return execute(statement.body);
        case StatementKind::filter_block:
            print(filtered(statement.filters.get(), make_text(capture(statement.body))));
            break;
        case StatementKind::with: execute_with(statement); break;
    }
    return Flow::normal;
}

Machine::Flow Machine::execute_branch(const Statement& statement) {
    for (const Branch& branch : statement.branches) {
        const bool taken = branch.condition == nullptr || is_true(evaluate(*branch.condition));
        if (failed_) return Flow::normal;
        if (taken) return execute(branch.body);
    }
    return Flow::normal;
}

/// Items that pass the loop's `if`, each tested with the targets bound in a scope of their own.
std::vector<Value> Machine::passing_items(const Statement& statement, const List& items) {
    std::vector<Value> passing;
    Scope* const outer = scope_;
    scope_ = push_scope(outer);
    for (const Value& item : items.items) {
        bind(statement.targets, item);
        const bool passes = is_true(evaluate(*statement.condition));
        if (failed_) break;
        if (passes) passing.push_back(item);
    }
    pop_scope(outer, false);
    return passing;
}

Machine::Flow Machine::execute_loop(const Statement& statement) {
    const Value iterable = evaluate(*statement.expression);
    if (failed_) return Flow::normal;
    std::shared_ptr<const List> items = items_of(*this, iterable);
    if (failed_) return Flow::normal;
    if (statement.condition != nullptr) {
        const Value passing = make_list(passing_items(statement, *items));
        if (failed_) return Flow::normal;
        items = std::get<Value::ListPtr>(passing.data());
    }
    if (items->items.empty()) return execute(statement.otherwise);
    auto loop = std::make_shared<Loop>();
    loop->items = std::move(items);
    execute_iterations(statement, loop);
    return Flow::normal;
}

void Machine::execute_iterations(const Statement& statement, const std::shared_ptr<Loop>& loop) {
    Scope* const outer = scope_;
    const Value loop_value{Value::Data(loop)};
    for (loop->index0 = 0; loop->index0 < loop->items->items.size() && !failed_; ++loop->index0) {
        const uint64_t macros_before = num_macros_;
        scope_ = push_scope(outer);
        set_name("loop", loop_value);
        bind(statement.targets, loop->items->items[loop->index0]);
        const Flow flow = spend(1) ? execute(statement.body) : Flow::normal;
        pop_scope(outer, num_macros_ != macros_before);
        if (flow == Flow::break_loop) break;
    }
}

void Machine::bind(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) return assign(targets[0], value);
    const auto items = items_of(*this, value);
    if (failed_) return;
    if (items->items.size() != targets.size()) {
        fail_type(std::to_string(items->items.size()) + " values for " + std::to_string(targets.size()) + " names");
        return;
    }
    for (size_t i = 0; i < targets.size(); ++i) assign(targets[i], items->items[i]);
}

const Value* Machine::find_name(std::string_view name) {
    uint64_t num_compared = 0;
    const Value* found = scope_->find(name, num_compared);
    return spend(num_compared / 16) ? found : nullptr;
}

void Machine::set_name(std::string_view name, Value value) {
    if (spend(scope_->size() / 16)) scope_->set(name, std::move(value));
}

bool Machine::spend_look(const Value& self) { return self.as_text() == nullptr || spend(self.as_text()->size() / 8); }

void Machine::assign(const std::string& target, Value value) {
    if (failed_) return;
    const size_t dot = target.find('.');
    if (dot == std::string::npos) return set_name(target, std::move(value));
    const Value* found = find_name(std::string_view(target).substr(0, dot));
    Namespace* space = found == nullptr ? nullptr : found->as_namespace();
    if (space == nullptr) {
        fail_type("cannot assign attribute on non-namespace object");
        return;
    }
    const std::string name = target.substr(dot + 1);
    if (!spend(space->attributes.size() / 16)) return;
    for (auto& [key, old] : space->attributes) {
        if (key == name) {
            old = std::move(value);
            return;
        }
    }
    if (spend_bytes(2 * sizeof(Value))) space->attributes.emplace_back(name, std::move(value));
}

void Machine::execute_set(const Statement& statement) {
    const Value value = evaluate(*statement.expression);
    if (!failed_) bind(statement.targets, value);
}

void Machine::execute_with(const Statement& statement) {
    Scope* const outer = scope_;
    const uint64_t macros_before = num_macros_;
    std::vector<Value> values;
    for (const auto& [name, expression] : statement.assignments) values.push_back(evaluate(*expression));
    scope_ = push_scope(outer);
    for (size_t i = 0; i < values.size(); ++i) set_name(statement.assignments[i].first, std::move(values[i]));
    execute(statement.body);
    pop_scope(outer, num_macros_ != macros_before);
}

void Machine::define_macro(const Statement& statement) {
    auto callable = std::make_shared<Callable>();
    callable->name = statement.name;
    callable->macro = &statement;
    callable->scope = scope_;
    ++num_macros_;
    if (!spend_bytes(sizeof(Callable))) return;
    set_name(statement.name, Value(Value::Data(Value::CallablePtr(std::move(callable)))));
}

void Machine::execute_call_block(const Statement& statement) {
    auto caller = std::make_shared<Callable>();
    caller->name = statement.name;
    caller->macro = &statement;
    caller->scope = scope_;
    ++num_macros_;
    print(call_with_caller(*statement.expression, Value(Value::Data(Value::CallablePtr(std::move(caller))))));
}

Value Machine::call_with_caller(const Expression& call_expression, Value caller) {
    const Value callee = evaluate(*call_expression.operands[0]);
    const Arguments arguments = evaluate_arguments(call_expression);
    if (failed_) return {};
    const Callable* callable = callee.as_callable();
    if (callable == nullptr || callable->macro == nullptr) return fail_type("a call block needs a macro");
    Callable with_caller = *callable;
    with_caller.caller = std::move(caller);
    return call_macro(with_caller, arguments);
}

Text Machine::capture(const Statements& body) {
    Text captured;
    Text* const outer_text = std::exchange(out_, &captured);
    Scope* const outer = scope_;
    const uint64_t macros_before = num_macros_;
    scope_ = push_scope(outer);
    execute(body);
    pop_scope(outer, num_macros_ != macros_before);
    out_ = outer_text;
    return captured;
}

Value Machine::filtered(const Expression* chain, Value hole) {
    if (failed_ || chain == nullptr) return hole;
    const Value* const outer = std::exchange(hole_, &hole);
    Value out = evaluate(*chain);
    hole_ = outer;
    return out;
}

bool Machine::spend_output(size_t bytes) {
    if (out_->size() + bytes > limits_.max_output_bytes) {
        fail(FailureKind::limit, "the template prints more than " + std::to_string(limits_.max_output_bytes) + " bytes");
        return false;
    }
    return spend_bytes(bytes);
}

void Machine::print_text(std::string_view text) {
    if (spend_output(text.size())) out_->append(text, false);
}

void Machine::print(const Value& value) {
    if (failed_) return;
    const Text* direct = value.as_text();
    const Text text = direct != nullptr ? Text{} : text_of(*this, value);
    const Text& printed = direct != nullptr ? *direct : text;
    if (!failed_ && spend_output(printed.size())) out_->append(printed);
}

Value Machine::call_macro(const Callable& callable, const Arguments& arguments) {
    const Statement& macro = *callable.macro;
    const auto& parameters = macro.parameters;
    if (arguments.positional.size() > parameters.size()) {
        return fail_type("macro '" + callable.name + "' takes not more than " + std::to_string(parameters.size()) +
                         " argument(s)");
    }
    for (const auto& [name, value] : arguments.named) {
        const auto known = std::any_of(parameters.begin(), parameters.end(),
                                       [&key = name](const Parameter& parameter) { return parameter.name == key; });
        if (!known && name != "caller")
            return fail_type("macro '" + callable.name + "' takes no keyword argument '" + name + "'");
    }
    const DepthGuard guard(*this);
    if (failed_ || !spend(parameters.size() * (arguments.named.size() + 1) / 16)) return {};
    Scope* const outer = scope_;
    const uint64_t macros_before = num_macros_;
    scope_ = push_scope(callable.scope);
    if (!callable.caller.is_undefined()) set_name("caller", callable.caller);
    for (size_t i = 0; i < parameters.size(); ++i) {
        const Parameter& parameter = parameters[i];
        const Value* given = arguments.get(i, parameter.name);
        if (given != nullptr) {
            set_name(parameter.name, *given);
        } else if (parameter.fallback != nullptr) {
            set_name(parameter.name, evaluate(*parameter.fallback));
        } else {
            set_name(parameter.name, Value::undefined("parameter '" + parameter.name + "' was not provided"));
        }
    }
    Value out = make_text(capture(macro.body));
    pop_scope(outer, num_macros_ != macros_before);
    return failed_ ? Value{} : out;
}

}  // namespace takt::jinja
