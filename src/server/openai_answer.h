// Answers in the OpenAI form for chat completions and completions: whole objects and stream chunks, as JSON text. Pure.
#pragma once

#include <takt/request.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace takt::server {

/// What every object of one answer repeats.
struct AnswerHead {
    bool chat = true;
    std::string id;
    std::string model;
    std::int64_t created = 0;
};

/// One finished choice of a whole answer.
struct AnswerChoice {
    std::string text;
    std::vector<TokenLogprob> logprobs;
    FinishReason reason = FinishReason::stop;
};

std::string whole_answer(const AnswerHead& head, const std::vector<AnswerChoice>& choices, const Usage& usage,
                         bool logprobs);

/// The first chunk of a chat choice: its role.
std::string role_chunk(const AnswerHead& head, std::size_t index);
/// `text_offset`: characters sent before this chunk, for the completions form of log-probabilities.
std::string text_chunk(const AnswerHead& head, std::size_t index, const Chunk& chunk, bool logprobs,
                       std::size_t text_offset);
std::string finish_chunk(const AnswerHead& head, std::size_t index, FinishReason reason);
std::string usage_chunk(const AnswerHead& head, const Usage& usage);

/// `data` of an error inside a stream.
std::string stream_error(std::string_view code, std::string_view message, int status);

/// Log-probabilities in the chat form: a list of {token, logprob, bytes, top_logprobs}.
void append_chat_logprobs(std::string& out, const std::vector<TokenLogprob>& logprobs);

}  // namespace takt::server
