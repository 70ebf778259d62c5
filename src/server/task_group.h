// TaskGroup: coroutines of one owner, counted, so that the owner can wait until the last one ended. An exception in one
// goes to the sink given at construction. Server thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "server/wake_signal.h"

namespace takt::server {

class TaskGroup {
public:
    using Sink = std::function<void(std::exception_ptr)>;
    TaskGroup(asio::any_io_executor executor, Sink sink)
        : executor_(std::move(executor)), sink_(std::move(sink)) {}

    /// The group must outlive the task: whoever owns it awaits empty() last.
    void spawn(asio::awaitable<void> task) {
        ++num_running_;
        asio::co_spawn(executor_, std::move(task), [this](std::exception_ptr problem) {
            if (problem && sink_) sink_(problem);
            --num_running_;
            for (Signal* waiting : std::exchange(waiting_, {})) waiting->notify();
        });
    }

    /// Resumes once no task runs. Any number of waiters.
    asio::awaitable<void> empty() {
        Signal done(executor_);
        while (num_running_ > 0) {
            waiting_.push_back(&done);
            co_await done.wait();
        }
    }
    /// Resumes once a task more has ended; at once if none runs.
    asio::awaitable<void> one_end() {
        if (num_running_ == 0) co_return;
        Signal done(executor_);
        waiting_.push_back(&done);
        co_await done.wait();
    }
    [[nodiscard]] std::size_t size() const { return num_running_; }

private:
    asio::any_io_executor executor_;
    std::vector<Signal*> waiting_;
    Sink sink_;
    std::size_t num_running_ = 0;
};

}  // namespace takt::server
