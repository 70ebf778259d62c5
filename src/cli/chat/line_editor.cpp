// Line editing by libedit; the only file that includes it.
#include "cli/chat/line_editor.h"

#include <histedit.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <iostream>

namespace takt::cli {

namespace {

constexpr int kHistoryLines = 1000;

}  // namespace

struct LineEditor::State {
    WaitForInput wait;
    std::string history_file;
    std::string prompt;
    bool terminal = false;
    bool given_up = false;
    EditLine* editor = nullptr;
    History* history = nullptr;
    HistEvent event{};

    static State& of(EditLine* editor) {
        void* self = nullptr;
        el_get(editor, EL_CLIENTDATA, &self);
        return *static_cast<State*>(self);
    }
    static char* show_prompt(EditLine* editor) { return of(editor).prompt.data(); }

    // One character for libedit: waits outside of read(), so that signals and the engine are served meanwhile.
    static int read_character(EditLine* editor, wchar_t* out) {
        State& self = of(editor);
        std::mbstate_t shift{};
        for (;;) {
            if (!self.wait()) {
                self.given_up = true;
                return -1;
            }
            char byte = 0;
            const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
            if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
            if (count <= 0) return static_cast<int>(count);
            const std::size_t used = std::mbrtowc(out, &byte, 1, &shift);
            if (used == static_cast<std::size_t>(-2)) continue;
            // Not UTF-8: drop what there is and go on with the next character.
            if (used == static_cast<std::size_t>(-1)) {
                shift = std::mbstate_t{};
                continue;
            }
            return 1;
        }
    }
};

LineEditor::LineEditor(WaitForInput wait, std::string history_file) : state_(std::make_unique<State>()) {
    state_->wait = std::move(wait);
    state_->history_file = std::move(history_file);
    state_->terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
    if (!state_->terminal) return;
    // Characters of more than one byte; every terminal that matters speaks UTF-8.
    std::setlocale(LC_CTYPE, "C.UTF-8");
    state_->editor = el_init("takt", stdin, stdout, stderr);
    state_->history = history_init();
    el_set(state_->editor, EL_CLIENTDATA, state_.get());
    el_set(state_->editor, EL_PROMPT, &State::show_prompt);
    el_set(state_->editor, EL_EDITOR, "emacs");
    el_set(state_->editor, EL_SIGNAL, 0);
    el_set(state_->editor, EL_GETCFN, &State::read_character);
    el_set(state_->editor, EL_HIST, history, state_->history);
    el_set(state_->editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    history(state_->history, &state_->event, H_SETSIZE, kHistoryLines);
    history(state_->history, &state_->event, H_SETUNIQUE, 1);
    if (!state_->history_file.empty()) history(state_->history, &state_->event, H_LOAD, state_->history_file.c_str());
}

LineEditor::~LineEditor() {
    if (state_->history != nullptr) history_end(state_->history);
    if (state_->editor != nullptr) el_end(state_->editor);
}

bool LineEditor::interactive() const { return state_->terminal; }

LineEditor::Outcome LineEditor::read(const std::string& prompt, std::string& line) {
    line.clear();
    if (!state_->terminal) return std::getline(std::cin, line) ? Outcome::line : Outcome::end;
    state_->prompt = prompt;
    state_->given_up = false;
    int count = 0;
    const char* text = el_gets(state_->editor, &count);
    if (state_->given_up) {
        el_reset(state_->editor);
        std::fputs("^C\n", stdout);
        return Outcome::given_up;
    }
    if (text == nullptr || count <= 0) {
        std::fputc('\n', stdout);
        return Outcome::end;
    }
    line.assign(text, static_cast<std::size_t>(count));
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    if (line.empty()) return Outcome::line;
    history(state_->history, &state_->event, H_ENTER, line.c_str());
    if (!state_->history_file.empty()) {
        const mode_t before = umask(077);   // what was asked is nobody else's business
        history(state_->history, &state_->event, H_SAVE, state_->history_file.c_str());
        umask(before);
    }
    return Outcome::line;
}

}  // namespace takt::cli
