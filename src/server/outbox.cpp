// Outbox. Server thread.
#include "server/outbox.h"

#include <utility>

namespace takt::server {

asio::awaitable<bool> Outbox::send(Slot& slot, std::string frame) {
    if (dead_) co_return false;
    slot.frame_ = std::move(frame);
    slot.queued_ = true;
    queue_.push_back(&slot);
    writer_signal_.notify();
    while (slot.queued_) co_await slot.taken_.wait();
    co_return !dead_;
}

asio::awaitable<void> Outbox::run() {
    while (!dead_) {
        if (queue_.empty()) {
            if (finished_) co_return;
            co_await writer_signal_.wait();
            continue;
        }
        Slot* slot = queue_.front();
        queue_.pop_front();
        std::string frame = std::move(slot->frame_);
        slot->queued_ = false;
        slot->taken_.notify();
        const bool written = co_await socket_.write(std::move(frame));
        if (!written) fail();
    }
}

void Outbox::finish() {
    finished_ = true;
    writer_signal_.notify();
}

void Outbox::fail() {
    dead_ = true;
    for (Slot* slot : std::exchange(queue_, {})) {
        slot->queued_ = false;
        slot->taken_.notify();
    }
    writer_signal_.notify();
}

}  // namespace takt::server
