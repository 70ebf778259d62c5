// Recorded arrivals: when requests came, how long they were, and where known whose they were and which beginnings they shared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace takt {

struct TraceArrival {
    double at_s = 0;                        ///< from the first arrival
    std::string tenant;                     ///< empty: not known
    int64_t input_tokens = 0;
    int64_t output_tokens = 0;
    std::vector<uint64_t> prefix_blocks;    ///< what each stretch of Trace::prefix_block_tokens tokens holds; equal ids, equal tokens
};

struct Trace {
    std::string format;                     ///< "azure", "mooncake", "csv"
    int32_t prefix_block_tokens = 512;
    bool is_batched = false;                ///< stamps come in batches, as an export artefact (Mooncake): spread them
    std::vector<TraceArrival> arrivals;     ///< in order of time
};

/// Reads the arrivals of a file: Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), Mooncake JSON lines (timestamp in ms,
/// input_length, output_length, hash_ids) or plain CSV (arrival_s,tenant,input_tokens,output_tokens). The first line decides.
/// @throws load_error with file and line.
Trace read_trace(const std::string& path);

/// The same from text; `name` stands for the file in errors.
Trace parse_trace(const std::string& text, const std::string& name);

}  // namespace takt
