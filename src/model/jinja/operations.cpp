// Truth, equality, order and arithmetic as Python has them. One render, one thread. See operations.h.
#include "model/jinja/operations.h"

#include <cmath>

#include "model/jinja/text_functions.h"

namespace takt::jinja {
namespace {

Value wrong_operands(Machine& machine, std::string_view name, const Value& a, const Value& b) {
    if (a.is_undefined()) return machine.fail_undefined(a);
    if (b.is_undefined()) return machine.fail_undefined(b);
    return machine.fail_type("unsupported operand types for " + std::string(name) + ": '" + std::string(type_name(a)) +
                             "' and '" + std::string(type_name(b)) + "'");
}

bool is_equal_numeric(const Value& a, const Value& b) {
    if (a.as_number() == nullptr && b.as_number() == nullptr) return a.whole() == b.whole();
    return a.real() == b.real();
}

bool is_equal_dict(Machine& machine, const Dict& a, const Dict& b) {
    if (a.entries.size() != b.entries.size()) return false;
    for (const auto& [key, value] : a.entries) {
        bool found = false;
        for (const auto& [other_key, other_value] : b.entries) {
            if (!is_equal(machine, key, other_key)) continue;
            found = is_equal(machine, value, other_value);
            break;
        }
        if (!found || machine.failed()) return false;
    }
    return true;
}

bool is_equal_list(Machine& machine, const List& a, const List& b) {
    if (a.items.size() != b.items.size() || a.is_tuple != b.is_tuple) return false;
    for (size_t i = 0; i < a.items.size(); ++i) {
        if (!is_equal(machine, a.items[i], b.items[i])) return false;
    }
    return true;
}

Value add_numbers(Machine& machine, std::string_view name, int64_t a, int64_t b) {
    int64_t out = 0;
    const bool overflow = name == "+"   ? __builtin_add_overflow(a, b, &out)
                          : name == "-" ? __builtin_sub_overflow(a, b, &out)
                                        : __builtin_mul_overflow(a, b, &out);
    if (overflow) return machine.fail_type("an integer of over 64 bits");
    return Value::integer(out);
}

/// Python's // and %: the quotient is rounded down, the remainder has the divisor's sign.
Value divide_whole(Machine& machine, std::string_view name, int64_t a, int64_t b) {
    if (b == 0) return machine.fail_type("division by zero");
    if (b == -1) return name == "%" ? Value::integer(0) : add_numbers(machine, "-", 0, a);
    int64_t quotient = a / b;
    int64_t remainder = a % b;
    if (remainder != 0 && (remainder < 0) != (b < 0)) {
        --quotient;
        remainder += b;
    }
    return Value::integer(name == "%" ? remainder : quotient);
}

Value power(Machine& machine, const Value& a, const Value& b) {
    const bool whole = a.as_number() == nullptr && b.as_number() == nullptr && b.whole() >= 0;
    if (!whole) return Value::number(std::pow(a.real(), b.real()));
    int64_t out = 1;
    int64_t base = a.whole();
    for (int64_t exponent = b.whole(); exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1 && __builtin_mul_overflow(out, base, &out)) {
            return machine.fail_type("an integer of over 64 bits");
        }
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) {
            return machine.fail_type("an integer of over 64 bits");
        }
    }
    return Value::integer(out);
}

Value numeric_arithmetic(Machine& machine, std::string_view name, const Value& a, const Value& b) {
    if (name == "**") return power(machine, a, b);
    const bool whole = a.as_number() == nullptr && b.as_number() == nullptr;
    if (whole && (name == "//" || name == "%")) return divide_whole(machine, name, a.whole(), b.whole());
    if (whole && name != "/") return add_numbers(machine, name, a.whole(), b.whole());
    const double x = a.real();
    const double y = b.real();
    if (name == "+") return Value::number(x + y);
    if (name == "-") return Value::number(x - y);
    if (name == "*") return Value::number(x * y);
    if (y == 0) return machine.fail_type("division by zero");
    if (name == "/") return Value::number(x / y);
    if (name == "//") return Value::number(std::floor(x / y));
    const double remainder = std::fmod(x, y);
    return Value::number(remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder);
}

/// A text or list times a number.
Value repeat(Machine& machine, const Value& sequence, int64_t count) {
    const uint64_t times = count > 0 ? static_cast<uint64_t>(count) : 0;
    if (const Text* text = sequence.as_text()) {
        if (text->empty() || times == 0) return machine.make_text(Text{});
        if (times > machine.max_bytes() / text->size() || !machine.spend_bytes(times * text->size())) {
            return machine.fail(FailureKind::limit, "a text repeated too often");
        }
        // By doubling: a character a hundred million times is a hundred million appends otherwise.
        Text out;
        Text power = *text;
        for (uint64_t left = times;;) {
            if (left % 2 == 1) out.append(power);
            left /= 2;
            if (left == 0) break;
            power.append(Text(power));
        }
        return Value::text(std::move(out));
    }
    const List& list = *sequence.as_list();
    if (list.items.empty() || times == 0) return machine.make_list({}, list.is_tuple);
    const uint64_t one = list.items.size() * sizeof(Value);
    if (times > machine.max_bytes() / one || !machine.spend_bytes(times * one)) {
        return machine.fail(FailureKind::limit, "a list repeated too often");
    }
    std::vector<Value> items;
    for (uint64_t i = 0; i < times; ++i) items.insert(items.end(), list.items.begin(), list.items.end());
    return machine.make_list(std::move(items), list.is_tuple);
}

}  // namespace

