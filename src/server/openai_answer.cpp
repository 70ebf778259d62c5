// OpenAI answers. Pure functions, any thread.
#include "server/openai_answer.h"

#include "server/json_text.h"
#include "server/protocol.h"

namespace takt::server {

namespace {

void append_head(std::string& out, const AnswerHead& head, bool chunk) {
    out += "{\"id\":";
    append_json_string(out, head.id);
    out += ",\"object\":\"";
    out += !head.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
    out += "\",\"created\":";
    append_json_number(out, head.created);
    out += ",\"model\":";
    append_json_string(out, head.model);
    out += ",\"choices\":[";
}

void append_usage(std::string& out, const Usage& usage) {
    out += "{\"prompt_tokens\":";
    append_json_number(out, usage.prompt_tokens);
    out += ",\"completion_tokens\":";
    append_json_number(out, usage.completion_tokens);
    out += ",\"total_tokens\":";
    append_json_number(out, usage.prompt_tokens + usage.completion_tokens);
    out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
    append_json_number(out, usage.cached_tokens);
    out += "}}";
}

// An answer that was cancelled has no reason of its own in this form; it was cut short.
std::string_view finish_name(FinishReason reason) {
    return reason == FinishReason::cancelled ? "length" : reason_name(reason);
}

void append_bytes(std::string& out, std::string_view text) {
    out += ",\"bytes\":[";
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (i > 0) out += ',';
        append_json_number(out, std::int64_t{static_cast<unsigned char>(text[i])});
    }
    out += ']';
}

void append_entry(std::string& out, std::string_view text, double logprob) {
    out += "{\"token\":";
    append_json_string(out, text);
    out += ",\"logprob\":";
    append_json_number(out, logprob);
    append_bytes(out, text);
}

template <class Item>
void append_list(std::string& out, std::string_view name, const std::vector<TokenLogprob>& entries, Item item) {
    if (out.back() != '{') out += ',';
    append_json_string(out, name);
    out += ":[";
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (i > 0) out += ',';
        item(entries[i]);
    }
    out += ']';
}

// The completions form: parallel lists.
void append_completion_logprobs(std::string& out, const std::vector<TokenLogprob>& entries, std::size_t offset) {
    out += '{';
    append_list(out, "tokens", entries, [&](const TokenLogprob& e) { append_json_string(out, e.text); });
    append_list(out, "token_logprobs", entries, [&](const TokenLogprob& e) { append_json_number(out, e.logprob); });
    append_list(out, "top_logprobs", entries, [&](const TokenLogprob& e) {
        out += '{';
        for (std::size_t k = 0; k < e.top.size(); ++k) {
            if (k > 0) out += ',';
            append_json_string(out, e.top[k].text);
            out += ':';
            append_json_number(out, e.top[k].logprob);
        }
        out += '}';
    });
    append_list(out, "text_offset", entries, [&](const TokenLogprob& e) {
        append_json_number(out, static_cast<std::int64_t>(offset));
        offset += num_utf8_characters(e.text);
    });
    out += '}';
}

void append_logprobs(std::string& out, bool chat, bool wanted, const std::vector<TokenLogprob>& entries,
                     std::size_t offset) {
    out += ",\"logprobs\":";
    if (!wanted) {
        out += "null";
    } else if (chat) {
        out += "{\"content\":";
        append_chat_logprobs(out, entries);
        out += ",\"refusal\":null}";
    } else {
        append_completion_logprobs(out, entries, offset);
    }
}

void append_choice_head(std::string& out, std::size_t index) {
    out += "{\"index\":";
    append_json_number(out, static_cast<std::int64_t>(index));
}

}  // namespace

void append_chat_logprobs(std::string& out, const std::vector<TokenLogprob>& logprobs) {
    out += '[';
    for (std::size_t i = 0; i < logprobs.size(); ++i) {
        if (i > 0) out += ',';
        append_entry(out, logprobs[i].text, logprobs[i].logprob);
        out += ",\"top_logprobs\":[";
        for (std::size_t k = 0; k < logprobs[i].top.size(); ++k) {
            if (k > 0) out += ',';
            append_entry(out, logprobs[i].top[k].text, logprobs[i].top[k].logprob);
            out += '}';
        }
        out += "]}";
    }
    out += ']';
}

std::string whole_answer(const AnswerHead& head, const std::vector<AnswerChoice>& choices, const Usage& usage,
                         bool logprobs) {
    std::string out;
    append_head(out, head, false);
    for (std::size_t i = 0; i < choices.size(); ++i) {
        if (i > 0) out += ',';
        append_choice_head(out, i);
        if (head.chat) {
            out += ",\"message\":{\"role\":\"assistant\",\"content\":";
            append_json_string(out, choices[i].text);
            out += ",\"refusal\":null}";
        } else {
            out += ",\"text\":";
            append_json_string(out, choices[i].text);
        }
        append_logprobs(out, head.chat, logprobs, choices[i].logprobs, 0);
        out += ",\"finish_reason\":\"";
        out += finish_name(choices[i].reason);
        out += "\"}";
    }
    out += "],\"usage\":";
    append_usage(out, usage);
    out += '}';
    return out;
}

std::string role_chunk(const AnswerHead& head, std::size_t index) {
    std::string out;
    append_head(out, head, true);
    append_choice_head(out, index);
    out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}";
    return out;
}

std::string text_chunk(const AnswerHead& head, std::size_t index, const Chunk& chunk, bool logprobs,
                       std::size_t text_offset) {
    std::string out;
    append_head(out, head, true);
    append_choice_head(out, index);
    out += head.chat ? ",\"delta\":{\"content\":" : ",\"text\":";
    append_json_string(out, chunk.text);
    if (head.chat) out += '}';
    append_logprobs(out, head.chat, logprobs, chunk.logprobs, text_offset);
    out += ",\"finish_reason\":null}]}";
    return out;
}

std::string finish_chunk(const AnswerHead& head, std::size_t index, FinishReason reason) {
    std::string out;
    append_head(out, head, true);
    append_choice_head(out, index);
    out += head.chat ? ",\"delta\":{}" : ",\"text\":\"\"";
    out += ",\"logprobs\":null,\"finish_reason\":\"";
    out += finish_name(reason);
    out += "\"}]}";
    return out;
}

std::string usage_chunk(const AnswerHead& head, const Usage& usage) {
    std::string out;
    append_head(out, head, true);
    out += "],\"usage\":";
    append_usage(out, usage);
    out += '}';
    return out;
}

std::string stream_error(std::string_view code, std::string_view message, int status) {
    std::string out = "{\"error\":{\"message\":";
    append_json_string(out, message);
    out += ",\"type\":";
    append_json_string(out, status >= 500 ? "server_error" : "invalid_request_error");
    out += ",\"code\":";
    append_json_string(out, code);
    out += ",\"param\":null}}";
    return out;
}

}  // namespace takt::server
