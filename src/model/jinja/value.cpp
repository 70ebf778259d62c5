// Values of the template language. One render, one thread. See value.h.
#include "model/jinja/value.h"

#include <algorithm>

namespace takt::jinja {

Value Value::list(std::vector<Value> items, bool is_tuple) {
    auto list = std::make_shared<List>();
    for (const Value& item : items) list->nesting = std::max(list->nesting, item.nesting() + 1);
    list->items = std::move(items);
    list->is_tuple = is_tuple;
    return Value(Data(ListPtr(std::move(list))));
}

Value Value::dict(std::vector<std::pair<Value, Value>> entries) {
    auto dict = std::make_shared<Dict>();
    for (const auto& [key, value] : entries) {
        dict->nesting = std::max({dict->nesting, key.nesting() + 1, value.nesting() + 1});
    }
    dict->entries = std::move(entries);
    return Value(Data(DictPtr(std::move(dict))));
}

uint32_t Value::nesting() const {
    if (const List* list = as_list()) return list->nesting;
    if (const Dict* dict = as_dict()) return dict->nesting;
    if (const Loop* loop = as_loop()) return loop->items->nesting + 1;
    if (const Callable* callable = as_callable()) {
        return std::max(callable->self.nesting(), callable->caller.nesting()) + 1;
    }
    return 0;
}

const Value* Dict::find(std::string_view key) const {
    for (const auto& [name, value] : entries) {
        const Text* text = name.as_text();
        if (text != nullptr && text->bytes() == key) return &value;
    }
    return nullptr;
}

const Value* Arguments::find(std::string_view name) const {
    for (const auto& [key, value] : named) {
        if (key == name) return &value;
    }
    return nullptr;
}

const Value* Arguments::get(size_t position, std::string_view name) const {
    return position < positional.size() ? &positional[position] : find(name);
}

std::string_view type_name(const Value& value) {
    constexpr std::string_view kNames[] = {"undefined", "NoneType", "bool", "int",  "float", "str",
                                           "list",      "dict",     "Namespace", "LoopContext", "function"};
    const List* list = value.as_list();
    return list != nullptr && list->is_tuple ? "tuple" : kNames[value.data().index()];
}

}  // namespace takt::jinja
