// Any bytes as a text frame of the native protocol and as bodies of the OpenAI paths: refused with a message or a request.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <variant>

#include "server/openai_request.h"
#include "server/protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const takt::server::ClientFrame frame = takt::server::parse_client_frame(text);
    if (const auto* error = std::get_if<takt::server::FrameError>(&frame)) {
        if (error->message.empty() || takt::server::error_frame(*error).empty()) std::abort();
    }
    (void)takt::server::parse_chat_body(text, "m");
    (void)takt::server::parse_completion_body(text, "m");
    return 0;
}
