// Door: the way into the engine thread from any other. Posts closures to the engine's io_context until it is closed; what is
// posted later is dropped. Shared by the engine and every reply, so that a reply may outlive its engine.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <mutex>
#include <utility>

namespace takt {

class EngineCore;

class Door {
public:
    explicit Door(boost::asio::io_context& io) : io_(&io) {}

    /// `f` runs on the engine thread with the core; returns false (and drops f) if the engine is gone.
    template <class F>
    bool post(F f) {
        std::lock_guard lock(mutex_);
        if (io_ == nullptr) return false;
        boost::asio::post(*io_, [this, f = std::move(f)]() mutable { f(*core_); });
        return true;
    }
    /// Engine thread, once the core exists, before the first post.
    void open(EngineCore& core) { core_ = &core; }
    void close() {
        std::lock_guard lock(mutex_);
        io_ = nullptr;
    }

private:
    std::mutex mutex_;
    boost::asio::io_context* io_;
    EngineCore* core_ = nullptr;
};

}  // namespace takt
