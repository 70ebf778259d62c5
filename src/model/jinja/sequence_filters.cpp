// Filters over lists and dictionaries. One render, one thread. See functions.h.
#include <algorithm>

#include "model/jinja/functions.h"
#include "model/jinja/operations.h"
#include "model/jinja/text_functions.h"

namespace takt::jinja {
namespace {

/// The value that a filter's `attribute` argument selects, or the item itself.
Value key_of(Machine& machine, const Value& item, const Value* attribute) {
    return attribute == nullptr || attribute->is_none() ? item : path_of(machine, item, *attribute);
}

Value ignore_case(Machine& machine, const Value& value, bool case_sensitive) {
    const Text* text = value.as_text();
    return text == nullptr || case_sensitive ? value : machine.make_text(lowercase(*text));
}

Value filter_length(Machine& machine, const Value& self, const Arguments&) {
    const auto length = length_of(machine, self);
    return length ? Value::integer(static_cast<int64_t>(*length)) : Value{};
}

Value filter_default(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* fallback = arguments.get(0, "default_value");
    const bool replaces_false = flag_argument(arguments, 1, "boolean", false);
    const bool keep = !self.is_undefined() && (!replaces_false || is_true(self));
    if (keep) return self;
    return fallback != nullptr ? *fallback : machine.make_text("");
}

Value filter_join(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* given = arguments.get(0, "d");
    const Text separator = given == nullptr ? Text{} : text_of(machine, *given);
    const Value* attribute = arguments.get(1, "attribute");
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    Text out;
    for (size_t i = 0; i < items->items.size() && !machine.failed(); ++i) {
        const Text piece = text_of(machine, key_of(machine, items->items[i], attribute));
        if (!machine.spend_bytes(piece.size() + separator.size())) return {};
        if (i > 0) out.append(separator);
        out.append(piece);
    }
    return machine.make_text(std::move(out));
}

Value filter_list(Machine& machine, const Value& self, const Arguments&) {
    const auto items = items_of(machine, self);
    return items == nullptr ? Value{} : machine.make_list(items->items);
}

Value filter_items(Machine& machine, const Value& self, const Arguments&) {
    if (self.is_undefined()) return machine.make_list({});
    const Dict* dict = self.as_dict();
    if (dict == nullptr) return machine.fail_type("can only get item pairs from a mapping");
    std::vector<Value> pairs;
    for (const auto& [key, value] : dict->entries) pairs.push_back(machine.make_list({key, value}, true));
    return machine.make_list(std::move(pairs));
}

Value filter_first(Machine& machine, const Value& self, const Arguments&) {
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    return items->items.empty() ? Value::undefined("no first item, the sequence was empty") : items->items.front();
}

Value filter_last(Machine& machine, const Value& self, const Arguments&) {
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    return items->items.empty() ? Value::undefined("no last item, the sequence was empty") : items->items.back();
}

Value filter_reverse(Machine& machine, const Value& self, const Arguments&) {
    const Value step = Value::integer(-1);
    if (self.as_text() != nullptr) return slice_of(machine, self, Value::none(), Value::none(), step);
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    return machine.make_list({items->items.rbegin(), items->items.rend()});
}

/// Sorts by keys; `reverse` keeps the order of equals, as Python does.
std::vector<Value> sorted(Machine& machine, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
    machine.spend(keyed.size());
    const auto before = [&](const auto& a, const auto& b) {
        const auto order = machine.failed()
                               ? std::nullopt
                               : compare(machine, reverse ? b.first : a.first, reverse ? a.first : b.first);
        return order.value_or(0) < 0;
    };
    std::stable_sort(keyed.begin(), keyed.end(), before);
    std::vector<Value> out;
    for (auto& [key, value] : keyed) out.push_back(std::move(value));
    return out;
}

Value filter_sort(Machine& machine, const Value& self, const Arguments& arguments) {
    const bool case_sensitive = flag_argument(arguments, 1, "case_sensitive", false);
    const Value* attribute = arguments.get(2, "attribute");
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : items->items) {
        keyed.emplace_back(ignore_case(machine, key_of(machine, item, attribute), case_sensitive), item);
    }
    return machine.make_list(sorted(machine, std::move(keyed), flag_argument(arguments, 0, "reverse", false)));
}

Value filter_dictsort(Machine& machine, const Value& self, const Arguments& arguments) {
    const Dict* dict = self.as_dict();
    if (dict == nullptr) {
        return self.is_undefined() ? machine.fail_undefined(self) : machine.fail_type("dictsort takes a mapping");
    }
    const bool case_sensitive = flag_argument(arguments, 0, "case_sensitive", false);
    const Text* by = optional_text(machine, arguments, 1, "by");
    const bool by_value = by != nullptr && by->bytes() == "value";
    std::vector<std::pair<Value, Value>> keyed;
    for (const auto& [key, value] : dict->entries) {
        keyed.emplace_back(ignore_case(machine, by_value ? value : key, case_sensitive),
                           machine.make_list({key, value}, true));
    }
    return machine.make_list(sorted(machine, std::move(keyed), flag_argument(arguments, 2, "reverse", false)));
}

Value filter_unique(Machine& machine, const Value& self, const Arguments& arguments) {
    const bool case_sensitive = flag_argument(arguments, 0, "case_sensitive", false);
    const Value* attribute = arguments.get(1, "attribute");
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    std::vector<Value> seen;
    std::vector<Value> out;
    for (const Value& item : items->items) {
        const Value key = ignore_case(machine, key_of(machine, item, attribute), case_sensitive);
        const bool known =
            std::any_of(seen.begin(), seen.end(), [&](const Value& old) { return is_equal(machine, old, key); });
        if (machine.failed()) return {};
        if (known) continue;
        seen.push_back(key);
        out.push_back(item);
    }
    return machine.make_list(std::move(out));
}

/// min and max: the first of equal items.
Value extreme(Machine& machine, const Value& self, const Arguments& arguments, int wanted) {
    const bool case_sensitive = flag_argument(arguments, 0, "case_sensitive", false);
    const Value* attribute = arguments.get(1, "attribute");
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    if (items->items.empty()) return Value::undefined("no aggregated item, the sequence was empty");
    size_t best = 0;
    Value best_key;
    for (size_t i = 0; i < items->items.size() && !machine.failed(); ++i) {
        Value key = ignore_case(machine, key_of(machine, items->items[i], attribute), case_sensitive);
        const bool better = i == 0 || compare(machine, key, best_key).value_or(0) == wanted;
        if (!better) continue;
        best = i;
        best_key = std::move(key);
    }
    return items->items[best];
}

Value filter_min(Machine& machine, const Value& self, const Arguments& arguments) {
    return extreme(machine, self, arguments, -1);
}
Value filter_max(Machine& machine, const Value& self, const Arguments& arguments) {
    return extreme(machine, self, arguments, 1);
}

Value filter_sum(Machine& machine, const Value& self, const Arguments& arguments) {
    const Value* attribute = arguments.get(0, "attribute");
    const Value* start = arguments.get(1, "start");
    Value total = start == nullptr ? Value::integer(0) : *start;
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    for (const Value& item : items->items) {
        total = arithmetic(machine, "+", total, key_of(machine, item, attribute));
        if (machine.failed()) return {};
    }
    return total;
}

Arguments without_first(const Arguments& arguments, size_t count) {
    Arguments rest;
    rest.positional.assign(
        arguments.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size())),
        arguments.positional.end());
    rest.named = arguments.named;
    return rest;
}

