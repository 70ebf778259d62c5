// Any bytes as a body or frame of the Responses dialect: refused with a message, or its answer is valid JSON.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/field_reader.h"
#include "server/response_events.h"
#include "server/response_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace takt::server;
    const ParsedJson parsed = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
    if (!parsed.value.is_object()) return 0;
    ResponseRequest request = parse_response_body(parsed.value.get_object(), "m", size % 2 == 0);
    if (request.error) {
        if (request.error.message.empty()) std::abort();
        return 0;
    }
    if (!request.request.messages || request.request.messages->empty()) std::abort();
    prepend_turns(request, request.input);
    ResponseHead head;
    head.id = "resp_1";
    head.item_id = "msg_1";
    head.model = "m";
    head.echo = request.echo;
    head.stream_id = request.stream_id;
    head.has_stream_id = request.has_stream_id;
    ResponseEvents events(std::move(head));
    takt::Chunk chunk;
    chunk.text = request.stream_id;
    std::vector<ResponseEvent> all = events.begin();
    all.push_back(events.delta(chunk));
    for (ResponseEvent& event : events.end(takt::RequestResult(), 1)) all.push_back(std::move(event));
    // Whatever was echoed, each event is JSON.
    for (const ResponseEvent& event : all) {
        if (!parse_json(event.data).problem.empty()) std::abort();
    }
    return 0;
}
