// WaitWord: a counter on which compute threads wait: a short spin for the balanced case, then sleep in the kernel, because a
// partner that is descheduled runs sooner when nobody spins on its core. Used between threads of one pool only.
#pragma once

#include <atomic>
#include <cstdint>

namespace takt::cpu {

class WaitWord {
public:
    [[nodiscard]] uint32_t value() const { return word_.load(std::memory_order_acquire); }
    /// One more; everything written before is seen by whoever sees the new value. Wakes the sleepers.
    void advance();
    /// Looks `spins` times; returns whether the value is still `old`.
    [[nodiscard]] bool spin_while(uint32_t old, int spins) const;
    /// Sleeps until the value differs from `old`.
    void sleep_while(uint32_t old);

private:
    alignas(64) std::atomic<uint32_t> word_{0};
    std::atomic<int32_t> sleepers_{0};
};

/// One polite turn of a spin loop.
void spin_pause();

}  // namespace takt::cpu
