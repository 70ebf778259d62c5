// LineEditor: lines from a terminal with editing and history (libedit), or plain ones from a pipe. Main thread; one at
// a time, since libedit and the terminal's mode belong to the process.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace takt::cli {

class LineEditor {
public:
    /// Called while a terminal has nothing to read: waits and returns true once it has, false to give the line up.
    using WaitForInput = std::function<bool()>;

    /// `history_file`: read now, written after each line; empty: none.
    LineEditor(WaitForInput wait, std::string history_file);
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    enum class Outcome { line, given_up, end };
    /// Reads one line, without its end. `prompt` is shown on a terminal only.
    Outcome read(const std::string& prompt, std::string& line);
    [[nodiscard]] bool interactive() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace takt::cli
