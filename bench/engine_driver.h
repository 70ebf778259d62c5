// EngineDriver: runs requests on an embedded engine and keeps when each token was ready; what every engine-level bench needs.
#pragma once

#include <takt/takt.h>

#include <boost/asio/io_context.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace takt::bench {

/// When each token of one reply was ready (engine clock, ns) and how the request ended.
struct Stream {
    std::vector<int64_t> ready_ns;
    RequestResult result;

    /// Gaps between consecutive tokens in milliseconds; tokens of one chunk share the chunk's time.
    [[nodiscard]] std::vector<double> gaps_ms() const;
};

/// One engine on the caller's thread. Throws std::runtime_error when a request is refused or ends in an error.
class EngineDriver {
public:
    explicit EngineDriver(Config config);

    /// Submits all requests at once and reads them to their ends.
    std::vector<Stream> run(const std::vector<Request>& requests);

    /// Submits `base`, and once it has shown `after_tokens` tokens submits `inserted`; cancels `base` when that has its first
    /// `inserted.max_tokens` tokens and `tail_tokens` more of `base` were seen.
    std::pair<Stream, Stream> insert(const Request& base, size_t after_tokens, const Request& inserted, size_t tail_tokens);

    [[nodiscard]] const Engine& engine() const { return engine_; }

private:
    boost::asio::io_context io_;
    Engine engine_;
};

/// A request of `prompt_tokens` ordinary random ids drawn from `seed` that decodes `max_tokens` greedily and never stops early.
Request random_request(uint64_t seed, int64_t prompt_tokens, int32_t max_tokens, int64_t vocab);

double median(std::vector<double> values);
/// The value at `share` (0 to 1) of the sorted values, nearest rank.
double quantile(std::vector<double> values, double share);

/// Bytes a second that `threads` threads together read from a buffer of `bytes`, best of `rounds`.
double read_bandwidth(int threads, size_t bytes, int rounds);

/// One process a core that does nothing but compute, until destroyed.
class BusyCores {
public:
    explicit BusyCores(int count);
    ~BusyCores();
    BusyCores(const BusyCores&) = delete;
    BusyCores& operator=(const BusyCores&) = delete;

private:
    std::vector<int> children_;
};

/// Machine, versions, date and command line: the head of every result file.
boost::json::object result_head(int argc, char** argv);
/// Writes what `measure` finds to `path`, or to standard output when it is empty. What a bench's main() returns: 1, and the reason on
/// standard error, if that fails.
int write_result(const std::string& path, const std::function<boost::json::object()>& measure);

}  // namespace takt::bench
