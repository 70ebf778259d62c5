// The scenarios of step_bench; each prints what it finds and gives it back as JSON.
#pragma once

#include <boost/json/object.hpp>

#include <string>
#include <vector>

#include "step/host.h"

namespace takt::bench {

constexpr double kNearTie = 0.1;   ///< of two log-probabilities: what bf16 activations may turn

struct BenchOptions {
    std::vector<std::string> set;    ///< section.key=value for every engine
    std::string truth;               ///< a file of prompts with float32 continuations
    std::vector<int> batches{1, 8, 64, 256};
    int context = 1024;              ///< prompt tokens of a decoding stream; decode: the mean of its measured steps
    int steps = 128;                 ///< decode steps measured
    std::vector<int> inserts{8192};
    std::vector<int> chunks;         ///< fixed chunks to insert by, for comparison
    std::vector<int> streams{1, 16};
    std::vector<double> itl_ms{10, 15, 25};
    int max_running = 256;
    bool records = false;            ///< every step measured goes into the JSON
};

/// Teacher-forced and free greedy decoding against float32 transformers.
boost::json::object run_truth(const BenchOptions& options);
/// The same greedy tokens by graph and eagerly, at depth 0 and 1, alone and in company; in `deterministic` mode bit for bit.
boost::json::object run_equal(const BenchOptions& options);
/// Decode steps at several batch sizes: device time, gap between steps, host time, graph coverage.
boost::json::object run_decode(const BenchOptions& options);
/// One long prompt into running streams: largest gap and its time to first token against an unsplit prefill. Then a burst of them.
boost::json::object run_insert(const BenchOptions& options);
/// The same prompt computed on a stream of its own beside the streams, unsplit and in `chunks`: what a mixed forward is compared with.
boost::json::object run_apart(const BenchOptions& options);

}  // namespace takt::bench
