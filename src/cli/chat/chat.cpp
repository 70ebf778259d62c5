// `takt chat`: a conversation with a model in this process. Main thread: it reads lines and, between them, runs the
// io_context on which the engine's answers and signals arrive.
#include <takt/engine.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include "cli/chat/conversation.h"
#include "cli/chat/line_editor.h"
#include "cli/command.h"
#include "cli/console.h"
#include "cli/timings.h"

namespace takt::cli {

namespace asio = boost::asio;

namespace {

Conversation::Settings settings_of(const ChatOptions& options) {
    Conversation::Settings out;
    out.system = options.system;
    out.max_tokens = options.max_tokens;
    if (options.temperature) out.temperature = *options.temperature;
    out.seed = options.seed;
    return out;
}

bool readable(int descriptor) {
    pollfd entry{descriptor, POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
}

class Chat {
public:
    Chat(const ChatOptions& options)
        : conversation_(settings_of(options)),
          signals_(io_, SIGINT),
          ending_(io_, SIGTERM, SIGHUP),
          input_(io_),
          editor_([this] { return wait_for_input(); }, options.history_file) {
        if (editor_.interactive()) input_.assign(::dup(STDIN_FILENO));
        wait_for_interrupt();
        ending_.async_wait([this](const boost::system::error_code& ec, int) {
            if (!ec) leaving_ = interrupted_ = true;
            if (reply_) reply_.cancel();
        });
    }

    int run(const Config& config);

private:
    void wait_for_interrupt() {
        signals_.async_wait([this](const boost::system::error_code& ec, int) {
            if (ec) return;
            // While loading there is nothing else to stop than the program.
            if (!engine_) std::_Exit(kInterrupted);
            interrupted_ = true;
            if (reply_) reply_.cancel();
            wait_for_interrupt();
        });
    }

    bool wait_for_input();
    bool read_message(std::string& line);
    void load(const Config& config);
    void answer();
    asio::awaitable<void> ask();

    asio::io_context io_{1};
    Conversation conversation_;
    asio::signal_set signals_;
    asio::signal_set ending_;
    asio::posix::stream_descriptor input_;
    LineEditor editor_;
    Engine engine_;
    Reply reply_;
    std::string text_;          // of the answer under way
    std::string problem_;       // why there is none
    bool interrupted_ = false;
    bool leaving_ = false;
};

// Runs the io_context until standard input has something, or a signal gave the line up.
bool Chat::wait_for_input() {
    bool waiting = false;
    bool came = false;
    while (!leaving_) {
        io_.poll();
        if (std::exchange(interrupted_, false)) break;
        if (came || readable(STDIN_FILENO)) {
            came = true;
            break;
        }
        if (!std::exchange(waiting, true)) {
            input_.async_wait(asio::posix::stream_descriptor::wait_read, [&waiting, &came](const boost::system::error_code& ec) {
                waiting = false;
                came = !ec;
            });
        }
        io_.run_one();
    }
    if (waiting) {
        input_.cancel();
        while (waiting) io_.run_one();
    }
    return came && !leaving_;
}

// A message of one line, or of several that end in a backslash. False: the end of the conversation.
bool Chat::read_message(std::string& line) {
    std::string whole;
    for (;;) {
        const LineEditor::Outcome outcome = editor_.read(whole.empty() ? "> " : ". ", line);
        if (outcome == LineEditor::Outcome::end || leaving_) return false;
        if (outcome == LineEditor::Outcome::given_up) {
            whole.clear();
            continue;
        }
        whole += line;
        if (whole.empty() || whole.back() != '\\') break;
        whole.back() = '\n';
    }
    line = std::move(whole);
    return true;
}

void Chat::load(const Config& config) {
    bool loaded = false;
    std::exception_ptr problem;
    Engine::async_load(io_.get_executor(), config, [&](std::exception_ptr error, Engine engine) {
        problem = error;
        engine_ = std::move(engine);
        loaded = true;
    });
    while (!loaded) io_.run_one();
    if (problem) std::rethrow_exception(problem);
}

// Submits and prints to the end; leaves the answer in text_ or the reason in problem_.
asio::awaitable<void> Chat::ask() {
    const auto refusal = std::make_shared<Refusal>();
    Request request;
    request.messages = conversation_.messages();
    const Conversation::Settings& settings = conversation_.settings();
    if (settings.max_tokens) request.max_tokens = *settings.max_tokens;
    request.sampling.temperature = settings.temperature;
    request.sampling.seed = settings.seed;
    auto submitted = co_await engine_.async_submit(std::move(request), refusal, asio::as_tuple(asio::use_awaitable));
    if (std::get<0>(submitted)) {
        problem_ = refusal->message.empty() ? std::get<0>(submitted).message() : refusal->message;
        co_return;
    }
    reply_ = std::move(std::get<1>(submitted));
    if (interrupted_) reply_.cancel();
    for (;;) {
        auto next = co_await reply_.async_next(asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(next)) {
            problem_ = std::get<0>(next).message();
            break;
        }
        if (!std::get<1>(next)) break;
        const std::string& piece = std::get<1>(next)->text;
        text_ += piece;
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
    }
    const std::optional<RequestResult> result = reply_.result();
    reply_ = Reply();
    std::fputs(result && result->reason == FinishReason::cancelled ? " [stopped]\n" : "\n", stdout);
    std::fflush(stdout);
    if (result && settings.timings) print_timings(*result);
}

void Chat::answer() {
    text_.clear();
    problem_.clear();
    interrupted_ = false;
    bool done = false;
    std::exception_ptr thrown;
    asio::co_spawn(io_, ask(), [&](std::exception_ptr error) {
        thrown = error;
        done = true;
    });
    while (!done) io_.run_one();
    interrupted_ = false;
    if (thrown) std::rethrow_exception(thrown);
    if (!problem_.empty()) std::fprintf(stderr, "%s\n", problem_.c_str());
    if (text_.empty()) {
        conversation_.drop_question();
    } else {
        conversation_.add_answer(text_);
    }
}

int Chat::run(const Config& config) {
    load(config);
    if (editor_.interactive()) {
        const ModelInfo model = engine_.model();
        std::printf("%s on %s; /help lists the commands, Ctrl-D leaves\n", model.name.c_str(), model.device.c_str());
    }
    std::string line;
    while (read_message(line)) {
        const Conversation::Step step = conversation_.take_line(line);
        std::fputs(step.text.c_str(), step.failed ? stderr : stdout);
        std::fflush(stdout);
        if (step.kind == Conversation::Step::Kind::leave) break;
        if (step.kind == Conversation::Step::Kind::ask) answer();
        if (leaving_) break;
    }
    engine_ = Engine();
    return kDone;
}

}  // namespace

int chat(const ChatOptions& options) {
    Config config = read_config(options.config);
    attach_console(config, LogLevel::warning);
    Chat program(options);
    return program.run(config);
}

}  // namespace takt::cli
