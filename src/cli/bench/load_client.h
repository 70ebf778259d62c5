// LoadClient: sends one request to a server and records when its tokens come. Two kinds: takt's WebSocket and OpenAI's
// HTTP. Connections are kept and used again. All on the bench's one thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/bench/sample.h"
#include "cli/bench/url.h"
#include "server/wake_signal.h"

namespace takt::cli {

namespace asio = boost::asio;

struct LoadRequest {
    int prompt_tokens = 1;
    int max_tokens = 1;
    std::uint64_t seed = 1;              ///< of the prompt's text
    std::optional<double> itl_ms;        ///< asked of the server, where it understands that
    std::optional<double> ttft_ms;
};

/// One request under way: what was seen of it, and how to break it off.
struct LoadRun {
    explicit LoadRun(asio::any_io_executor executor) : changed(std::move(executor)) {}

    RequestSample sample;
    server::Signal changed;              ///< tokens came, or the end
    bool done = false;
    bool stopping = false;
    std::function<void()> stop_io;       ///< set by the client while the request is on a connection

    /// Breaks the request off by closing its connection; it then ends with reason `cancelled`.
    void stop() {
        stopping = true;
        if (stop_io) stop_io();
    }
};

struct LoadSettings {
    BenchUrl url;
    std::string key;
    std::string model;                   ///< for http; empty: the first that /models names
    bool chat = false;                   ///< http: chat completions with words, else completions with token ids
    bool ignore_eos = true;
    std::uint64_t origin_ns = 0;         ///< zero of the samples' seconds
};

class LoadClient {
public:
    virtual ~LoadClient() = default;
    LoadClient(const LoadClient&) = delete;
    LoadClient& operator=(const LoadClient&) = delete;

    /// Makes sure that a server of this kind answers. @throws load_error naming the address and the reason.
    virtual asio::awaitable<void> probe() = 0;
    /// Sends and follows one request to its end. What goes wrong is in run->sample.error; nothing is thrown.
    virtual asio::awaitable<void> run(LoadRequest request, std::shared_ptr<LoadRun> run) = 0;

protected:
    LoadClient() = default;
};

std::unique_ptr<LoadClient> make_native_client(asio::any_io_executor executor, LoadSettings settings);
std::unique_ptr<LoadClient> make_openai_client(asio::any_io_executor executor, LoadSettings settings);

/// Seconds since the origin.
double bench_seconds(std::uint64_t origin_ns);

}  // namespace takt::cli
