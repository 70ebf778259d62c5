// What a user asks of the engine and what comes back: Request, SamplingParams, Chunk, Result. Plain data.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace takt {

struct SamplingParams {
    double temperature = 1.0;              ///< 0 to 100; 0: argmax
    double top_p = 1.0;                    ///< over 0 to 1
    int32_t top_k = 0;                     ///< 0 or -1: off
    double min_p = 0.0;                    ///< 0 to 1
    double repetition_penalty = 1.0;       ///< over 0 to 10; prompt and output
    double presence_penalty = 0.0;         ///< -2 to 2; output
    double frequency_penalty = 0.0;        ///< -2 to 2; output
    std::map<int32_t, double> logit_bias;  ///< id to -100..100
    std::optional<uint64_t> seed;          ///< unset: the engine draws one and reports it
    std::optional<int32_t> logprobs;       ///< unset: none; 0: the chosen token's only; up to 20
};

struct Request {
    // Exactly one of the three.
    std::optional<std::string> prompt;
    std::optional<boost::json::array> messages;            ///< [{"role", "content", ...}]
    std::optional<std::vector<int32_t>> tokens;

    std::optional<int32_t> max_tokens;                     ///< unset: the rest of the context
    SamplingParams sampling;
    std::vector<std::string> stop;                         ///< up to 8, none empty
    bool ignore_eos = false;
    bool parse_special = false;
    std::optional<boost::json::array> tools;               ///< with messages
    std::optional<boost::json::object> chat_template_kwargs;

    std::string sla_class;                                 ///< empty: the default class
    std::optional<double> ttft_ms;
    std::optional<double> itl_ms;
    std::optional<double> deadline_ms;                     ///< from submission
    bool envelope = false;                                 ///< itl_ms judged as an envelope

    std::string tenant;                                    ///< who is charged; set by the server
    std::string domain;                                    ///< whose prefix cache this is; set by the server
    std::string label;                                     ///< request id for logs
};

struct TokenLogprob {
    int32_t token = 0;
    std::string text;                                      ///< raw bytes of the token
    double logprob = 0;
    struct Top {
        int32_t token = 0;
        std::string text;
        double logprob = 0;
    };
    std::vector<Top> top;
};

/// The next piece of text. `text` holds whole UTF-8 characters only; text held back takes its tokens along.
struct Chunk {
    int64_t index = 0;                                     ///< of its first token, from 0
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<TokenLogprob> logprobs;                    ///< one a token where asked
    int64_t ready_ns = 0;                                  ///< engine clock when its last token's step was seen complete
};

enum class FinishReason { stop, length, cancelled, error };

struct Usage {
    int64_t prompt_tokens = 0;
    int64_t completion_tokens = 0;
    int64_t cached_tokens = 0;
};

struct Timings {
    double queue_ms = 0, ttft_ms = 0, prefill_ms = 0, decode_ms = 0, itl_p50_ms = 0, itl_max_ms = 0;
    int32_t preemptions = 0;
};

struct RequestResult {
    FinishReason reason = FinishReason::stop;
    Usage usage;
    Timings timings;
    uint64_t seed = 0;
};

}  // namespace takt
