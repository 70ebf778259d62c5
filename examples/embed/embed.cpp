// Streams one answer to standard output: embed MODEL PROMPT
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <iostream>
#include <takt/takt.h>

namespace asio = boost::asio;

asio::awaitable<void> answer(takt::Config config, takt::Request request) {
    auto executor = co_await asio::this_coro::executor;
    takt::Engine engine = co_await takt::Engine::async_load(executor, std::move(config), asio::use_awaitable);
    takt::Reply reply = co_await engine.async_submit(std::move(request), asio::use_awaitable);
    for (;;) {
        std::optional<takt::Chunk> chunk = co_await reply.async_next(asio::use_awaitable);
        if (!chunk) break;
        std::cout << chunk->text << std::flush;
    }
    std::cout << "\n";
}

int main(int argc, char** argv) {
    if (argc != 3) return std::cerr << "usage: embed MODEL PROMPT\n", 2;
    takt::Config config;
    config.model.path = argv[1];
    takt::Request request;
    request.messages = boost::json::array{boost::json::object{{"role", "user"}, {"content", argv[2]}}};
    request.max_tokens = 64;
    request.sampling.temperature = 0;
    asio::io_context io;
    auto on_end = [](std::exception_ptr error) { if (error) std::rethrow_exception(error); };
    asio::co_spawn(io, answer(std::move(config), std::move(request)), on_end);
    try {
        io.run();
    } catch (const std::exception& problem) {
        return std::cerr << problem.what() << "\n", 1;
    }
}
