// Messages and commands of a conversation.
#include "cli/chat/conversation.h"

#include <boost/json/object.hpp>
#include <charconv>

namespace takt::cli {

namespace json = boost::json;

namespace {

constexpr const char* kHelp =
    "/help               this list\n"
    "/new                forget the conversation\n"
    "/undo               forget the last question and its answer\n"
    "/retry              ask the last question again\n"
    "/system [TEXT]      set the system message, or clear it; starts anew\n"
    "/temperature [T]    0 to 100, without T: 0.7\n"
    "/max_tokens [N]     tokens of an answer, without N: the rest of the context\n"
    "/seed [N]           the same seed gives the same answers, without N: a new one each time\n"
    "/timings            print timings after each answer, or no longer\n"
    "/exit               leave (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next one; Ctrl-C stops an answer, or clears the line.\n";

std::string trimmed(const std::string& text) {
    const std::size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string::npos) return std::string();
    return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

Conversation::Step says(std::string text, bool failed = false) {
    Conversation::Step out;
    out.text = std::move(text);
    out.failed = failed;
    return out;
}

// The whole of `text` as a number within the bounds, or nothing.
template <class Number>
std::optional<Number> number_of(const std::string& text, Number low, Number high) {
    Number value{};
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    // Written so that NaN fails too.
    const bool inside = value >= low && value <= high;
    if (ec != std::errc() || end != text.data() + text.size() || !inside) return std::nullopt;
    return value;
}

// Sets `slot`, without an argument to what it is at first.
template <class Slot, class Number>
Conversation::Step set_number(const std::string& name, const std::string& argument, Slot& slot, const Slot& at_first, Number low,
                              Number high, const char* allowed) {
    if (argument.empty()) {
        slot = at_first;
        return says(name + ": the default\n");
    }
    const std::optional<Number> value = number_of<Number>(argument, low, high);
    if (!value) return says(name + ": found " + argument + ", allowed " + allowed + "\n", true);
    slot = *value;
    return says(name + ": " + argument + "\n");
}

}  // namespace

Conversation::Step Conversation::take_line(const std::string& line) {
    if (trimmed(line).empty()) return Step();
    if (line[0] == '/' && line.compare(0, 2, "//") != 0) {
        const std::size_t space = line.find_first_of(" \t");
        return take_command(line.substr(0, space), space == std::string::npos ? std::string() : trimmed(line.substr(space)));
    }
    messages_.push_back({true, line[0] == '/' ? line.substr(1) : line});
    Step out;
    out.kind = Step::Kind::ask;
    return out;
}

Conversation::Step Conversation::take_command(const std::string& name, const std::string& argument) {
    if (name == "/exit" || name == "/quit") {
        Step out;
        out.kind = Step::Kind::leave;
        return out;
    }
    if (name == "/help") return says(kHelp);
    if (name == "/retry") return retry();
    if (name == "/undo") return undo();
    if (name == "/new") {
        messages_.clear();
        return says("a new conversation\n");
    }
    if (name == "/system") {
        settings_.system = argument;
        messages_.clear();
        return says(argument.empty() ? "no system message; a new conversation\n" : "system message set; a new conversation\n");
    }
    if (name == "/timings") {
        settings_.timings = !settings_.timings;
        return says(settings_.timings ? "timings on\n" : "timings off\n");
    }
    return set_value(name, argument);
}

Conversation::Step Conversation::set_value(const std::string& name, const std::string& argument) {
    Settings& s = settings_;
    const Settings at_first;
    if (name == "/temperature") return set_number(name, argument, s.temperature, at_first.temperature, 0.0, 100.0, "0 to 100");
    if (name == "/max_tokens") return set_number(name, argument, s.max_tokens, at_first.max_tokens, 1, 2147483647, "1 up");
    if (name == "/seed") return set_number(name, argument, s.seed, at_first.seed, std::uint64_t{0}, ~std::uint64_t{0}, "0 to 2^64 - 1");
    return says("no such command: " + name + "; /help lists them\n", true);
}

Conversation::Step Conversation::retry() {
    if (!messages_.empty() && !messages_.back().user) messages_.pop_back();
    if (messages_.empty()) return says("there is no question yet\n", true);
    Step out;
    out.kind = Step::Kind::ask;
    return out;
}

Conversation::Step Conversation::undo() {
    if (messages_.empty()) return says("there is nothing to forget\n", true);
    if (!messages_.back().user) messages_.pop_back();
    messages_.pop_back();
    return says("forgotten\n");
}

void Conversation::add_answer(std::string text) { messages_.push_back({false, std::move(text)}); }

void Conversation::drop_question() { messages_.pop_back(); }

json::array Conversation::messages() const {
    json::array out;
    const auto add = [&out](const char* role, const std::string& text) {
        json::object message;
        message["role"] = role;
        message["content"] = text;
        out.push_back(std::move(message));
    };
    if (!settings_.system.empty()) add("system", settings_.system);
    for (const Message& message : messages_) add(message.user ? "user" : "assistant", message.text);
    return out;
}

}  // namespace takt::cli
