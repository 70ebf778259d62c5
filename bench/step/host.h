// Host: one loaded engine with a thread for its completions, and streams of known token ids run over it. For bench programs; a client
// of include/takt like any other.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/json/object.hpp>
#include <takt/takt.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace takt::bench {

/// What came of one request. Written by the host's thread until `done`.
struct StreamLog {
    std::vector<int32_t> tokens;
    std::vector<double> logprobs;        ///< of the tokens, where asked
    std::vector<double> margins;         ///< likeliest over second likeliest, where two were asked for
    std::vector<int32_t> seconds;        ///< the second likeliest, likewise
    std::vector<int64_t> ready_ns;       ///< engine clock, one a token
    int64_t submitted_ns = 0;            ///< steady clock, the engine's
    std::string error;
    std::atomic<int64_t> num_tokens{0};
    std::atomic<bool> done{false};
    std::atomic<bool> cancel{false};

    [[nodiscard]] double first_ms() const;              ///< submission to the first token
    [[nodiscard]] double largest_gap_ms(size_t from) const;   ///< between tokens `from`, `from` + 1, ...
};

class Host {
public:
    /// `set`: section.key=value over the defaults. @throws config_error, load_error.
    explicit Host(std::vector<std::string> set);
    ~Host();
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    /// Begins a greedy request; the log may be read as it grows (`num_tokens`), and whole once it is done.
    std::shared_ptr<StreamLog> start(std::vector<int32_t> prompt, int max_tokens, Request base = {});
    /// Until it is done, or has that many tokens.
    static void wait(const StreamLog& log, int64_t num_tokens = std::numeric_limits<int64_t>::max());
    /// Greedy tokens of one prompt, alone.
    std::vector<int32_t> run(const std::vector<int32_t>& prompt, int max_tokens);

    [[nodiscard]] Engine& engine() { return engine_; }
    [[nodiscard]] double load_seconds() const { return load_seconds_; }

private:
    boost::asio::io_context io_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
    std::thread thread_{[this] { io_.run(); }};
    Engine engine_;
    double load_seconds_ = 0;
};

/// Token ids in [256, vocab) by a fixed rule from `seed`: the same everywhere, and no two seeds share a prefix.
std::vector<int32_t> made_up_prompt(uint64_t seed, int length, int32_t vocab);
/// CPU seconds of this process so far.
double process_cpu_seconds();
int64_t steady_ns();

/// Median and other ranks of a sample; 0 where it is empty.
double rank_of(std::vector<double> values, double share);

}  // namespace takt::bench
