// Between requests and the template machine. Immutable; any thread. See chat_template.h.
#include "model/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/jinja/json_read.h"
#include "model/jinja/machine.h"
#include "model/jinja/parser.h"

namespace takt {
namespace {

using jinja::Value;

/// Roles that the chat APIs define. Their texts may be part of a special token ("<|" + role + "|>"); any other role may
/// not.
constexpr std::array<std::string_view, 9> kKnownRoles{"system", "user",     "assistant",   "tool",   "developer",
                                                      "model",  "function", "environment", "ipython"};

/// A message whose role is one of the known ones, with that role as trusted text.
Value with_trusted_role(jinja::Machine& machine, const Value& message) {
    const jinja::Dict* dict = message.as_dict();
    if (dict == nullptr) return message;
    std::vector<std::pair<Value, Value>> entries = dict->entries;
    for (auto& [key, value] : entries) {
        if (key.as_text() == nullptr || key.as_text()->bytes() != "role" || value.as_text() == nullptr) continue;
        const std::string role = value.as_text()->bytes();
        const bool known = std::find(kKnownRoles.begin(), kKnownRoles.end(), role) != kKnownRoles.end();
        if (known) value = machine.make_text(role);
    }
    return machine.make_dict(std::move(entries));
}

Value messages_of(jinja::Machine& machine, const boost::json::value& json) {
    const Value messages = jinja::value_of_json(machine, json);
    const jinja::List* list = messages.as_list();
    if (list == nullptr) return messages;
    std::vector<Value> items;
    for (const Value& message : list->items) items.push_back(with_trusted_role(machine, message));
    return machine.make_list(std::move(items));
}

Value token_of(const std::optional<std::string>& token) { return token ? Value::text(*token) : Value::none(); }

TemplateErrorKind kind_of(jinja::FailureKind kind) {
    switch (kind) {
        case jinja::FailureKind::raised: return TemplateErrorKind::raised;
        case jinja::FailureKind::undefined: return TemplateErrorKind::undefined;
        case jinja::FailureKind::limit: return TemplateErrorKind::limit;
        default: return TemplateErrorKind::type;
    }
}

}  // namespace

struct ChatTemplate::Program {
    jinja::Statements statements;
};

std::string ChatText::text() const {
    std::string out;
    for (const ChatPiece& piece : pieces) out += piece.text;
    return out;
}

std::vector<TextPiece> ChatText::token_pieces() const {
    std::vector<TextPiece> out;
    out.reserve(pieces.size());
    for (const ChatPiece& piece : pieces) out.push_back({piece.text, !piece.from_message});
    return out;
}

ChatTemplate::ChatTemplate(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
    Result<jinja::Statements> statements = jinja::parse(source);
    if (!statements) return Error{"chat template: " + statements.error()};
    auto program = std::make_unique<Program>();
    program->statements = std::move(statements).value();
    return ChatTemplate(std::move(program));
}

std::variant<ChatText, TemplateError> ChatTemplate::render(const ChatInput& input) const {
    jinja::Machine machine(jinja::Limits{}, input.now_s);
    std::vector<std::pair<std::string, Value>> variables;
    for (const auto& [name, value] : input.arguments) {
        variables.emplace_back(std::string(name.data(), name.size()), jinja::value_of_json(machine, value));
    }
    variables.emplace_back("messages", messages_of(machine, input.messages));
    variables.emplace_back("tools", jinja::value_of_json(machine, input.tools));
    variables.emplace_back("documents", jinja::value_of_json(machine, input.documents));
    variables.emplace_back("add_generation_prompt", Value::boolean(input.add_generation_prompt));
    variables.emplace_back("bos_token", token_of(input.bos_token));
    variables.emplace_back("eos_token", token_of(input.eos_token));
    const bool done = !machine.failed() && machine.run(program_->statements, std::move(variables));
    if (!done) {
        const jinja::Failure& failure = machine.failure();
        return TemplateError{kind_of(failure.kind), failure.message, failure.line};
    }
    ChatText out;
    machine.output().for_each_run([&out](std::string_view text, bool from_message) {
        out.pieces.push_back({std::string(text), from_message});
    });
    return out;
}

}  // namespace takt
