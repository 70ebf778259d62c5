// Expressions of a render. One render, one thread. See machine.h.
#include <utility>

#include "model/jinja/functions.h"
#include "model/jinja/machine.h"
#include "model/jinja/operations.h"

namespace takt::jinja {

Value Machine::evaluate(const Expression& expression) {
    if (failed_ || !spend(1)) return {};
    Value out;
    if (enter()) {
        line_ = expression.line;
        out = evaluate_inner(expression);
    }
    --depth_;
    return failed_ ? Value{} : out;
}

Value Machine::evaluate_inner(const Expression& expression) {
    const auto operand = [&](size_t i) { return evaluate(*expression.operands[i]); };
    switch (expression.kind) {
        case ExpressionKind::constant:
            return expression.value.is_undefined() && hole_ != nullptr ? *hole_ : expression.value;
        case ExpressionKind::name: return evaluate_name(expression);
        case ExpressionKind::list:
        case ExpressionKind::tuple:
        case ExpressionKind::dict: return evaluate_container(expression);
        case ExpressionKind::attribute: {
            const Value object = operand(0);
            return failed_ ? Value{} : attribute_of(*this, object, expression.name);
        }
        case ExpressionKind::item: {
            const Value object = operand(0);
            const Value key = operand(1);
            return failed_ ? Value{} : item_of(*this, object, key);
        }
        case ExpressionKind::slice: return evaluate_slice(expression);
        case ExpressionKind::call: return evaluate_call(expression);
        case ExpressionKind::filter: {
            const Value self = operand(0);
            const Arguments arguments = evaluate_arguments(expression);
            return failed_ ? Value{} : filter(expression.name, self, arguments);
        }
        case ExpressionKind::test: {
            const Value self = operand(0);
            const Arguments arguments = evaluate_arguments(expression);
            return failed_ ? Value{} : Value::boolean(test(expression.name, self, arguments));
        }
        case ExpressionKind::negative:
        case ExpressionKind::positive: {
            const Value zero = Value::integer(0);
            const Value value = operand(0);
            return failed_ ? Value{}
                           : arithmetic(*this, expression.kind == ExpressionKind::negative ? "-" : "+", zero, value);
        }
        case ExpressionKind::binary: return evaluate_binary(expression);
        case ExpressionKind::concat: return evaluate_concat(expression);
        case ExpressionKind::compare: return evaluate_compare(expression);
        case ExpressionKind::logical_not:
        case ExpressionKind::logical_and:
        case ExpressionKind::logical_or:
        case ExpressionKind::condition: return evaluate_logic(expression);
    }
    return {};
}

Value Machine::evaluate_name(const Expression& expression) {
    const Value* found = find_name(expression.name);
    if (found != nullptr) return *found;
    if (failed_) return {};
    const Function global = find_global(expression.name);
    if (global != nullptr) return make_function(expression.name, global);
    return Value::undefined("'" + expression.name + "' is undefined");
}

Value Machine::evaluate_container(const Expression& expression) {
    std::vector<Value> items;
    items.reserve(expression.operands.size());
    for (const ExpressionPtr& operand : expression.operands) items.push_back(evaluate(*operand));
    if (failed_) return {};
    if (expression.kind != ExpressionKind::dict)
        return make_list(std::move(items), expression.kind == ExpressionKind::tuple);
    std::vector<std::pair<Value, Value>> entries;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
        bool replaced = false;
        for (auto& [key, value] : entries) {
            if (!is_equal(*this, key, items[i])) continue;
            value = items[i + 1];
            replaced = true;
            break;
        }
        if (failed_) return {};
        if (!replaced) entries.emplace_back(items[i], items[i + 1]);
    }
    return make_dict(std::move(entries));
}

