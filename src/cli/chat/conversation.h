// Conversation: the messages of `takt chat` and what its / commands do to them. Pure.
#pragma once

#include <boost/json/array.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace takt::cli {

class Conversation {
public:
    struct Settings {
        std::string system;
        std::optional<int> max_tokens;
        double temperature = 0.7;   ///< as on the page: at the protocols' 1 small models ramble
        std::optional<std::uint64_t> seed;
        bool timings = false;
    };

    /// What a line asks of the program.
    struct Step {
        enum class Kind { none, ask, leave } kind = Kind::none;
        std::string text;      ///< to print first; may be empty
        bool failed = false;   ///< `text` says what was wrong with the line
    };

    explicit Conversation(Settings settings) : settings_(std::move(settings)) {}

    /// Takes a line: a / command, or else a message of the user, which is added. A line that begins with // is the message /...
    Step take_line(const std::string& line);
    /// The answer to the last message, whole or broken off.
    void add_answer(std::string text);
    /// The last message got no answer: forget it.
    void drop_question();

    /// For Request::messages, the system message first.
    [[nodiscard]] boost::json::array messages() const;
    [[nodiscard]] const Settings& settings() const { return settings_; }

private:
    struct Message {
        bool user = true;
        std::string text;
    };

    Step take_command(const std::string& name, const std::string& argument);
    Step set_value(const std::string& name, const std::string& argument);
    Step retry();
    Step undo();

    Settings settings_;
    std::vector<Message> messages_;
};

}  // namespace takt::cli
