// Members, indexes, slices and iteration. One render, one thread. See operations.h.
#include <algorithm>

#include "model/jinja/functions.h"
#include "model/jinja/operations.h"
#include "model/unicode.h"

namespace takt::jinja {
namespace {

Value missing(Machine& machine, const Value& object, std::string_view name) {
    if (!machine.spend_bytes(64 + name.size())) return {};
    return Value::undefined("'" + std::string(type_name(object)) + " object' has no attribute '" + std::string(name) +
                            "'");
}

Value loop_attribute(Machine& machine, const Value& object, std::string_view name) {
    const Loop& loop = *object.as_loop();
    const size_t size = loop.items->items.size();
    const auto number = [](size_t n) { return Value::integer(static_cast<int64_t>(n)); };
    if (name == "index") return number(loop.index0 + 1);
    if (name == "index0") return number(loop.index0);
    if (name == "revindex") return number(size - loop.index0);
    if (name == "revindex0") return number(size - loop.index0 - 1);
    if (name == "first") return Value::boolean(loop.index0 == 0);
    if (name == "last") return Value::boolean(loop.index0 + 1 == size);
    if (name == "length") return number(size);
    if (name == "depth") return number(1);   // loops inside others count only where a loop calls itself
    if (name == "depth0") return number(0);
    if (name == "previtem") {
        return loop.index0 > 0 ? loop.items->items[loop.index0 - 1] : Value::undefined("there is no previous item");
    }
    if (name == "nextitem") {
        return loop.index0 + 1 < size ? loop.items->items[loop.index0 + 1] : Value::undefined("there is no next item");
    }
    const Function method = find_loop_method(name);
    return method != nullptr ? machine.make_function(name, method, object) : missing(machine, object, name);
}

Function find_method(const Value& object, std::string_view name) {
    if (object.as_text() != nullptr) return find_text_method(name);
    if (object.as_list() != nullptr) return find_list_method(name);
    if (object.as_dict() != nullptr) return find_dict_method(name);
    return nullptr;
}

Value refuse_change(Machine& machine, const Value& object, const Arguments&) {
    return machine.fail_type("a template may not change a '" + std::string(type_name(object)) + "'");
}

/// The method or attribute of that name; null for none.
std::optional<Value> plain_attribute(Machine& machine, const Value& object, std::string_view name) {
    if (object.as_loop() != nullptr) return loop_attribute(machine, object, name);
    if (const Namespace* space = object.as_namespace()) {
        if (!machine.spend(space->attributes.size() / 16)) return {};
        for (const auto& [key, value] : space->attributes) {
            if (key == name) return value;
        }
        return std::nullopt;
    }
    if (const Function method = find_method(object, name)) return machine.make_function(name, method, object);
    if (is_mutating_method(object, name)) return machine.make_function(name, refuse_change, object);
    const Callable* callable = object.as_callable();
    if (callable != nullptr && callable->macro != nullptr && name == "name") return machine.make_text(callable->name);
    return std::nullopt;
}

/// A Python index into `size` things, or nothing if out of range.
std::optional<size_t> position_of(int64_t index, size_t size) {
    const auto count = static_cast<int64_t>(size);
    if (index < -count || index >= count) return std::nullopt;
    return static_cast<size_t>(index < 0 ? index + count : index);
}

/// Byte offsets of all characters, and the size at the end.
std::vector<size_t> character_offsets(const Text& text) {
    std::vector<size_t> offsets;
    for (size_t i = 0; i < text.size(); i += decode_utf8(text.bytes(), i).size) offsets.push_back(i);
    offsets.push_back(text.size());
    return offsets;
}

std::optional<Value> plain_item(Machine& machine, const Value& object, const Value& key) {
    const bool is_index = key.is_numeric() && key.as_number() == nullptr;
    if (const List* list = object.as_list()) {
        const auto at = is_index ? position_of(key.whole(), list->items.size()) : std::nullopt;
        if (at) return list->items[*at];
        return std::nullopt;
    }
    if (const Text* text = object.as_text()) {
        if (!is_index || !machine.spend_bytes(text->size() * 2)) return std::nullopt;
        const std::vector<size_t> offsets = character_offsets(*text);
        const auto at = position_of(key.whole(), offsets.size() - 1);
        if (at) return machine.make_text(text->slice(offsets[*at], offsets[*at + 1]));
        return std::nullopt;
    }
    if (const Dict* dict = object.as_dict()) {
        for (const auto& [name, value] : dict->entries) {
            if (is_equal(machine, name, key)) return value;
        }
    }
    return std::nullopt;
}

struct SliceRange {
    int64_t start;
    int64_t stop;
    int64_t step;
};

/// Python's slice.indices().
std::optional<SliceRange> slice_range(Machine& machine, size_t size, const Value* bounds[3]) {
    int64_t given[3] = {0, 0, 1};
    bool has[3] = {};
    for (size_t i = 0; i < 3; ++i) {
        if (bounds[i]->is_none()) continue;
        if (bounds[i]->as_integer() == nullptr && bounds[i]->as_bool() == nullptr) {
            if (bounds[i]->is_undefined()) machine.fail_undefined(*bounds[i]);
            machine.fail_type("slice indices must be integers or None");
            return std::nullopt;
        }
        given[i] = bounds[i]->whole();
        has[i] = true;
    }
    const auto count = static_cast<int64_t>(size);
    const int64_t step = given[2];
    if (step == 0) {
        machine.fail_type("slice step cannot be zero");
        return std::nullopt;
    }
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? count : count - 1;
    const auto bound = [&](int64_t value) {
        return std::clamp(value < 0 ? std::max(value, -count - 1) + count : value, low, high);
    };
    return SliceRange{has[0] ? bound(given[0]) : (step > 0 ? low : high),
                      has[1] ? bound(given[1]) : (step > 0 ? high : low), step};
}

}  // namespace

Value attribute_of(Machine& machine, const Value& object, std::string_view name) {
    if (object.is_undefined()) return machine.fail_undefined(object);
    if (const auto found = plain_attribute(machine, object, name)) return *found;
    if (const Dict* dict = object.as_dict()) {
        machine.spend(dict->entries.size() / 8);
        if (const Value* found = dict->find(name)) return *found;
    }
    return missing(machine, object, name);
}

Value item_of(Machine& machine, const Value& object, const Value& key) {
    if (object.is_undefined()) return machine.fail_undefined(object);
    if (const auto found = plain_item(machine, object, key)) return *found;
    if (machine.failed()) return {};
    if (const Text* name = key.as_text()) {
        if (const auto found = plain_attribute(machine, object, name->bytes())) return *found;
        return missing(machine, object, name->bytes());
    }
    return Value::undefined("'" + std::string(type_name(object)) + " object' has no element " +
                            written_form(machine, key).bytes());
}

Value slice_of(Machine& machine, const Value& object, const Value& start, const Value& stop, const Value& step) {
    if (object.is_undefined()) return machine.fail_undefined(object);
    const Text* text = object.as_text();
    const List* list = object.as_list();
    if (text == nullptr && list == nullptr) {
        return machine.fail_type("'" + std::string(type_name(object)) + "' object cannot be sliced");
    }
    std::vector<size_t> offsets;
    if (text != nullptr) {
        if (!machine.spend_bytes(text->size() * 2)) return {};
        offsets = character_offsets(*text);
    }
    const size_t size = text != nullptr ? offsets.size() - 1 : list->items.size();
    const Value* bounds[3] = {&start, &stop, &step};
    const auto range = slice_range(machine, size, bounds);
    if (!range) return {};
    Text out;
    std::vector<Value> items;
    if (text != nullptr && range->step == 1) {
        if (range->start >= range->stop) return machine.make_text(Text{});
        return machine.make_text(
            text->slice(offsets[static_cast<size_t>(range->start)], offsets[static_cast<size_t>(range->stop)]));
    }
    for (int64_t i = range->start; range->step > 0 ? i < range->stop : i > range->stop;) {
        const auto at = static_cast<size_t>(i);
        if (text != nullptr) {
            out.append(*text, offsets[at], offsets[at + 1]);
        } else {
            items.push_back(list->items[at]);
        }
        if (__builtin_add_overflow(i, range->step, &i)) break;
    }
    return text != nullptr ? machine.make_text(std::move(out)) : machine.make_list(std::move(items), list->is_tuple);
}

Value path_of(Machine& machine, const Value& object, const Value& path, const Value* fallback) {
    const Text* names = path.as_text();
    if (names == nullptr) return item_of(machine, object, path);
    Value out = object;
    std::string_view rest = names->bytes();
    while (!machine.failed()) {
        const size_t dot = rest.find('.');
        const std::string_view part = rest.substr(0, dot);
        const bool is_index =
            !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
        out = is_index ? item_of(machine, out, Value::integer(std::stol(std::string(part))))
                       : item_of(machine, out, Value::text(part));
        if (out.is_undefined() && fallback != nullptr) out = *fallback;
        if (dot == std::string_view::npos) break;
        rest.remove_prefix(dot + 1);
    }
    return out;
}

std::shared_ptr<const List> items_of(Machine& machine, const Value& value) {
    if (const auto* list = std::get_if<Value::ListPtr>(&value.data())) return *list;
    std::vector<Value> items;
    if (const Dict* dict = value.as_dict()) {
        for (const auto& [key, unused] : dict->entries) items.push_back(key);
    } else if (const Text* text = value.as_text()) {
        if (!machine.spend_bytes(text->size() * 2 * sizeof(Text))) return nullptr;
        const std::vector<size_t> offsets = character_offsets(*text);
        for (size_t i = 0; i + 1 < offsets.size(); ++i)
            items.push_back(Value::text(text->slice(offsets[i], offsets[i + 1])));
    } else if (!value.is_undefined()) {
        machine.fail_type("'" + std::string(type_name(value)) + "' object is not iterable");
        return nullptr;
    }
    const Value out = machine.make_list(std::move(items));
    return machine.failed() ? nullptr : std::get<Value::ListPtr>(out.data());
}

std::optional<size_t> length_of(Machine& machine, const Value& value) {
    if (const Text* text = value.as_text()) {
        machine.spend(text->size() / 64);
        return count_characters(text->bytes());
    }
    if (const List* list = value.as_list()) return list->items.size();
    if (const Dict* dict = value.as_dict()) return dict->entries.size();
    if (value.is_undefined()) return 0;
    machine.fail_type("object of type '" + std::string(type_name(value)) + "' has no len()");
    return std::nullopt;
}

}  // namespace takt::jinja
