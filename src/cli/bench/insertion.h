// The insertion test: short streams decode, a long prompt is put in, and the streams outlive it. The bench's thread.
#pragma once

#include "cli/bench/figures.h"
#include "cli/bench/load_runner.h"

namespace takt::cli {

struct InsertionPlan {
    int num_streams = 8;
    LoadRequest stream;        ///< each short stream; max_tokens must last past the insertion
    LoadRequest inserted;
    int plain_tokens = 32;     ///< that every stream receives alone before the insertion
};

/// One round. An error of a stream or of the inserted request stays in its sample.
asio::awaitable<InsertRound> run_insertion(LoadRunner& runner, LoadClient& client, InsertionPlan plan);

}  // namespace takt::cli
