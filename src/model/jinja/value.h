// Value: what a template computes with. Python's none, bool, int, float, str, list, tuple, dict, plus namespaces, loops
// and callables. Values share their contents and never change, but for namespaces and loops. One render, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "model/jinja/text.h"

namespace takt::jinja {

class Value;
struct Statement;
class Scope;

/// An undefined name or member. It prints as nothing; most other uses are an error with `hint` as its message.
struct Undefined {
    std::shared_ptr<const std::string> hint;
};
struct None {};
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

/// Containers may nest this deep: bounds every recursion over values, their destruction included.
constexpr uint32_t kMaxNesting = 64;

class Value {
public:
    using TextPtr = std::shared_ptr<const Text>;
    using ListPtr = std::shared_ptr<const List>;
    using DictPtr = std::shared_ptr<const Dict>;
    using NamespacePtr = std::shared_ptr<Namespace>;
    using LoopPtr = std::shared_ptr<Loop>;
    using CallablePtr = std::shared_ptr<const Callable>;
    using Data = std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, NamespacePtr, LoopPtr,
                              CallablePtr>;

    Value() = default;  ///< undefined, without a hint
    explicit Value(Data data) : data_(std::move(data)) {}

    static Value none() { return Value(Data(None{})); }
    static Value boolean(bool b) { return Value(Data(b)); }
    static Value integer(int64_t i) { return Value(Data(i)); }
    static Value number(double d) { return Value(Data(d)); }
    static Value undefined(std::string hint) {
        return Value(Data(Undefined{std::make_shared<const std::string>(std::move(hint))}));
    }
    static Value text(Text text) { return Value(Data(std::make_shared<const Text>(std::move(text)))); }
    static Value text(std::string_view bytes, bool from_message = false) {
        return text(Text(std::string(bytes), from_message));
    }
    static Value list(std::vector<Value> items, bool is_tuple = false);
    static Value dict(std::vector<std::pair<Value, Value>> entries);

    [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
    [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(data_); }
    [[nodiscard]] const bool* as_bool() const { return std::get_if<bool>(&data_); }
    [[nodiscard]] const int64_t* as_integer() const { return std::get_if<int64_t>(&data_); }
    [[nodiscard]] const double* as_number() const { return std::get_if<double>(&data_); }
    [[nodiscard]] const Text* as_text() const { return get<TextPtr>(); }
    [[nodiscard]] const List* as_list() const { return get<ListPtr>(); }
    [[nodiscard]] const Dict* as_dict() const { return get<DictPtr>(); }
    [[nodiscard]] Namespace* as_namespace() const { return get<NamespacePtr>(); }
    [[nodiscard]] Loop* as_loop() const { return get<LoopPtr>(); }
    [[nodiscard]] const Callable* as_callable() const { return get<CallablePtr>(); }
    [[nodiscard]] const Data& data() const { return data_; }

    /// Bool, int or float as Python mixes them; false for anything else.
    [[nodiscard]] bool is_numeric() const {
        return as_bool() != nullptr || as_integer() != nullptr || as_number() != nullptr;
    }
    /// Value of a bool or int. Call only if as_number() is null and is_numeric().
    [[nodiscard]] int64_t whole() const { return as_bool() != nullptr ? int64_t{*as_bool()} : *as_integer(); }
    [[nodiscard]] double real() const { return as_number() != nullptr ? *as_number() : static_cast<double>(whole()); }

    [[nodiscard]] uint32_t nesting() const;

private:
    template <class Pointer>
    [[nodiscard]] auto get() const -> decltype(std::declval<Pointer>().get()) {
        const Pointer* pointer = std::get_if<Pointer>(&data_);
        return pointer == nullptr ? nullptr : pointer->get();
    }

    Data data_;
};

struct List {
    std::vector<Value> items;
    bool is_tuple = false;
    uint32_t nesting = 1;
};

/// Insertion-ordered. Entries are searched in order: the dictionaries of templates are small.
struct Dict {
    std::vector<std::pair<Value, Value>> entries;
    uint32_t nesting = 1;

    /// The value of a text key, or nullptr.
    [[nodiscard]] const Value* find(std::string_view key) const;
};

struct Namespace {
    std::vector<std::pair<std::string, Value>> attributes;
};

/// The `loop` variable of one for statement.
struct Loop {
    std::shared_ptr<const List> items;
    size_t index0 = 0;
    std::string last_changed;  ///< how Python would write what loop.changed() saw before
    bool has_changed_before = false;
};

struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;

    [[nodiscard]] const Value* find(std::string_view name) const;
    /// The argument by position or name, or nullptr.
    [[nodiscard]] const Value* get(size_t position, std::string_view name) const;
};

class Machine;
using Function = Value (*)(Machine& machine, const Value& self, const Arguments& arguments);

/// A global function, a method bound to its value, or a macro with the scope it was written in.
struct Callable {
    std::string name;
    Function function = nullptr;
    Value self;
    const Statement* macro = nullptr;
    Scope* scope = nullptr;
    Value caller;  ///< a macro that `caller()` runs (the body of a call block)
};

/// Python's name of the type, for messages.
std::string_view type_name(const Value& value);

}  // namespace takt::jinja
