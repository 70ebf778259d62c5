// `takt serve`: listens, loads the model, prints where to go, drains on SIGTERM or SIGINT. Main thread runs the server.
#include <takt/engine.h>
#include <takt/version.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "cli/command.h"
#include "cli/console.h"
#include "cli/file_limit.h"
#include "server/server.h"

namespace takt::cli {

namespace asio = boost::asio;

namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(500);

// The life of one `takt serve`; everything runs on the io_context.
class Serve {
public:
    Serve(Config config, const Environment& environment, bool insecure)
        : config_(std::move(config)), signals_(io_, SIGINT, SIGTERM), server_(io_, config_, environment, insecure) {}

    int run() {
        server_.listen();
        wait_for_signal();
        spawn(load());
        io_.run();
        server_.release_engine();
        if (problem_) std::rethrow_exception(problem_);
        return exit_code_;
    }

private:
    void spawn(asio::awaitable<void> task) {
        asio::co_spawn(io_, std::move(task), [this](std::exception_ptr problem) {
            if (problem && !problem_) {
                problem_ = problem;
                io_.stop();
            }
        });
    }

    void wait_for_signal() {
        signals_.async_wait([this](const boost::system::error_code& ec, int) {
            if (ec) return;
            // Again: now. While loading there is nothing to drain and no way to stop the loader.
            if (stopping_) std::_Exit(kInterrupted);
            if (!loaded_) std::_Exit(kDone);
            stopping_ = true;
            std::fputs("stopping: running streams have server.drain_seconds; a second signal stops at once\n", stderr);
            spawn(stop());
            wait_for_signal();
        });
    }

    asio::awaitable<void> load() {
        Config config = config_;
        Engine engine = co_await Engine::async_load(io_.get_executor(), std::move(config), asio::use_awaitable);
        loaded_ = true;
        const ModelInfo model = engine.model();
        server_.set_engine(std::move(engine));
        print_ready(model);
        spawn(watch_device());
    }

    asio::awaitable<void> stop() {
        co_await server_.drain();
        io_.stop();
    }

    // A device that is lost stays lost: leave, so that whoever supervises the program starts it anew.
    asio::awaitable<void> watch_device() {
        asio::steady_timer timer(io_);
        for (;;) {
            timer.expires_after(kWatchInterval);
            auto waited = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
            if (std::get<0>(waited) || stopping_) co_return;
            if (!server_.device_lost() || config_.device.on_lost != "exit") continue;
            std::fputs("takt: the device is lost\n", stderr);
            stopping_ = true;
            exit_code_ = kFailed;
            co_await stop();
            co_return;
        }
    }

    void print_ready(const ModelInfo& model) const {
        const std::string& host = config_.server.host;
        const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
        const std::string base = (server_.secure() ? "https://" : "http://") + shown + ":" + std::to_string(server_.port());
        std::printf("takt %s ready: %s on %s, %s\n", version(), model.name.c_str(), model.device.c_str(), base.c_str());
        std::printf("page: %s/\n", base.c_str());
        std::printf("try:  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' -d "
                    "'{\"stream\":true,\"max_tokens\":64,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n",
                    base.c_str());
        std::fflush(stdout);
    }

    Config config_;
    asio::io_context io_{1};
    asio::signal_set signals_;
    server::Server server_;
    bool loaded_ = false;
    bool stopping_ = false;
    int exit_code_ = kDone;
    std::exception_ptr problem_;
};

/// Where the learned cost table is kept when the configuration names no file: the user's cache folder.
std::string usual_cost_cache(const Environment& environment) {
    const std::string cache = environment("XDG_CACHE_HOME").value_or("");
    if (!cache.empty()) return cache + "/takt/costs";
    const std::string home = environment("HOME").value_or("");
    return home.empty() ? std::string() : home + "/.cache/takt/costs";
}

}  // namespace

int serve(const ServeOptions& options, const Environment& environment) {
    Config config = read_config(options.config);
    // The sim device's times are made up: nothing to learn for another day.
    if (config.scheduler.profile_cache.empty() && config.device.kind != "sim") {
        config.scheduler.profile_cache = usual_cost_cache(environment);
    }
    if (config.device.placement == "auto") config.device.placement = "apart";
    attach_console(config, LogLevel::debug);
    raise_file_limit(config);
    Serve program(std::move(config), environment, options.insecure);
    return program.run();
}

}  // namespace takt::cli
