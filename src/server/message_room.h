// MessageRoom: the bytes of all WebSocket messages that have begun and not ended and of the bodies of all HTTP requests that have not,
// bounded together: each is bounded by server.max_message_kib, which many connections that never end theirs would have many times.
// Server thread.
#pragma once

#include <algorithm>
#include <cstddef>

namespace takt::server {

class MessageRoom {
public:
    /// Of each message so many bytes always have room: messages of usual lengths come through when others hold all of it.
    static constexpr std::size_t kFreeBytes = std::size_t{64} * 1024;
    static constexpr std::size_t kBytes = std::size_t{256} * 1024 * 1024;

    /// One message of the greatest length alone has room.
    explicit MessageRoom(std::size_t max_message_bytes, std::size_t num_bytes = kBytes) : left_(std::max(num_bytes, max_message_bytes)) {}
    MessageRoom(const MessageRoom&) = delete;
    MessageRoom& operator=(const MessageRoom&) = delete;

    /// What one message or body holds; gives it back at its end.
    class Share {
    public:
        explicit Share(MessageRoom& room) : room_(room) {}
        ~Share() { room_.left_ += held_; }
        Share(const Share&) = delete;
        Share& operator=(const Share&) = delete;
        /// The message has come to so many bytes, never fewer than before. False: there is no room for them.
        [[nodiscard]] bool grow_to(std::size_t num_bytes) {
            const std::size_t wanted = num_bytes > kFreeBytes ? num_bytes - kFreeBytes : 0;
            if (wanted - held_ > room_.left_) return false;
            room_.left_ -= wanted - held_;
            held_ = wanted;
            return true;
        }

    private:
        MessageRoom& room_;
        std::size_t held_ = 0;
    };

private:
    std::size_t left_;
};

}  // namespace takt::server
