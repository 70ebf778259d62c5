// Spin, then futex (Linux) or atomic wait (elsewhere).
#include "kernels/cpu/wait_word.h"

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#endif
#ifdef TAKT_HAVE_X86_ISA
#include <immintrin.h>
#endif

namespace takt::cpu {
namespace {

#ifdef __linux__
void futex_wait(std::atomic<uint32_t>& word, uint32_t old) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}
#else
void futex_wait(std::atomic<uint32_t>& word, uint32_t old) { word.wait(old); }
void wake_all(std::atomic<uint32_t>& word) { word.notify_all(); }
#endif

}  // namespace

void spin_pause() {
#ifdef TAKT_HAVE_X86_ISA
    _mm_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

void WaitWord::advance() {
    // seq_cst on both sides: either we see the sleeper, or it sees the new value before it sleeps.
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake_all(word_);
}

bool WaitWord::spin_while(uint32_t old, int spins) const {
    for (int i = 0; i < spins; ++i) {
        if (word_.load(std::memory_order_acquire) != old) return false;
        spin_pause();
    }
    return true;
}

void WaitWord::sleep_while(uint32_t old) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == old) futex_wait(word_, old);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace takt::cpu
