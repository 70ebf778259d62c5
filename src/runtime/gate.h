// Gate: counts work in flight, refuses new work once closed, and tells one waiter when it is empty. Engine thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "kernels/assert.h"

namespace takt {

class Gate {
public:
    /// One unit of work in flight; leaves when destroyed.
    class Pass {
    public:
        Pass() = default;
        explicit Pass(Gate& gate) : gate_(&gate) {}
        Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
        Pass& operator=(Pass&& other) noexcept {
            if (this != &other) {
                leave();
                gate_ = std::exchange(other.gate_, nullptr);
            }
            return *this;
        }
        Pass(const Pass&) = delete;
        Pass& operator=(const Pass&) = delete;
        ~Pass() { leave(); }
        explicit operator bool() const { return gate_ != nullptr; }

    private:
        void leave() {
            if (gate_ != nullptr) std::exchange(gate_, nullptr)->leave();
        }
        Gate* gate_ = nullptr;
    };

    Gate() = default;
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    ~Gate() { TAKT_ASSERT(num_inside_ == 0); }

    /// An empty pass if the gate is closed.
    [[nodiscard]] Pass enter() {
        if (closed_) return {};
        ++num_inside_;
        return Pass(*this);
    }
    /// From now on `enter` refuses. `on_empty` is called once, when nobody is inside (perhaps inside this call).
    void close(std::function<void()> on_empty = {}) {
        closed_ = true;
        if (on_empty) on_empty_ = std::move(on_empty);
        tell_if_empty();
    }
    [[nodiscard]] bool is_closed() const { return closed_; }
    [[nodiscard]] int64_t num_inside() const { return num_inside_; }

private:
    void leave() {
        --num_inside_;
        tell_if_empty();
    }
    void tell_if_empty() {
        if (!closed_ || num_inside_ != 0 || !on_empty_) return;
        auto told = std::exchange(on_empty_, nullptr);
        told();
    }

    int64_t num_inside_ = 0;
    bool closed_ = false;
    std::function<void()> on_empty_;
};

}  // namespace takt
