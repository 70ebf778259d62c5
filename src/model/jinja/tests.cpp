// The tests behind `is`. One render, one thread. See functions.h.
#include "model/jinja/functions.h"
#include "model/jinja/operations.h"
#include "model/jinja/text_functions.h"

namespace takt::jinja {
namespace {

Value yes_if(bool b) { return Value::boolean(b); }

Value test_defined(Machine&, const Value& self, const Arguments&) { return yes_if(!self.is_undefined()); }
Value test_undefined(Machine&, const Value& self, const Arguments&) { return yes_if(self.is_undefined()); }
Value test_none(Machine&, const Value& self, const Arguments&) { return yes_if(self.is_none()); }
Value test_string(Machine&, const Value& self, const Arguments&) { return yes_if(self.as_text() != nullptr); }
Value test_mapping(Machine&, const Value& self, const Arguments&) { return yes_if(self.as_dict() != nullptr); }
Value test_boolean(Machine&, const Value& self, const Arguments&) { return yes_if(self.as_bool() != nullptr); }
Value test_integer(Machine&, const Value& self, const Arguments&) { return yes_if(self.as_integer() != nullptr); }
Value test_float(Machine&, const Value& self, const Arguments&) { return yes_if(self.as_number() != nullptr); }
Value test_number(Machine&, const Value& self, const Arguments&) { return yes_if(self.is_numeric()); }
Value test_true(Machine&, const Value& self, const Arguments&) {
    return yes_if(self.as_bool() != nullptr && *self.as_bool());
}
Value test_false(Machine&, const Value& self, const Arguments&) {
    return yes_if(self.as_bool() != nullptr && !*self.as_bool());
}
Value test_callable(Machine&, const Value& self, const Arguments&) { return yes_if(self.as_callable() != nullptr); }

bool is_container(const Value& self) {
    return self.as_text() != nullptr || self.as_list() != nullptr || self.as_dict() != nullptr;
}

Value test_iterable(Machine&, const Value& self, const Arguments&) {
    return yes_if(is_container(self) || self.is_undefined());
}
Value test_sequence(Machine&, const Value& self, const Arguments&) {
    return yes_if(is_container(self) || self.is_undefined());
}

template <int kRemainder>
Value test_parity(Machine& machine, const Value& self, const Arguments&) {
    const Value rest = arithmetic(machine, "%", self, Value::integer(2));
    return yes_if(rest.is_numeric() && rest.real() == kRemainder);
}

Value test_divisible(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* by = arguments.get(0, "num");
    if (by == nullptr) return machine.fail_type("divisibleby takes a number");
    const Value rest = arithmetic(machine, "%", self, *by);
    return yes_if(rest.is_numeric() && rest.real() == 0);
}

Value test_lower(Machine& machine, const Value& self, const Arguments&) {
    const Text text = text_of(machine, self);
    if (!machine.spend(text.size() / 8)) return {};
    return yes_if(lowercase(text).bytes() == text.bytes() && uppercase(text).bytes() != text.bytes());
}
Value test_upper(Machine& machine, const Value& self, const Arguments&) {
    const Text text = text_of(machine, self);
    if (!machine.spend(text.size() / 8)) return {};
    return yes_if(uppercase(text).bytes() == text.bytes() && lowercase(text).bytes() != text.bytes());
}

Value compared(Machine& machine, const Value& self, const Arguments& arguments, std::string_view name) {
    if (arguments.positional.empty()) return machine.fail_type("a comparing test takes a value");
    return yes_if(compare_by(machine, name, self, arguments.positional[0]));
}

Value test_equal(Machine& machine, const Value& self, const Arguments& arguments) {
    return compared(machine, self, arguments, "==");
}
Value test_unequal(Machine& machine, const Value& self, const Arguments& arguments) {
    return compared(machine, self, arguments, "!=");
}
Value test_less(Machine& machine, const Value& self, const Arguments& arguments) {
    return compared(machine, self, arguments, "<");
}
Value test_at_most(Machine& machine, const Value& self, const Arguments& arguments) {
    return compared(machine, self, arguments, "<=");
}
Value test_greater(Machine& machine, const Value& self, const Arguments& arguments) {
    return compared(machine, self, arguments, ">");
}
Value test_at_least(Machine& machine, const Value& self, const Arguments& arguments) {
    return compared(machine, self, arguments, ">=");
}
Value test_in(Machine& machine, const Value& self, const Arguments& arguments) {
    return compared(machine, self, arguments, "in");
}

/// The same object, or an equal plain value.
Value test_same(Machine& machine, const Value& self, const Arguments& arguments) {
    if (arguments.positional.empty()) return machine.fail_type("sameas takes a value");
    const Value& other = arguments.positional[0];
    if (self.data().index() != other.data().index()) return yes_if(false);
    const bool containers = self.as_list() != nullptr || self.as_dict() != nullptr;
    if (containers) return yes_if(self.as_list() == other.as_list() && self.as_dict() == other.as_dict());
    return yes_if(is_equal(machine, self, other));
}

Value test_filter_name(Machine&, const Value& self, const Arguments&) {
    return yes_if(self.as_text() != nullptr && find_filter(self.as_text()->bytes()) != nullptr);
}
Value test_test_name(Machine&, const Value& self, const Arguments&) {
    return yes_if(self.as_text() != nullptr && find_test(self.as_text()->bytes()) != nullptr);
}

constexpr NamedFunction kTests[] = {
    {"boolean", test_boolean},
    {"callable", test_callable},
    {"defined", test_defined},
    {"divisibleby", test_divisible},
    {"eq", test_equal},
    {"equalto", test_equal},
    {"even", test_parity<0>},
    {"false", test_false},
    {"filter", test_filter_name},
    {"float", test_float},
    {"ge", test_at_least},
    {"greaterthan", test_greater},
    {"gt", test_greater},
    {"in", test_in},
    {"integer", test_integer},
    {"iterable", test_iterable},
    {"le", test_at_most},
    {"lessthan", test_less},
    {"lower", test_lower},
    {"lt", test_less},
    {"mapping", test_mapping},
    {"ne", test_unequal},
    {"none", test_none},
    {"number", test_number},
    {"odd", test_parity<1>},
    {"sameas", test_same},
    {"sequence", test_sequence},
    {"string", test_string},
    {"test", test_test_name},
    {"true", test_true},
    {"undefined", test_undefined},
    {"upper", test_upper},
    {"==", test_equal},
    {"!=", test_unequal},
    {"<", test_less},
    {"<=", test_at_most},
    {">", test_greater},
    {">=", test_at_least},
};

}  // namespace

Function find_test(std::string_view name) { return find_in(kTests, name); }

}  // namespace takt::jinja
