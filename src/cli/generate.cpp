// `takt generate`: one answer to standard output, as it comes. Main thread.
#include <takt/engine.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "cli/command.h"
#include "cli/console.h"
#include "cli/timings.h"

namespace takt::cli {

namespace asio = boost::asio;

namespace {

Request make_request(const GenerateOptions& options, const std::string& prompt) {
    Request request;
    if (options.chat) {
        boost::json::object message;
        message["role"] = "user";
        message["content"] = prompt;
        boost::json::array messages;
        messages.push_back(std::move(message));
        request.messages = std::move(messages);
    } else {
        request.prompt = prompt;
    }
    if (options.max_tokens) request.max_tokens = *options.max_tokens;
    if (options.temperature) request.sampling.temperature = *options.temperature;
    if (options.top_p) request.sampling.top_p = *options.top_p;
    request.sampling.seed = options.seed;
    return request;
}

// A full disk or a reader that left ends the answer: nobody would see the rest.
void print_text(std::string_view text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    if (!written) throw load_error(errc::internal, "standard output cannot be written: " + std::generic_category().message(errno));
}

// Prints the stream. Everything it is given is the caller's and outlives it.
asio::awaitable<void> print_stream(Engine& engine, Reply& reply, const GenerateOptions& options, const std::string& prompt) {
    const auto refusal = std::make_shared<Refusal>();
    Request request = make_request(options, prompt);
    auto submitted = co_await engine.async_submit(std::move(request), refusal, asio::as_tuple(asio::use_awaitable));
    if (std::get<0>(submitted)) {
        const std::string text = refusal->message.empty() ? std::get<0>(submitted).message() : refusal->message;
        throw load_error(errc::bad_request, text);
    }
    reply = std::move(std::get<1>(submitted));
    for (;;) {
        auto next = co_await reply.async_next(asio::as_tuple(asio::use_awaitable));
        if (std::get<0>(next)) throw load_error(errc::internal, std::get<0>(next).message());
        if (!std::get<1>(next)) break;
        print_text(std::get<1>(next)->text);
    }
    print_text("\n");
    if (options.timings && reply.result()) print_timings(*reply.result());
}

}  // namespace

int generate(const GenerateOptions& options) {
    Config config = read_config(options.config);
    attach_console(config, LogLevel::warning);
    // Before the signals below are caught: who interrupts while a text is typed is not kept until its end.
    std::string prompt = options.prompt;
    if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
    asio::io_context io(1);
    Engine engine;
    Reply reply;
    std::exception_ptr problem;
    bool interrupted = false;
    asio::signal_set signals(io, SIGINT, SIGTERM);
    signals.async_wait([&](const boost::system::error_code& ec, int) {
        if (ec) return;
        interrupted = true;
        if (!engine) std::_Exit(kInterrupted);
        if (reply) reply.cancel();
    });
    const auto done = [&](std::exception_ptr error) {
        problem = error;
        signals.cancel();
    };
    Engine::async_load(io.get_executor(), config, [&](std::exception_ptr error, Engine loaded) {
        if (error) {
            done(error);
            return;
        }
        engine = std::move(loaded);
        asio::co_spawn(io, print_stream(engine, reply, options, prompt), done);
    });
    io.run();
    reply = Reply();
    engine = Engine();
    if (problem) std::rethrow_exception(problem);
    return interrupted ? kInterrupted : kDone;
}

}  // namespace takt::cli