/// select, reject (a test, default truth) and selectattr, rejectattr (an attribute first).
Value selected(Machine& machine, const Value& self, const Arguments& arguments, bool wanted, bool by_attribute) {
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    const size_t test_at = by_attribute ? 1 : 0;
    if (by_attribute && arguments.positional.empty())
        return machine.fail_type("selectattr and rejectattr take an attribute");
    const Text* test =
        arguments.positional.size() > test_at ? text_argument(machine, arguments, test_at, "test") : nullptr;
    const Arguments rest = without_first(arguments, test_at + 1);
    std::vector<Value> out;
    for (const Value& item : items->items) {
        const Value subject = by_attribute ? path_of(machine, item, arguments.positional[0]) : item;
        const bool passes = test == nullptr ? is_true(subject) : machine.test(test->bytes(), subject, rest);
        if (machine.failed() || !machine.spend(1)) return {};
        if (passes == wanted) out.push_back(item);
    }
    return machine.make_list(std::move(out));
}

Value filter_select(Machine& machine, const Value& self, const Arguments& arguments) {
    return selected(machine, self, arguments, true, false);
}
Value filter_reject(Machine& machine, const Value& self, const Arguments& arguments) {
    return selected(machine, self, arguments, false, false);
}
Value filter_selectattr(Machine& machine, const Value& self, const Arguments& arguments) {
    return selected(machine, self, arguments, true, true);
}
Value filter_rejectattr(Machine& machine, const Value& self, const Arguments& arguments) {
    return selected(machine, self, arguments, false, true);
}

Value filter_map(Machine& machine, const Value& self, const Arguments& arguments) {
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    const Value* attribute = arguments.find("attribute");
    const Value* fallback = arguments.find("default");
    const Text* filter = attribute == nullptr ? text_argument(machine, arguments, 0, "filter") : nullptr;
    const Arguments rest = without_first(arguments, 1);
    std::vector<Value> out;
    for (const Value& item : items->items) {
        if (machine.failed() || !machine.spend(1)) return {};
        if (filter != nullptr) {
            out.push_back(machine.filter(filter->bytes(), item, rest));
            continue;
        }
        out.push_back(path_of(machine, item, *attribute, fallback));
    }
    return machine.make_list(std::move(out));
}

Value filter_attr(Machine& machine, const Value& self, const Arguments& arguments) {
    const Text* name = text_argument(machine, arguments, 0, "name");
    return name == nullptr ? Value{} : attribute_of(machine, self, name->bytes());
}

/// batch(size, fill): lists of `size` items.
Value filter_batch(Machine& machine, const Value& self, const Arguments& arguments) {
    const int64_t size = integer_argument(machine, arguments, 0, "linecount", 0);
    const Value* fill = arguments.get(1, "fill_with");
    const auto items = items_of(machine, self);
    if (items == nullptr) return {};
    if (size < 1 || size > 100'000) return machine.fail_type("batch: a size outside 1 to 100,000");
    const auto step = static_cast<size_t>(size);
    std::vector<Value> out;
    for (size_t begin = 0; begin < items->items.size() && !machine.failed(); begin += step) {
        const size_t end = std::min(begin + step, items->items.size());
        std::vector<Value> batch(items->items.begin() + static_cast<std::ptrdiff_t>(begin),
                                 items->items.begin() + static_cast<std::ptrdiff_t>(end));
        if (fill != nullptr && !fill->is_none()) batch.resize(step, *fill);
        out.push_back(machine.make_list(std::move(batch)));
    }
    return machine.make_list(std::move(out));
}

constexpr NamedFunction kFilters[] = {
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"reverse", filter_reverse},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

Function find_sequence_filter(std::string_view name) { return find_in(kFilters, name); }

}  // namespace takt::jinja