bool is_true(const Value& value) {
    if (const bool* b = value.as_bool()) return *b;
    if (const int64_t* i = value.as_integer()) return *i != 0;
    if (const double* d = value.as_number()) return *d != 0;
    if (const Text* text = value.as_text()) return !text->empty();
    if (const List* list = value.as_list()) return !list->items.empty();
    if (const Dict* dict = value.as_dict()) return !dict->entries.empty();
    return !value.is_undefined() && !value.is_none();
}

bool is_equal(Machine& machine, const Value& a, const Value& b) {
    if (!machine.spend(1)) return false;
    if (a.is_numeric() && b.is_numeric()) return is_equal_numeric(a, b);
    if (a.data().index() != b.data().index()) return false;
    if (a.is_undefined() || a.is_none()) return true;
    if (const Text* text = a.as_text()) {
        return text->bytes() == b.as_text()->bytes() && machine.spend(text->size() / 64);
    }
    if (const List* list = a.as_list()) return list == b.as_list() || is_equal_list(machine, *list, *b.as_list());
    if (const Dict* dict = a.as_dict()) return dict == b.as_dict() || is_equal_dict(machine, *dict, *b.as_dict());
    return a.as_namespace() == b.as_namespace() && a.as_loop() == b.as_loop() && a.as_callable() == b.as_callable();
}

std::optional<int> compare(Machine& machine, const Value& a, const Value& b) {
    if (!machine.spend(1)) return std::nullopt;
    const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
    if (a.is_numeric() && b.is_numeric()) {
        const bool whole = a.as_number() == nullptr && b.as_number() == nullptr;
        return whole ? order(a.whole(), b.whole()) : order(a.real(), b.real());
    }
    if (a.as_text() != nullptr && b.as_text() != nullptr) {
        machine.spend(std::min(a.as_text()->size(), b.as_text()->size()) / 64);
        return order(a.as_text()->bytes().compare(b.as_text()->bytes()), 0);
    }
    const List* x = a.as_list();
    const List* y = b.as_list();
    if (x != nullptr && y != nullptr && x->is_tuple == y->is_tuple) {
        for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i) {
            if (is_equal(machine, x->items[i], y->items[i])) continue;
            return compare(machine, x->items[i], y->items[i]);
        }
        return order(x->items.size(), y->items.size());
    }
    wrong_operands(machine, "<", a, b);
    return std::nullopt;
}

bool contains(Machine& machine, const Value& container, const Value& item) {
    if (const Text* text = container.as_text()) {
        const Text* part = item.as_text();
        if (part == nullptr) {
            machine.fail_type("'in <string>' requires string as left operand, not " + std::string(type_name(item)));
            return false;
        }
        return machine.spend(text->size() / 64) && find_part(text->bytes(), part->bytes()) != std::string::npos;
    }
    if (const Dict* dict = container.as_dict()) {
        for (const auto& [key, value] : dict->entries) {
            if (is_equal(machine, key, item)) return true;
        }
        return false;
    }
    const auto items = items_of(machine, container);
    if (items == nullptr) return false;
    for (const Value& each : items->items) {
        if (is_equal(machine, each, item)) return true;
    }
    return false;
}

bool compare_by(Machine& machine, std::string_view name, const Value& a, const Value& b) {
    if (name == "==") return is_equal(machine, a, b);
    if (name == "!=") return !is_equal(machine, a, b) && !machine.failed();
    if (name == "in") return contains(machine, b, a);
    if (name == "not in") return !contains(machine, b, a) && !machine.failed();
    const std::optional<int> order = compare(machine, a, b);
    if (!order) return false;
    if (name == "<") return *order < 0;
    if (name == "<=") return *order <= 0;
    return name == ">" ? *order > 0 : *order >= 0;
}

Value arithmetic(Machine& machine, std::string_view name, const Value& a, const Value& b) {
    if (a.is_numeric() && b.is_numeric()) return numeric_arithmetic(machine, name, a, b);
    const bool both_lists = a.as_list() != nullptr && b.as_list() != nullptr;
    if (name == "+" && a.as_text() != nullptr && b.as_text() != nullptr) {
        if (!machine.spend_bytes(a.as_text()->size() + b.as_text()->size())) return {};
        Text out = *a.as_text();
        out.append(*b.as_text());
        return Value::text(std::move(out));
    }
    if (name == "+" && both_lists && a.as_list()->is_tuple == b.as_list()->is_tuple) {
        std::vector<Value> items = a.as_list()->items;
        items.insert(items.end(), b.as_list()->items.begin(), b.as_list()->items.end());
        return machine.make_list(std::move(items), a.as_list()->is_tuple);
    }
    if (name == "*") {
        const bool left = a.as_text() != nullptr || a.as_list() != nullptr;
        const bool right = b.as_text() != nullptr || b.as_list() != nullptr;
        if (left && b.is_numeric() && b.as_number() == nullptr) return repeat(machine, a, b.whole());
        if (right && a.is_numeric() && a.as_number() == nullptr) return repeat(machine, b, a.whole());
    }
    if (name == "%" && a.as_text() != nullptr) {
        Arguments arguments;
        const List* tuple = b.as_list();
        if (tuple != nullptr && tuple->is_tuple) {
            arguments.positional = tuple->items;
        } else {
            arguments.positional.push_back(b);
        }
        return machine.filter("format", a, arguments);
    }
    return wrong_operands(machine, name, a, b);
}

}  // namespace takt::jinja
