// Cutting chunks at credit. Pure.
#include "server/credit.h"

#include "server/json_text.h"

namespace takt::server {

namespace {

// Bytes of the chunk's text that its first `count` tokens make, or 0 if they make no whole characters of it.
std::size_t front_bytes(const Chunk& chunk, std::size_t count, const Detokenize& detokenize) {
    const auto middle = chunk.tokens.begin() + static_cast<std::ptrdiff_t>(count);
    const std::string text = detokenize(std::vector<std::int32_t>(chunk.tokens.begin(), middle));
    if (text.empty() || text.size() >= chunk.text.size() || chunk.text.compare(0, text.size(), text) != 0) return 0;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = utf8_length(text, at);
        if (length == 0) return 0;
        at += length;
    }
    return text.size();
}

Chunk cut(Chunk& chunk, std::size_t count, std::size_t bytes) {
    Chunk front;
    front.index = chunk.index;
    front.ready_ns = chunk.ready_ns;
    front.text = chunk.text.substr(0, bytes);
    const auto end = chunk.tokens.begin() + static_cast<std::ptrdiff_t>(count);
    front.tokens.assign(chunk.tokens.begin(), end);
    chunk.tokens.erase(chunk.tokens.begin(), end);
    if (!chunk.logprobs.empty()) {
        const auto last = chunk.logprobs.begin() + static_cast<std::ptrdiff_t>(std::min(count, chunk.logprobs.size()));
        front.logprobs.assign(chunk.logprobs.begin(), last);
        chunk.logprobs.erase(chunk.logprobs.begin(), last);
    }
    chunk.text.erase(0, bytes);
    chunk.index += static_cast<std::int64_t>(count);
    return front;
}

}  // namespace

Chunk take_front(Chunk& chunk, std::int64_t budget, const Detokenize& detokenize) {
    const std::size_t total = chunk.tokens.size();
    const auto wanted = static_cast<std::size_t>(budget);
    if (wanted < total) {
        for (std::size_t count = wanted; count > 0; --count) {
            const std::size_t bytes = front_bytes(chunk, count, detokenize);
            if (bytes > 0) return cut(chunk, count, bytes);
        }
        for (std::size_t count = wanted + 1; count < total; ++count) {
            const std::size_t bytes = front_bytes(chunk, count, detokenize);
            if (bytes > 0) return cut(chunk, count, bytes);
        }
    }
    Chunk whole = std::move(chunk);
    chunk = Chunk();
    return whole;
}

}  // namespace takt::server
