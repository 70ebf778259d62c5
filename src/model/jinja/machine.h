// Machine: one render of a template. Walks the syntax tree, keeps the books on steps, memory and depth, and stops at
// the first failure. No exceptions: after a failure every call returns an undefined value and failed() is true. One
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/value.h"

namespace takt::jinja {

enum class FailureKind : uint8_t {
    raised,     ///< the template called raise_exception
    undefined,  ///< an undefined value was used
    type,       ///< an operation that its operands do not have
    limit,      ///< steps, memory, depth or output
};

struct Failure {
    FailureKind kind = FailureKind::type;
    std::string message;
    int line = 0;
};

/// Bounds of one render. Steps are roughly nodes visited, 64-byte pieces of text made, 8-byte pieces of text that a function looks
/// through and sixteens of names compared.
struct Limits {
    uint64_t max_steps = 20'000'000;
    uint64_t max_bytes = uint64_t{512} << 20;  ///< made in all, not held at once
    uint64_t max_output_bytes = uint64_t{64} << 20;
    uint32_t max_depth = 1000;  ///< statements and expressions within each other, macro calls included
};

/// Names of one block; a name not found is looked up in the parent.
class Scope {
public:
    explicit Scope(Scope* parent) : parent_(parent) {}

    /// `num_compared` grows by the names that were compared.
    [[nodiscard]] const Value* find(std::string_view name, uint64_t& num_compared) const {
        for (const Scope* scope = this; scope != nullptr; scope = scope->parent_) {
            for (const auto& [key, value] : scope->names_) {
                ++num_compared;
                if (key == name) return &value;
            }
        }
        return nullptr;
    }

    [[nodiscard]] size_t size() const { return names_.size(); }

    void set(std::string_view name, Value value) {
        for (auto& [key, old] : names_) {
            if (key == name) {
                old = std::move(value);
                return;
            }
        }
        names_.emplace_back(std::string(name), std::move(value));
    }

private:
    Scope* parent_;
    std::vector<std::pair<std::string, Value>> names_;
};

class Machine {
public:
    /// `now_s`: seconds since 1970 for strftime_now, as UTC.
    Machine(const Limits& limits, int64_t now_s) : limits_(limits), now_s_(now_s) {}
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    /// Renders with these variables. False after a failure.
    bool run(const Statements& program, std::vector<std::pair<std::string, Value>> variables);
    [[nodiscard]] const Text& output() const { return output_; }

    [[nodiscard]] bool failed() const { return failed_; }
    [[nodiscard]] const Failure& failure() const { return failure_; }
    /// Records the first failure; gives an undefined value to return.
    Value fail(FailureKind kind, std::string message);
    Value fail_type(std::string message) { return fail(FailureKind::type, std::move(message)); }
    /// The failure of using this undefined value.
    Value fail_undefined(const Value& value);

    /// Counts steps; false (and failed) beyond the limit.
    bool spend(uint64_t steps);
    /// Counts bytes made, and the steps of making them.
    bool spend_bytes(uint64_t bytes);

    // Makers that keep the books. Undefined after a failure.
    Value make_text(Text text);
    Value make_text(std::string_view bytes, bool from_message = false) {
        return make_text(Text(std::string(bytes), from_message));
    }
    Value make_list(std::vector<Value> items, bool is_tuple = false);
    Value make_dict(std::vector<std::pair<Value, Value>> entries);
    Value make_namespace(std::vector<std::pair<std::string, Value>> attributes);
    /// A bound method or a global function.
    Value make_function(std::string_view name, Function function, Value self = {});

    Value evaluate(const Expression& expression);
    Value call(const Value& callable, const Arguments& arguments);
    Value filter(std::string_view name, const Value& self, const Arguments& arguments);
    bool test(std::string_view name, const Value& self, const Arguments& arguments);
    [[nodiscard]] int64_t now_s() const { return now_s_; }
    [[nodiscard]] uint64_t max_bytes() const { return limits_.max_bytes; }

private:
    /// What a statement asks of the loop around it.
    enum class Flow : uint8_t { normal, break_loop, continue_loop };
    class DepthGuard;

    /// One level deeper, whatever it gives: false (and failed) beyond the limit.
    bool enter();
    Flow execute(const Statements& statements);
    Flow execute_one(const Statement& statement);
    Flow execute_branch(const Statement& statement);
    Flow execute_loop(const Statement& statement);
    void execute_iterations(const Statement& statement, const std::shared_ptr<Loop>& loop);
    void execute_set(const Statement& statement);
    void execute_with(const Statement& statement);
    void execute_call_block(const Statement& statement);
    void define_macro(const Statement& statement);
    void assign(const std::string& target, Value value);
    /// A name of the scopes, or nullptr; sets one in the innermost.
    const Value* find_name(std::string_view name);
    void set_name(std::string_view name, Value value);
    /// Counts what a function of a text costs that looks through it once.
    bool spend_look(const Value& self);
    void bind(const std::vector<std::string>& targets, const Value& value);
    Text capture(const Statements& body);
    Value filtered(const Expression* chain, Value hole);
    void print(const Value& value);
    void print_text(std::string_view text);
    /// Whether so many bytes more may be printed; false (and failed) if not.
    bool spend_output(size_t bytes);
    Value call_macro(const Callable& callable, const Arguments& arguments);
    Value call_with_caller(const Expression& call, Value caller);
    std::vector<Value> passing_items(const Statement& statement, const List& items);

    Value evaluate_inner(const Expression& expression);
    Value evaluate_name(const Expression& expression);
    Value evaluate_binary(const Expression& expression);
    Value evaluate_compare(const Expression& expression);
    Value evaluate_container(const Expression& expression);
    Value evaluate_concat(const Expression& expression);
    Value evaluate_logic(const Expression& expression);
    Value evaluate_call(const Expression& expression);
    Value evaluate_slice(const Expression& expression);
    Arguments evaluate_arguments(const Expression& call);

    /// Runs `body` in a new scope below `parent`. Scopes live until the render ends, since macros may hold them.
    Scope* push_scope(Scope* parent);
    void pop_scope(Scope* previous, bool keep);

    Limits limits_;
    int64_t now_s_;
    uint64_t steps_ = 0;
    uint64_t bytes_ = 0;
    uint32_t depth_ = 0;
    int line_ = 0;
    bool failed_ = false;
    Failure failure_;

    Text output_;
    Text* out_ = &output_;  // where statements print; a capture redirects it
    Scope* scope_ = nullptr;
    std::deque<std::unique_ptr<Scope>> scopes_;
    uint64_t num_macros_ = 0;  // made so far: a scope in which one was made is kept
    // Namespaces may hold each other in rings: the machine keeps them all and empties them at the end.
    std::vector<std::shared_ptr<Namespace>> namespaces_;
    const Value* hole_ = nullptr;  // what the undefined constant of a filter chain stands for
};

}  // namespace takt::jinja
