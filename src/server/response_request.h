// Bodies of POST /v1/responses and of response.create frames to takt requests, and conversations kept for
// previous_response_id. Pure.
#pragma once

#include <takt/request.h>

#include <boost/json/value.hpp>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/openai_request.h"

namespace takt::server {

struct ResponseRequest {
    Request request;                          ///< messages: instructions, the earlier turns, the input
    boost::json::array input;                 ///< the input alone, as messages
    std::optional<std::string> previous_id;
    std::string stream_id;                    ///< empty: the default lane
    bool has_stream_id = false;
    bool stream = false;
    bool generate = true;
    bool logprobs = false;
    boost::json::object echo;                 ///< fields that the response object repeats
    Failure error;
};

/// `frame`: the object is a response.create event (its `type` is known, `stream_id` allowed).
ResponseRequest parse_response_body(const boost::json::object& object, std::string_view model_name, bool frame);

/// A client frame of the WebSocket: response.create, or `error` says what is wrong with it; its lane is known in either case
/// where the frame names one.
ResponseRequest parse_response_frame(std::string_view text, std::string_view model_name);

/// Earlier turns of one connection, by response id. Bounded in number and bytes: the oldest are forgotten.
class Conversations {
public:
    /// The turns up to and with the response `id`, oldest first; empty optional if it is not known.
    [[nodiscard]] std::optional<boost::json::array> find(const std::string& id) const;
    /// Keeps `input` and the answer under `id`, after `previous` (if it has one).
    void add(const std::string& id, const std::optional<std::string>& previous, boost::json::array input,
             const std::optional<std::string>& answer);

private:
    struct Turn {
        Turn(std::shared_ptr<std::size_t> total, std::size_t size) : held_bytes(std::move(total)), bytes(size) { *held_bytes += bytes; }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;
        ~Turn() { *held_bytes -= bytes; }
        std::shared_ptr<std::size_t> held_bytes;   // of all turns that live: a forgotten one may live on in a later one's past
        std::size_t bytes;
        std::shared_ptr<const Turn> before;
        boost::json::array messages;
        int depth = 1;
        std::size_t chain_bytes = 0;   // with everything before
    };
    std::map<std::string, std::shared_ptr<const Turn>> turns_;
    std::deque<std::string> order_;
    std::shared_ptr<std::size_t> held_bytes_ = std::make_shared<std::size_t>(0);
};

/// Puts instructions and the earlier turns before the input.
void prepend_turns(ResponseRequest& request, const boost::json::array& turns);

}  // namespace takt::server
