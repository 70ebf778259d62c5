// Any bytes as what users say in real templates: rendering ends without a fault, and no control token comes from a message.
// The first byte chooses the template, the second what the conversation is made of; the rest, cut at 0x1E, is its texts.
#include <array>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/chat_template.h"
#include "model/tokenizer.h"
#include "model/tokenizer_vocabulary.h"

namespace {

namespace json = boost::json;
using namespace takt;

// In the manner of the ChatML family; always there.
constexpr std::string_view kChatMl =
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe of help<|im_end|>\\n' }}{% endif %}"
    "{% if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson }}{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m.content is string %}{{ m.content | trim }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' ~ (c.function | tojson) ~ '</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// The control tokens of the families; a few that are prefixes or cuts of others, so that neighbours could join to one.
constexpr std::array<const char*, 16> kControl = {
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|eom_id|>", "<|python_tag|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<|", "|>", "<|im"};

struct Fixture {
    std::vector<ChatTemplate> templates;
    Tokenizer tokenizer;
};

std::string slurp(const std::filesystem::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

void add_template(std::vector<ChatTemplate>& to, std::string_view source) {
    auto parsed = ChatTemplate::parse(source);
    if (!parsed) std::abort();
    to.push_back(std::move(parsed).value());
}

Tokenizer control_tokenizer() {
    TokenizerSpec spec;
    for (int b = 0; b < 256; ++b) spec.tokens.push_back(to_byte_alphabet(std::string(1, static_cast<char>(b))));
    spec.types.assign(spec.tokens.size(), TokenType::normal);
    for (const char* control : kControl) spec.tokens.emplace_back(control);
    spec.types.resize(spec.tokens.size(), TokenType::control);
    spec.split_rules = split_rules_by_name("gpt-2").value();
    auto made = make_tokenizer(spec);
    if (!made) std::abort();
    return std::move(made).value();
}

const Fixture& fixture() {
    static const Fixture made = [] {
        std::vector<ChatTemplate> templates;
        add_template(templates, kChatMl);
        // The published ones, where they lie beside the source tree.
        for (const char* name : {"qwen3", "llama3_1"}) {
            const auto path = std::filesystem::path(TAKT_SOURCE_ROOT) / ".." / "shared" / "tokenizers" / name / "tokenizer_config.json";
            if (std::filesystem::exists(path)) add_template(templates, json::parse(slurp(path)).at("chat_template").as_string());
        }
        return Fixture{std::move(templates), control_tokenizer()};
    }();
    return made;
}

class Texts {
public:
    explicit Texts(std::string_view bytes) : rest_(bytes) {}
    json::string next() {
        const std::size_t end = std::min(rest_.find('\x1E'), rest_.size());
        const json::string out(rest_.substr(0, end));
        rest_.remove_prefix(std::min(end + 1, rest_.size()));
        return out;
    }

private:
    std::string_view rest_;
};

json::object message(std::string_view role, json::value content) {
    json::object out;
    out["role"] = json::string(role);
    out["content"] = std::move(content);
    return out;
}

ChatInput conversation(unsigned shape, Texts texts) {
    ChatInput input;
    json::array all;
    if ((shape & 1u) != 0) all.push_back(message("system", texts.next()));
    if ((shape & 2u) != 0) {
        all.push_back(message("user", json::array{json::object{{"type", "text"}, {"text", texts.next()}}}));
    } else {
        all.push_back(message("user", texts.next()));
    }
    if ((shape & 4u) != 0) {
        json::object answer = message("assistant", texts.next());
        if ((shape & 8u) != 0) answer["reasoning_content"] = texts.next();
        if ((shape & 16u) != 0) {
            const json::object function{{"name", texts.next()}, {"arguments", json::object{{texts.next(), texts.next()}}}};
            answer["tool_calls"] = json::array{json::object{{"type", "function"}, {"function", function}}};
            all.push_back(std::move(answer));
            all.push_back(message("tool", texts.next()));
        } else {
            all.push_back(std::move(answer));
            const json::string role = (shape & 128u) != 0 ? texts.next() : json::string("user");
            all.push_back(message(role, texts.next()));
        }
    }
    if ((shape & 32u) != 0) {
        const json::object function{{"name", texts.next()}, {"description", texts.next()}, {"parameters", json::object{{texts.next(), 1}}}};
        input.tools = json::array{json::object{{"type", "function"}, {"function", function}}};
    }
    if ((shape & 64u) != 0) input.arguments["enable_thinking"] = false;
    input.messages = std::move(all);
    input.bos_token = "<bos>";
    input.eos_token = "<eos>";
    return input;
}

// The control tokens that the template's own pieces spell, by the plainest search: at each place the longest.
std::size_t num_spelled(const ChatText& chat) {
    std::size_t count = 0;
    for (const ChatPiece& piece : chat.pieces) {
        if (piece.from_message) continue;
        // Each of them begins with one of the two.
        for (std::size_t at = piece.text.find_first_of("<|"); at != std::string::npos; at = piece.text.find_first_of("<|", at)) {
            std::size_t longest = 0;
            for (const std::string_view control : kControl) {
                if (std::string_view(piece.text).substr(at, control.size()) == control) longest = std::max(longest, control.size());
            }
            count += longest > 0 ? 1 : 0;
            at += std::max<std::size_t>(longest, 1);
        }
    }
    return count;
}

// The same of the first template with empty texts in place of all others; kept, since it depends on the shape alone. Nothing
// where the template refuses the shape.
std::optional<std::size_t> num_spelled_plain(const ChatTemplate& first, unsigned shape) {
    static std::array<std::optional<std::optional<std::size_t>>, 256> known;
    std::optional<std::optional<std::size_t>>& slot = known[shape];
    if (!slot) {
        const auto plain = first.render(conversation(shape, Texts({})));
        const auto* chat = std::get_if<ChatText>(&plain);
        slot.emplace();
        if (chat != nullptr) *slot = num_spelled(*chat);
    }
    return *slot;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    const Fixture& known = fixture();
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
    const ChatInput input = conversation(data[1], Texts(bytes));
    const auto rendered = known.templates[data[0] % known.templates.size()].render(input);
    if (const auto* error = std::get_if<TemplateError>(&rendered)) {
        if (error->message.empty()) std::abort();
        return 0;
    }
    const auto& chat = std::get<ChatText>(rendered);
    std::size_t num_control = 0;
    for (const std::int32_t id : known.tokenizer.encode_pieces(chat.token_pieces())) num_control += known.tokenizer.is_special(id) ? 1 : 0;
    if (num_control != num_spelled(chat)) std::abort();
    // The first template writes the same control tokens whatever the texts are.
    if (data[0] % known.templates.size() == 0) {
        const std::optional<std::size_t> plain = num_spelled_plain(known.templates[0], data[1]);
        if (plain && *plain != num_control) std::abort();
    }
    return 0;
}
