// Outbox. Server thread.
#include "server/outbox.h"

#include <utility>

namespace takt::server {

asio::awaitable<bool> Outbox::send(Slot& slot, std::string frame) {
    if (send_now(frame)) co_return true;
    if (busy_) {
        slot.waiting_ = true;
        queue_.push_back(&slot);
        while (slot.waiting_) co_await slot.turn_.wait();
    }
    busy_ = true;
    if (!dead_) {
        const bool written = co_await socket_.write(std::move(frame));
        if (!written) fail();
    }
    pass_on();
    co_return !dead_;
}

// The turn goes over without becoming free in between, so that nobody overtakes.
void Outbox::pass_on() {
    busy_ = !queue_.empty();
    if (!busy_) return;
    Slot* next = queue_.front();
    queue_.pop_front();
    next->waiting_ = false;
    next->turn_.notify();
}

}  // namespace takt::server
