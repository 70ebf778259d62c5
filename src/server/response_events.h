// ResponseEvents: the event sequence of one response in the Responses dialect, from `response.created` to its terminal
// event, for server-sent events and for WebSocket frames alike. Pure; one thread at a time.
#pragma once

#include <takt/request.h>

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace takt::server {

/// One event: its type, and the JSON text that carries it.
struct ResponseEvent {
    std::string name;
    std::string data;
};

struct ResponseHead {
    std::string id;
    std::string item_id;
    std::string model;
    std::int64_t created = 0;
    boost::json::object echo;        ///< request fields that the response repeats
    std::string stream_id;
    bool has_stream_id = false;
    bool logprobs = false;
};

class ResponseEvents {
public:
    explicit ResponseEvents(ResponseHead head) : head_(std::move(head)) {}

    /// created, in_progress, output_item.added, content_part.added.
    std::vector<ResponseEvent> begin();
    ResponseEvent delta(const Chunk& chunk);
    /// text.done, part.done, item.done and completed or incomplete.
    std::vector<ResponseEvent> end(const RequestResult& result, std::int64_t completed_at);
    /// created and completed with no output: what `generate: false` asks for.
    std::vector<ResponseEvent> empty(std::int64_t completed_at);
    /// response.failed; `code` is takt's wire code.
    ResponseEvent failed(std::string_view code, std::string_view message);
    /// The whole response object, after end() or without any stream.
    [[nodiscard]] std::string whole(const RequestResult& result, std::int64_t completed_at) const;
    /// Adds a chunk without making an event, for whole answers.
    void collect(const Chunk& chunk);
    [[nodiscard]] const std::string& text() const { return text_; }

private:
    ResponseEvent event(std::string_view name, boost::json::object fields);
    [[nodiscard]] boost::json::object response(std::string_view status) const;
    [[nodiscard]] boost::json::object finished(const RequestResult& result, std::int64_t completed_at) const;
    [[nodiscard]] boost::json::object part(bool whole) const;
    [[nodiscard]] boost::json::object item(std::string_view status) const;
    [[nodiscard]] boost::json::array logprob_list(const std::vector<TokenLogprob>& entries, bool bytes) const;
    [[nodiscard]] std::string_view end_status(FinishReason reason) const;

    ResponseHead head_;
    std::int64_t sequence_ = 0;
    std::string text_;
    std::vector<TokenLogprob> logprobs_;
};

/// A WebSocket `error` event (nested form). `stream_id` null: the frame had none.
std::string response_error_frame(int status, std::string_view code, std::string_view message, std::string_view param,
                                 const std::string* stream_id);

}  // namespace takt::server
