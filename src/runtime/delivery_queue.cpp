// Handing completions over in groups; see delivery_queue.h.
#include "runtime/delivery_queue.h"

#include <algorithm>
#include <boost/asio/append.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/require.hpp>
#include <utility>

#include "runtime/thread_placement.h"

namespace takt {

namespace net = boost::asio;

DeliveryQueue::DeliveryQueue(net::any_io_executor executor)
    : executor_(std::move(executor)), posting_(net::require(executor_, net::execution::blocking.never)) {}

void DeliveryQueue::add(Item item) {
    {
        std::lock_guard lock(mutex_);
        items_.push_back(std::move(item));
        if (std::exchange(is_posted_, true)) return;
    }
    post_hand_over();
}

void DeliveryQueue::watch(bool on) {
    is_watched_.store(on, std::memory_order_relaxed);
    is_awaited_.store(false, std::memory_order_relaxed);
    if (!on) return;   // the hand-over sees it at its next turn
    {
        std::lock_guard lock(mutex_);
        if (std::exchange(is_posted_, true)) return;
        is_awaited_.store(true, std::memory_order_relaxed);
    }
    post_hand_over();
}

void DeliveryQueue::post_hand_over() {
    posting_.execute([self = shared_from_this()] { self->hand_over(); });
}

void DeliveryQueue::add_action(std::function<void()> action) {
    Item item;
    item.action = std::move(action);
    add(std::move(item));
}

// It comes again behind the few handlers it posted, so that the first of many is run soon, and ends with a turn that found nothing:
// as long as the users' thread is busy with tokens the engine only appends. On an executor of one thread these posts take no lock.
void DeliveryQueue::hand_over() {
    constexpr size_t kGroup = 16;
    thread_id_.store(this_thread_id(), std::memory_order_relaxed);
    is_awaited_.store(false, std::memory_order_relaxed);
    if (next_ == batch_.size()) {
        batch_.clear();
        next_ = 0;
        std::lock_guard lock(mutex_);
        batch_.swap(items_);
        is_posted_ = !batch_.empty() || is_watched_.load(std::memory_order_relaxed);
        if (!is_posted_) return;
    }
    const size_t end = std::min(batch_.size(), next_ + kGroup);
    for (; next_ < end; ++next_) {
        Item item = std::move(batch_[next_]);
        if (item.action) {
            net::post(executor_, std::move(item.action));
        } else if (item.work.is_own) {
            posting_.execute([handler = std::move(item.handler), error = item.error, chunk = std::move(item.chunk)]() mutable {
                std::move(handler)(error, std::move(chunk));
            });
        } else {
            net::post(executor_, net::append(std::move(item.handler), item.error, std::move(item.chunk)));
        }
    }
    post_hand_over();
}

}  // namespace takt
