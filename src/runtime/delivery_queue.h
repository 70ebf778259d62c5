// DeliveryQueue: completions on their way from the engine thread to the users' executor. A step that brings 64 readers a token
// wakes their thread once: while one hand-over is under way, what comes meanwhile joins a list that it empties, so the two threads
// neither wake one another for each token nor contend for one queue. Any thread adds; the hand-over runs on the users' executor.
#pragma once

#include <atomic>
#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <takt/error.h>
#include <takt/request.h>

namespace takt {

class DeliveryQueue : public std::enable_shared_from_this<DeliveryQueue> {
public:
    using Handler = boost::asio::any_completion_handler<void(boost::system::error_code, std::optional<Chunk>)>;

    /// Keeps a handler's executor from running out of work.
    struct Work {
        bool is_own = false;                         ///< the handler's executor is the queue's: it may be posted there as it is
        boost::asio::any_io_executor own;            ///< that executor; without the allocations of the one below
        boost::asio::any_completion_executor other;  ///< any other
    };

    /// A reader's wait that is over, or an action that must come behind those added before it.
    struct Item {
        Handler handler;
        Work work;
        boost::system::error_code error;
        std::optional<Chunk> chunk;
        std::function<void()> action;                // in place of the handler
    };

    explicit DeliveryQueue(boost::asio::any_io_executor executor);

    /// Posts the handler, in the order of calls, to its associated executor, else the queue's; never from inside the call.
    void add(Item item);
    /// Runs `action` on the queue's executor once everything added before was posted.
    void add_action(std::function<void()> action);
    /// Something will be added soon: until told otherwise the queue's executor comes to look, turn by turn between its other work,
    /// instead of sleeping; a thread that sleeps takes longer to wake than a token's way. One thread calls this.
    void watch(bool on);
    /// Watched, and nobody has come to look yet though nothing was under way: the thread is wanted and does not run.
    [[nodiscard]] bool is_awaited() const { return is_awaited_.load(std::memory_order_relaxed); }
    /// The system's number of the thread that last handed over; 0: none did. Any thread.
    [[nodiscard]] int64_t thread_id() const { return thread_id_.load(std::memory_order_relaxed); }

private:
    void post_hand_over();
    void hand_over();

    const boost::asio::any_io_executor executor_;
    const boost::asio::any_io_executor posting_;   // the same, and never runs what it is given inside the call
    std::atomic<bool> is_watched_{false};
    std::atomic<bool> is_awaited_{false};
    std::atomic<int64_t> thread_id_{0};
    std::mutex mutex_;
    std::vector<Item> items_;
    bool is_posted_ = false;      // a hand-over is on its way and will see what is added
    // Of the hand-over; one at a time.
    std::vector<Item> batch_;
    size_t next_ = 0;             // of batch_: not yet posted
};

}  // namespace takt