Value Machine::evaluate_slice(const Expression& expression) {
    const Value object = evaluate(*expression.operands[0]);
    Value bounds[3] = {Value::none(), Value::none(), Value::none()};
    for (size_t i = 0; i < 3; ++i) {
        if (expression.operands[i + 1] != nullptr) bounds[i] = evaluate(*expression.operands[i + 1]);
    }
    return failed_ ? Value{} : slice_of(*this, object, bounds[0], bounds[1], bounds[2]);
}

Arguments Machine::evaluate_arguments(const Expression& call_expression) {
    Arguments arguments;
    for (size_t i = 1; i < call_expression.operands.size(); ++i) {
        arguments.positional.push_back(evaluate(*call_expression.operands[i]));
    }
    for (const auto& [name, value] : call_expression.keywords) arguments.named.emplace_back(name, evaluate(*value));
    return arguments;
}

Value Machine::evaluate_call(const Expression& expression) {
    const Value callee = evaluate(*expression.operands[0]);
    const Arguments arguments = evaluate_arguments(expression);
    if (failed_) return {};
    line_ = expression.line;
    return call(callee, arguments);
}

Value Machine::evaluate_binary(const Expression& expression) {
    const Value left = evaluate(*expression.operands[0]);
    const Value right = evaluate(*expression.operands[1]);
    return failed_ ? Value{} : arithmetic(*this, expression.name, left, right);
}

Value Machine::evaluate_concat(const Expression& expression) {
    Text joined;
    for (const ExpressionPtr& operand : expression.operands) {
        const Value value = evaluate(*operand);
        if (failed_) return {};
        joined.append(text_of(*this, value));
    }
    return make_text(std::move(joined));
}

Value Machine::evaluate_compare(const Expression& expression) {
    Value left = evaluate(*expression.operands[0]);
    for (size_t i = 0; i < expression.operators.size(); ++i) {
        Value right = evaluate(*expression.operands[i + 1]);
        if (failed_) return {};
        const bool holds = compare_by(*this, expression.operators[i], left, right);
        if (!holds || failed_) return Value::boolean(false);
        left = std::move(right);
    }
    return Value::boolean(true);
}

Value Machine::evaluate_logic(const Expression& expression) {
    if (expression.kind == ExpressionKind::condition) {
        const Value chooser = evaluate(*expression.operands[1]);
        if (failed_) return {};
        if (is_true(chooser)) return evaluate(*expression.operands[0]);
        if (expression.operands[2] != nullptr) return evaluate(*expression.operands[2]);
        return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
    }
    Value left = evaluate(*expression.operands[0]);
    if (failed_) return {};
    if (expression.kind == ExpressionKind::logical_not) return Value::boolean(!is_true(left));
    const bool decided = is_true(left) == (expression.kind == ExpressionKind::logical_or);
    return decided ? left : evaluate(*expression.operands[1]);
}

Value Machine::call(const Value& callable, const Arguments& arguments) {
    if (failed_) return {};
    if (callable.is_undefined()) return fail_undefined(callable);
    const Callable* target = callable.as_callable();
    if (target == nullptr) return fail_type("'" + std::string(type_name(callable)) + "' object is not callable");
    if (target->macro != nullptr) return call_macro(*target, arguments);
    if (!spend_look(target->self)) return {};
    Value out = target->function(*this, target->self, arguments);
    return failed_ ? Value{} : out;
}

Value Machine::filter(std::string_view name, const Value& self, const Arguments& arguments) {
    const Function function = find_filter(name);
    if (function == nullptr) return fail_type("no filter named '" + std::string(name) + "' in this version");
    if (!spend_look(self)) return {};
    Value out = function(*this, self, arguments);
    return failed_ ? Value{} : out;
}

bool Machine::test(std::string_view name, const Value& self, const Arguments& arguments) {
    const Function function = find_test(name);
    if (function == nullptr) {
        fail_type("no test named '" + std::string(name) + "' in this version");
        return false;
    }
    const Value out = function(*this, self, arguments);
    return !failed_ && is_true(out);
}

}  // namespace takt::jinja
