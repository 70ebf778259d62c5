// ChatTemplate: a model's chat template, parsed once and rendered per request. The result keeps apart what the template
// wrote and what came from the request, so that message text never becomes a special token. Immutable after parse(),
// any thread; a render is bounded in steps, memory, depth and output. Knows no tokens, clocks or files.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/status.h"
#include "model/tokenizer.h"

namespace takt {

enum class TemplateErrorKind : uint8_t {
    raised,     ///< the template's own raise_exception; the message is the template's
    undefined,  ///< the template used something that the request lacks
    type,       ///< an operation that its operands do not have, or a function this version lacks
    limit,      ///< too many steps, too much memory, too deep
};

struct TemplateError {
    TemplateErrorKind kind = TemplateErrorKind::type;
    std::string message;
    int line = 0;
};

struct ChatPiece {
    std::string text;
    bool from_message = false;
};

/// A rendered conversation, its pieces in order, neighbours of different origin.
struct ChatText {
    std::vector<ChatPiece> pieces;

    [[nodiscard]] std::string text() const;
    /// For Tokenizer::encode_pieces(); the views live as long as this object is unchanged.
    [[nodiscard]] std::vector<TextPiece> token_pieces() const;
};

/// What a template is given. `messages`, `tools`, `documents` and `arguments` come from the request and are never
/// trusted, but for the values of "role" that the chat APIs define: templates build special tokens from them.
struct ChatInput {
    boost::json::value messages;
    boost::json::value tools;       ///< null: none
    boost::json::value documents;   ///< null: none
    boost::json::object arguments;  ///< further variables (chat_template_kwargs); the names here win over them
    bool add_generation_prompt = true;
    std::optional<std::string> bos_token;  ///< absent: the template sees None
    std::optional<std::string> eos_token;
    int64_t now_s = 0;  ///< seconds since 1970 for strftime_now, shown as UTC
};

class ChatTemplate {
public:
    /// Errors name the line.
    static Result<ChatTemplate> parse(std::string_view source);

    ChatTemplate(ChatTemplate&&) noexcept;
    ChatTemplate& operator=(ChatTemplate&&) noexcept;
    ~ChatTemplate();

    [[nodiscard]] std::variant<ChatText, TemplateError> render(const ChatInput& input) const;

private:
    struct Program;
    explicit ChatTemplate(std::unique_ptr<const Program> program);

    std::unique_ptr<const Program> program_;
};

}  // namespace takt
