// The native protocol takt.v1 (docs/protocol.md): JSON text frames to requests, replies to JSON text frames. Pure: no
// sockets, no engine, no clock; any thread.
#pragma once

#include <takt/error.h>
#include <takt/request.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace takt::server {

inline constexpr std::string_view kSubprotocol = "takt.v1";
/// A browser's key comes as a second offered subprotocol: this prefix and base64url of the key.
inline constexpr std::string_view kKeySubprotocolPrefix = "takt.key.";

/// The most that `credit` may be or add up to: what every JSON reader keeps whole.
inline constexpr std::int64_t kMaxCredit = std::int64_t{1} << 53;

struct GenerateFrame {
    std::string id;
    Request request;
    std::optional<std::int64_t> credit;   ///< tokens; unset: unlimited
    bool echo_tokens = false;
};
struct CancelFrame {
    std::string id;
};
struct CreditFrame {
    std::string id;
    std::int64_t tokens = 0;
};
/// What an `error` event says.
struct FrameError {
    std::optional<std::string> id;
    std::optional<std::string> ref;
    errc code = errc::bad_request;
    std::string message;
    double retry_after_ms = 0;            ///< 0: none
};
using ClientFrame = std::variant<GenerateFrame, CancelFrame, CreditFrame, FrameError>;

/// One text frame of a client. Everything that is not a valid frame becomes a FrameError with the frame's id if it had a
/// valid one.
ClientFrame parse_client_frame(std::string_view text);

std::string accepted_frame(std::string_view id, std::int64_t prompt_tokens, std::int64_t cached_tokens);
std::string delta_frame(std::string_view id, const Chunk& chunk, bool echo_tokens);
/// The same in two parts: what all deltas of an id begin with, and one of them into `out`, whose old text goes and whose room stays.
std::string delta_head(std::string_view id);
void write_delta(std::string& out, std::string_view head, const Chunk& chunk, bool echo_tokens);
/// `result.reason` is one of stop, length, cancelled.
std::string done_frame(std::string_view id, const RequestResult& result);
std::string error_frame(const FrameError& error);

/// `stop`, `length`, `cancelled`, `error`.
std::string_view reason_name(FinishReason reason);

}  // namespace takt::server
